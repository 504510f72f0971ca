"""Tables of one's own, which Dagster has loaded once, by their files as these are now.

Most of a table may change while the code server runs: each run reads the file again. Its partitions and its checks may
not, since Dagster knows them from when it loaded the table.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

import dagster as dg

from tidemark.assets.requests import ended_at
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import TableFailed, TidemarkError
from tidemark.pipeline.services.dagster_names import DEFINITION
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.table_definition import TableDefinition, file_now, read_table

LOAD_AGAIN = (
    "which Dagster knows from when it loaded the table. Nothing was written. Restart `tidemark up`; in a Dagster of "
    "your own, reload the code location"
)


def table_of_run(context: dg.AssetExecutionContext, settings: Settings, loaded: TableDefinition) -> TableDefinition:
    """The table by its file as it is now, for a run, which gets a tag with what it has found. Raises InvalidSettings if
    the file cannot be used, and TableFailed if Dagster must load it again."""
    context.instance.add_run_tags(context.run.run_id, {DEFINITION: file_now(settings, loaded)})
    return _usable(settings, loaded, loaded)


@dataclass(frozen=True, slots=True)
class TableNow:
    """A table as a tick finds it: its definition, what stands for its file, and why the next run will fail (None: no
    reason is known). The definition of a file that cannot be used is the last one that could be."""

    definition: TableDefinition
    file: str
    wrong: TidemarkError | None = None


class LoadedTables:
    """The tables as Dagster has loaded them at a moment, and as their files are at each tick since."""

    def __init__(self, settings: Settings, loaded: Mapping[str, TableDefinition], at: datetime) -> None:
        self._settings = settings
        self._loaded = loaded
        self._at = at
        self._usable = dict(loaded)

    def now(self, name: str) -> TableNow:
        """A table by its file as it is now. A file with another text than the last usable one is imported again."""
        loaded, wrong = self._loaded[name], None
        file = file_now(self._settings, loaded)
        try:
            self._usable[name] = _usable(self._settings, loaded, self._usable[name])
        except TidemarkError as error:
            wrong = error
        return TableNow(self._usable[name], file, wrong)

    def counting(self, table: TableNow) -> Callable[[dg.RunRecord], bool]:
        """Tells whether a failed run counts against the table as it is now: it used the same file, as loaded now."""

        def counts(record: dg.RunRecord) -> bool:
            return record.dagster_run.tags.get(DEFINITION) == table.file and ended_at(record) >= self._at

        return counts


def _usable(settings: Settings, loaded: TableDefinition, known: TableDefinition) -> TableDefinition:
    """The table by its file as it is now, `known` if it is that. Raises InvalidSettings and TableFailed."""
    if not loaded.file:
        return loaded
    now = read_table(settings, loaded.name, known)
    lengths = [table.windowing(settings.windows).length for table in (now, loaded)]
    if lengths[0] != lengths[1]:
        new, old = map(format_duration, lengths)
        raise TableFailed(f"the table {now.name} has windows of {new} now, and not of {old}, {LOAD_AGAIN}")
    if bool(now.key) != bool(loaded.key):
        is_new = "has a key now, and so a check of it" if now.key else "has no key any more, and so no check of it"
        raise TableFailed(f"the table {now.name} {is_new}, {LOAD_AGAIN}")
    return now

"""Custom tables, read again from their files after Dagster has loaded them.

Most of a table may change while the code server runs: each run reads the file again. Its partitions and checks may not,
since Dagster knows them from when it loaded the table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from tidemark.assets.jobs.job import Context
from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.compute.table_definition import UNUSABLE, TableDefinition, file_now, read_table
from tidemark.pipeline.errors import TableFailed, TidemarkError
from tidemark.pipeline.orchestrator.names import DEFINITION
from tidemark.pipeline.settings import Settings

LOAD_AGAIN = (
    "which Dagster knows from when it loaded the table. Nothing was written. Restart `tidemark up`; in a Dagster of "
    "your own, reload the code location"
)


def table_of_run(context: Context, settings: Settings, loaded: TableDefinition) -> TableDefinition:
    """Read a table's current file for a run, and tag the run with the file's digests. Raises InvalidSettings if the
    file cannot be used, and TableFailed if Dagster must load it again."""
    context.instance.add_run_tags(context.run.run_id, {DEFINITION: _mark(settings, loaded)})
    return _usable(settings, loaded, loaded)


@dataclass(frozen=True, slots=True)
class TableNow:
    """A table as a tick finds it: its definition, the `mark` of its runs, and why the next run will fail (None: no
    reason is known). If the file cannot be used, the definition is the last usable one."""

    definition: TableDefinition
    mark: str
    wrong: TidemarkError | None = None

    def counts(self, failed: dg.RunRecord) -> bool:
        """True if the failed run used the table's current file."""
        return failed.dagster_run.tags.get(DEFINITION) == self.mark


class LoadedTables:
    """The tables as Dagster loaded them, and as their files are at each tick."""

    def __init__(self, settings: Settings, loaded: Mapping[str, TableDefinition]) -> None:
        self._settings = settings
        self._loaded = loaded
        self._usable = dict(loaded)

    def now(self, name: str) -> TableNow:
        """Read a table's current file. It is imported again only if its text differs from the last usable one."""
        loaded, wrong = self._loaded[name], None
        mark = _mark(self._settings, loaded)
        try:
            self._usable[name] = _usable(self._settings, loaded, self._usable[name])
        except TidemarkError as error:
            wrong = error
        return TableNow(self._usable[name], mark, wrong)


def _mark(settings: Settings, loaded: TableDefinition) -> str:
    """Return the digests of a table's file: as Dagster loaded it, and as it is now."""
    return f"{loaded.file}.{file_now(settings, loaded)}"


def _usable(settings: Settings, loaded: TableDefinition, known: TableDefinition) -> TableDefinition:
    """Return the table of the current file, or `known` if its file is unchanged. Raises InvalidSettings and
    TableFailed. If the file was unusable when Dagster loaded the table, it may have a key now: the next load defines
    its check."""
    if not loaded.file:
        return loaded
    now = read_table(settings, loaded.name, known)
    lengths = [table.windowing(settings.windows).length for table in (now, loaded)]
    if lengths[0] != lengths[1]:
        new, old = map(format_duration, lengths)
        raise TableFailed(f"the table {now.name} has windows of {new} now, and not of {old}, {LOAD_AGAIN}")
    if loaded.file != UNUSABLE and bool(now.key) != bool(loaded.key):
        is_new = "has a key now, and so a check of it" if now.key else "has no key any more, and so no check of it"
        raise TableFailed(f"the table {now.name} {is_new}, {LOAD_AGAIN}")
    return now

"""Windowed tables: Delta tables with one partition per event-time window, in which runs replace whole windows.

A run writes Parquet files to its own folder, then writes a manifest, and then commits. The commit is one transaction
that removes the old files of the run's windows and adds the new ones. The *fence* of a run protects against other runs:
it is the set of files that each window had before the run listed its input. If a window has different files when the
run commits, another run has replaced the window in between."""

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from itertools import pairwise
from typing import Annotated

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable, Schema
from pydantic import Field

from tidemark.pipeline.clock import EPOCH, Clock, format_duration, parse_duration, to_us
from tidemark.pipeline.contract.messages import Column
from tidemark.pipeline.errors import UNREADABLE, InvalidSettings, LakeError, LakeUnreachable, TableConflict
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore, read_ahead
from tidemark.pipeline.lake.tables.new_files import NewFile, refuse_old
from tidemark.pipeline.lake.tables.table import OF_RUNS, LakeTable, by_partition, of_partitions
from tidemark.pipeline.windows import start_of

PARTITION = "window"
PARTITION_COLUMN = Column(PARTITION, pa.string(), "The partition: the window's start, such as 2026-11-21T05-20Z.")

RUNS_FOLDER = "runs"
LENGTH = "tidemark.window_length"
"""The table property for the length of the table's windows. Early versions of tidemark did not set it."""

EVIDENT = 8
"""If a table lacks the property LENGTH, its window length is derived: the smallest distance between the starts of two
windows. With few windows, no two may be adjacent, and the derived length may be too great. So a derived length above
the expected one is ignored if the table has fewer computed windows than this."""

MANIFESTS_KEPT = 2_000
"""Maximum number of manifests that an open table caches: a week of runs over windows of five minutes."""

NOT_NULL = re.compile(r'("(?:nullable|containsNull|valueContainsNull)":\s*)false')
"""Matches the attributes that make a column, or a part of it, not nullable in a Delta schema as JSON. Spark derives
nullability from the query, so it is not part of a column's type here."""

FORGOT = "tidemark.forgot"
"""Metadata key of a commit by `WindowedTable.forget`, with the number of windows."""

Fence = Mapping[str, frozenset[str]]
"""The files that each window had before a run listed its input, by window key."""

LONGEST_PAUSE_SECONDS = 0.5
"""Maximum length of the random pause between two commit attempts. The pause makes it unlikely that concurrent runs
collide again."""


@dataclass(frozen=True, slots=True)
class DiffRun:
    """The manifest of a run over windows, stored under `name`. If Dagster retries the run, each attempt has its own
    manifest and name. `windows` are the keys of the run's windows, and `heartbeats_version` is the version of
    `heartbeats` that the run read.

    The manifest of a custom table's run also has the table's name, the version of its definition, and a digest of each
    window's input.
    """

    name: Annotated[str, Field(alias="run")]
    windows: Sequence[str]
    heartbeats_version: int
    watermark: Moment
    started_at: Moment
    table: str | None = None
    version: str | None = None
    inputs: Mapping[str, str] | None = None


MANIFESTS = JsonKind("diff_runs/", "run `tidemark repair`, which recomputes the windows of this run", holds=DiffRun)
"""Stores the manifests of runs, by the run's name."""


class WindowedTable:
    """A table in which runs replace whole windows. `schema` contains the columns that a run writes. Windows are given
    as keys."""

    def __init__(self, table: LakeTable, objects: ObjectStore, schema: pa.Schema, clock: Clock) -> None:
        self.table, self.files, self.schema = table, table.folder, schema
        table.properties = OF_RUNS
        self._manifests = Notes(objects, MANIFESTS)
        self._clock = clock
        self.manifest = lru_cache(MANIFESTS_KEPT)(self._manifests.read)
        """Returns a run's manifest. It is read once, then cached. Raises ObjectMissing, DamagedNote and NewerFormat."""
        self._length: timedelta | None = None

    def hold_to(self, length: timedelta) -> None:
        """Make `fence`, `replace` and `OwnTable.prepare` raise InvalidSettings if the table's windows do not have this
        length. The next write stores the length in the table's properties."""
        self.table.properties = {**self.table.properties, LENGTH: format_duration(length)}
        self._length = length

    def computed(self) -> set[str]:
        """Return the keys of the computed windows, including windows without rows."""
        return set(pc.unique(self.table.listed()[f"partition.{PARTITION}"]).to_pylist())

    def read(
        self, windows: Iterable[str], where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows of these windows that match the filter `where`. If `columns` is given, return only these
        columns. A column that no run has written yet is null. A window that is not computed has no rows. Raises
        DamagedFile and LakeError."""
        table, wanted = self.table.current(), sorted(windows)
        schema = self.schema if columns is None else pa.schema(map(self.schema.field, columns))
        if table is None or not wanted:
            return schema.empty_table()
        stored = {column.name for column in table.schema().fields}
        known = pa.schema([column for column in schema if column.name in stored])
        rows = self.table.rows(table, known.names, where, wanted).cast(known)
        return pa.concat_tables([schema.empty_table(), rows], promote_options="default")

    def versions(self, windows: Iterable[str]) -> dict[str, int]:
        """Return the version of `heartbeats` from which each window was computed, according to its run's manifest. The
        version is -1 if the manifest cannot be read, for example after another tool has rewritten the window's files.
        Windows that are not computed are left out."""
        return {key: self._version(run) for key, run in self.runs(windows).items()}

    def runs(self, windows: Iterable[str] | None = None, at: DeltaTable | None = None) -> dict[str, str]:
        """Return the name of the run that wrote each window. Windows that are not computed are left out. `windows` are
        keys; None means all windows. `at` is the table, opened at some version; None means the newest version."""
        files = self.table.listed(at)
        if windows is not None:
            files = of_partitions(files, PARTITION, set(windows))
        keys, paths = (files[name].to_pylist() for name in (f"partition.{PARTITION}", "path"))
        return dict(zip(keys, map(run_of, paths), strict=True))

    def fence(self, windows: Iterable[str], *, as_open: bool = False) -> Fence:
        """Return the current files of these windows. With `as_open`, an open table is not updated first. Call this
        before the run lists its input. Raises InvalidSettings if the table's windows have a different length, and
        LakeError if a column has a different type."""
        table = self.table.current(as_open=as_open)
        self._refuse_other(table, self.schema)
        return self._files_by_window(set(windows), table)

    def _refuse_other(self, table: DeltaTable | None, schema: pa.Schema) -> None:
        if self._length is not None:
            refuse_other_length(self.table, table, self._length)
        there = stored_schema(pa.schema([] if table is None else table.schema().to_arrow()))
        for column in stored_schema(schema):
            if column.name in there.names and (stored := there.field(column.name).type) != column.type:
                raise LakeError(
                    f"the column {column.name} of {self.table.uri} has the type {stored} in the lake, but "
                    f"{column.type} in this run: restore the kind of the field in [message.fields], or cast the column "
                    "in the custom table's last select, or choose another name. Nothing was committed"
                )

    def place_of_run(self, run: str) -> str:
        """Return the path of a run's folder within the table. The folder is partitioned by window:
        `<folder>/window=<key>/<file>.parquet`."""
        return f"{RUNS_FOLDER}/{run}"

    def leave_manifest(self, run: DiffRun) -> None:
        """Write the run's manifest, which cannot be overwritten. Call this before `replace`."""
        self._manifests.create(run.name, run)

    def input_version(self, run: str) -> int | None:
        """Return the version of `heartbeats` that a run read; None if the run's manifest is gone or damaged."""
        with suppress(*UNREADABLE):
            return self.manifest(run).heartbeats_version
        return None

    def _version(self, run: str) -> int:
        version = self.input_version(run)
        return -1 if version is None else version

    def replace(self, run: DiffRun, fence: Fence, written: Iterable[NewFile]) -> Mapping[str, int]:
        """Replace the run's windows with the run's files, in one transaction. Returns the number of rows of each
        replaced window. A window is only replaced if it still has the files in `fence`; if not, another run has
        replaced it. If several runs compute a window concurrently, the rows of only one of them are visible.

        `written` are the run's files, at least one per window. A window without rows has an empty file, so that it
        counts as computed.

        Raises TableConflict, LakeError, and InvalidSettings (see `hold_to`). After an error, no file of this run is
        visible, unless only the response to the commit was lost, or only the sync after the commit failed.
        """
        added = self._by_window(run, written)
        self.table.make_files_durable(file.path for files in added.values() for file in files)
        lost_answer: LakeUnreachable | None = None
        for attempt in self.table.attempts(f"nothing of run {run.name} is visible: run it again"):
            refuse_old(self.table, to_us(run.started_at), to_us(self._clock.now()))
            try:
                self._refuse_other(self.table.current(as_open=True), self.schema)  # its error names the column
                table = self.table.complete(self.schema, as_open=attempt == 0)
                self._refuse_other(table, self.schema)  # checked again: another run may have changed the table
                now = self._files_by_window(set(added), table)
                done = [key for key, files in added.items() if not now[key].isdisjoint(file.path for file in files)]
                pending = [key for key in added if key not in done and now[key] == fence[key]]
                if pending:
                    new, old = (file for key in pending for file in added[key]), self.table.files(pending, table)
                    at_us, metadata = to_us(self._clock.now()), {"tidemark.run": run.name}
                    self.table.transact(table, [*new, *old], at_us, metadata)
            except TableConflict:
                self._clock.sleep(random.uniform(0, LONGEST_PAUSE_SECONDS))  # noqa: S311 (not for secrets)
            except LakeUnreachable as error:
                if lost_answer is not None:
                    raise
                lost_answer = error
            else:
                break
        if not pending:
            self.table.make_durable()  # an earlier attempt committed, but its response was lost before the sync
        return {key: sum(file.rows for file in added[key]) for key in [*done, *pending]}

    def forget(self, windows: Iterable[str]) -> None:
        """Remove the files of these windows from the table in one transaction. The windows then count as not computed.
        Raises TableConflict and LakeError."""
        table, forgotten = self.table.current(), set(windows)
        if table is not None and (files := self.table.files(forgotten, table)):
            self.table.transact(table, files, to_us(self._clock.now()), {FORGOT: str(len(forgotten))})

    def _files_by_window(self, windows: set[str], table: DeltaTable | None) -> dict[str, frozenset[str]]:
        found = by_partition(self.table.files(windows, table))
        return {key: frozenset(file.path for file in found.get(key, ())) for key in windows}

    def _by_window(self, run: DiffRun, written: Iterable[NewFile]) -> dict[str, list[NewFile]]:
        added: dict[str, list[NewFile]] = {key: [] for key in run.windows}
        for file in written:
            if file.partition not in added:
                raise LakeError(
                    f"run {run.name} wrote rows of the window {file.partition}, but was not asked to compute this "
                    "window; nothing was committed"
                )
            added[file.partition].append(file)
        if missing := [key for key, files in added.items() if not files]:
            raise LakeError(f"run {run.name} wrote nothing for {', '.join(missing)}; nothing was committed; run again")
        return added


def refuse_other_length(place: LakeTable, table: DeltaTable | None, length: timedelta) -> None:
    """Raise InvalidSettings if the table's windows do not have this length. A table with windows of two lengths would
    contain heartbeats twice. If the table lacks the property LENGTH, the length is derived from the starts of its
    windows."""
    if table is None or (there := noted_length(table)) == length:
        return
    if there is None:
        starts = sorted(start_of(partition[PARTITION]) for partition in table.partitions())
        there = min((later - earlier for earlier, later in pairwise(starts)), default=length)
        are_longer = there > length and len(starts) >= EVIDENT
        if not are_longer and not any((start - EPOCH) % length for start in starts):
            return
    asked, of = format_duration(length), "another length" if there == length else format_duration(there)
    raise InvalidSettings(
        f"the settings ask for windows of {asked}, but {place.uri} has windows of {of}, and a table must not have "
        "windows of two lengths. No window is computed until you restore the length in the settings, or start a new "
        "table: docs/reference/settings.md#another-window-length"
    )


def noted_length(table: DeltaTable) -> timedelta | None:
    """Return the length of a table's windows according to its property LENGTH; None if the table lacks it."""
    noted = table.metadata().configuration.get(LENGTH)
    return None if noted is None else parse_duration(noted)


def run_of(path: str) -> str:
    """Return the name of the run that wrote a file of a windowed table. `path` is the file's path within the table."""
    return path.split("/")[1]


FOLDER = "tables"
"""The folder of all custom tables in the lake."""


PARTS = (RUNS_FOLDER, "run", "version.digest", PARTITION, "file")
"""The parts of the path of a custom table's file, within the table. If another tool rewrites a file, the new path
does not have the same number of parts, and the window is recomputed."""


@dataclass(frozen=True, slots=True)
class Made:
    """The origin of a computed window of a custom table. `version` is the version of the table's definition, and `run`
    the run that wrote the window. `input` is a digest of the inputs of all windows of that run (see `digest_of`). These
    three are derived from the paths of the window's files. `rows` is the number of rows of the window."""

    version: str
    input: str
    run: str = ""
    rows: int = 0


class MadeWindows(dict[str, Made]):
    """The origin of each computed window of a custom table, by window key. The argument `inputs` is a function that
    reads a run's manifest, and returns the digest of each window's input."""

    def __init__(self, made: Mapping[str, Made], inputs: Callable[[str], Mapping[str, str]]) -> None:
        super().__init__(made)
        self._inputs = inputs

    def made_of(self, inputs: Mapping[str, str]) -> set[str]:
        """Return the keys of the windows whose input has not changed since they were computed. `inputs` contains the
        current digest of each window's input, by window key.

        If all windows of a run are unchanged, the digest in their files' paths shows it. Otherwise the run's manifest
        is read; several manifests are read in parallel. Raises LakeError.
        """
        by_run = defaultdict[tuple[str, str], dict[str, str]](dict)
        for key in self.keys() & inputs.keys():
            by_run[self[key].run, self[key].input][key] = inputs[key]
        whole = {run for run, now in by_run.items() if digest_of(now) == run[1]}
        found = set[str]().union(*(by_run[run] for run in whole))
        for run, noted in read_ahead(lambda run: self._inputs(run[0]), by_run.keys() - whole):
            found |= {key for key, digest in by_run[run].items() if noted.get(key) == digest}
        return found


class OwnTable(WindowedTable):
    """A custom table. Its columns are those that its runs have written."""

    def __init__(self, table: LakeTable, objects: ObjectStore, clock: Clock, name: str) -> None:
        super().__init__(table, objects, pa.schema([pa.field(PARTITION, pa.string())]), clock)
        self.name = name
        self._folder = ""

    def made(self) -> MadeWindows:
        """Return the origin of each computed window. Raises LakeError."""
        found = dict[str, Made]()
        for key, files in by_partition(self.table.files()).items():
            parts = files[-1].path.split("/")
            version, _, digest = (parts[2] if len(parts) == len(PARTS) else "").partition(".")
            found[key] = Made(version, digest, run_of(files[-1].path), sum(file.rows for file in files))
        return MadeWindows(found, self._inputs)

    def read(
        self, windows: Iterable[str], where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Like `WindowedTable.read`. Without `columns`, return all columns that the table has in the lake. Raises
        LakeError."""
        if (table := self.table.current()) is not None:
            self.schema = pa.schema(table.schema().to_arrow())
        return super().read(windows, where, columns)

    def prepare(self, schema: pa.Schema, version: str, inputs: Mapping[str, str]) -> None:
        """Set the columns and the folder of the next run. `schema` is a result of `stored_schema`, `version` is the
        version of the table's definition, and `inputs` contains the digest of each window's input. Raises
        InvalidSettings (see `hold_to`), and LakeError if a column already exists with a different type."""
        self._refuse_other(self.table.current(), schema)
        self.schema, self._folder = schema, f"{version}.{digest_of(inputs)}"

    def place_of_run(self, run: str) -> str:
        """Return the path of a run's folder within the table: `runs/<run>/<version>.<digest of inputs>`."""
        return f"{super().place_of_run(run)}/{self._folder}"

    def _inputs(self, run: str) -> Mapping[str, str]:
        """Return the digest of each window's input, from the run's manifest. If the manifest is gone or damaged, return
        an empty mapping, so that the windows are recomputed. Raises LakeError."""
        with suppress(*UNREADABLE):
            return self.manifest(run).inputs or {}
        return {}


def digest_of(inputs: Mapping[str, str]) -> str:
    """Combine the digests of several windows' inputs into one. `inputs` contains the digests by window key, in any
    order."""
    content = "\n".join(f"{key} {digest}" for key, digest in sorted(inputs.items()))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with the column types that Delta stores, nullable at all levels. Raises an error of the Delta
    library if Delta does not support a type."""
    stored = Schema.from_arrow(schema).to_json()
    return pa.schema(Schema.from_json(NOT_NULL.sub(r"\1true", stored)).to_arrow())

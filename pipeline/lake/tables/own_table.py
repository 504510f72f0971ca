"""A custom table, one partition per window. The paths of a window's files encode its origin; the run's manifest has the
rest."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import Schema

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import CorruptObject, LakeError, ObjectMissing
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.lake.tables.table import LakeTable, data_files
from tidemark.pipeline.lake.tables.windowed import PARTITION, RUNS_FOLDER, WindowedTable, run_of

FOLDER = "tables"
"""The folder of custom tables in the lake."""


PARTS = (RUNS_FOLDER, "run", "version.digest", PARTITION, "file")
"""The parts of a file's path in the table. Another tool that rewrites files puts them elsewhere: then their windows are
recomputed."""


@dataclass(frozen=True, slots=True)
class Made:
    """The origin of a window, derived from the paths of its files: the version of the table's definition, a digest of
    the inputs of all windows of the run (see `digest_of`), the run, and the window's row count."""

    version: str
    input: str
    run: str = ""
    rows: int = 0


class MadeWindows(dict[str, Made]):
    """The origin of each computed window, by key. `inputs` returns the digests that a run noted, by key."""

    def __init__(self, made: Mapping[str, Made], inputs: Callable[[str], Mapping[str, str]]) -> None:
        super().__init__(made)
        self._inputs = inputs

    def made_of(self, inputs: Mapping[str, str]) -> set[str]:
        """Return the keys of the windows that were computed from these inputs, given as digests by key.

        The paths suffice for a run that still owns all its windows, if none of their inputs has changed. The manifests
        of the other runs are read, several in parallel. Raises LakeError.
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
        """Return the origin of each computed window, by key. Raises LakeError."""
        found = dict[str, Made]()
        for file in data_files(self.table.current(), PARTITION):
            parts = file.path.split("/")
            version, _, digest = (parts[2] if len(parts) == len(PARTS) else "").partition(".")
            others = found[file.partition].rows if file.partition in found else 0
            found[file.partition] = Made(version, digest, run_of(file.path), file.rows + others)
        return MadeWindows(found, self._inputs)

    def read(
        self, windows: Iterable[str], where: pc.Expression | None = None, columns: Sequence[str] | None = None
    ) -> pa.Table:
        """Return the rows of these windows, given their keys; only those that `where` selects, and only `columns`, if
        given. Raises LakeError."""
        self.schema = self._stored() or self.schema
        return super().read(windows, where, columns)

    def twice(self, windows: Iterable[str], key: Sequence[str]) -> int:
        """Return the number of rows that repeat the key of another row in their window. Raises LakeError."""
        columns = [PARTITION, *key]
        rows = self.read(windows, columns=columns)
        return len(rows) - len(rows.group_by(columns, use_threads=False).aggregate([]))

    def prepare(self, schema: pa.Schema, version: str, inputs: Mapping[str, str]) -> None:
        """Set what a run is about to write: its columns, as `stored_schema` returns them, the version of the
        definition, and the digest of each window's input. Raises LakeError if a column has another type in the
        lake."""
        stored = self._stored()
        for column in schema:
            there = None if stored is None or column.name not in stored.names else stored.field(column.name).type
            if there not in (None, column.type):
                raise LakeError(
                    f"the column {column.name} of {self.name} is {there} in the lake, and would be {column.type} now: "
                    "cast it in the last select, or give the column or the table another name. Nothing was written"
                )
        self.schema, self._folder = schema, f"{version}.{digest_of(inputs)}"

    def place_of_run(self, run: str) -> str:
        """Return the folder of a run's files, as a path in the table: `<run's folder>/<version>.<digest of inputs>`."""
        return f"{super().place_of_run(run)}/{self._folder}"

    def _inputs(self, run: str) -> Mapping[str, str]:
        """Return the input digest of each window of a run from its manifest; nothing if that is gone or damaged, so
        that the windows are recomputed. Raises LakeError."""
        try:
            return self.manifest(run).inputs or {}
        except (ObjectMissing, CorruptObject):
            return {}

    def _stored(self) -> pa.Schema | None:
        table = self.table.current()
        return None if table is None else pa.schema(table.schema().to_arrow())


def digest_of(inputs: Mapping[str, str]) -> str:
    """Return one digest of the inputs of several windows, given as digests by key. Their order does not matter."""
    content = "\n".join(f"{key} {digest}" for key, digest in sorted(inputs.items()))
    return hashlib.blake2b(content.encode(), digest_size=8).hexdigest()


def stored_schema(schema: pa.Schema) -> pa.Schema:
    """Return the columns as a Delta table stores them. Raises an error of the library for an unsupported type."""
    return pa.schema(Schema.from_arrow(schema).to_arrow())

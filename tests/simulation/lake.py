"""A lake in memory that keeps its contract and fails: objects that are created once, and tables of files.

What fails before the write has done nothing; what fails after it has written, and only the answer is lost.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from tidemark.pipeline.errors import LakeUnreachable, ObjectExists, ObjectMissing
from tidemark.pipeline.lake.log import codec as log_codec
from tidemark.pipeline.lake.log import tracking_log
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.watermark.state import Entry, WatermarkState

Row = dict[str, Any]

RISK_OF_A_READ = 0.1
"""The risk of reading one entry, as a share of a step's. A restart reads dozens of entries, and gets through."""


class JudgedBy(NamedTuple):
    """What is below a watermark between these two, both included, is late, and nothing else. None: before the first."""

    at_least: datetime | None
    at_most: datetime | None


class Outside(Protocol):
    """Where a worker's calls go: each is a moment at which others run, time passes, or the worker dies."""

    def step(self, what: str, risk: float = 1.0) -> None:
        """The worker is about to do this, or has done it; `risk` is how likely it dies, beside other steps. Raises
        Crash."""
        ...

    def works(self) -> None:
        """The worker computes for a while."""
        ...

    def found_nothing_more(self) -> None:
        """The worker has looked for the entry after the newest one, or has listed the log."""
        ...

    late_rows: int

    @property
    def judges_by(self) -> JudgedBy:
        """The watermarks by which what the worker writes now may be judged."""
        ...

    def lake_fails(self, risk: float = 1.0) -> bool:
        """Whether the lake does not answer this time; `risk` as in a step."""
        ...


class Codec:
    """The tracking log's encoding: the real one, each content decoded once, or (much faster) one that keeps the
    entries themselves, which are values, and hands out a name for each."""

    def __init__(self, *, real: bool) -> None:
        self._real = real
        self._entries: dict[bytes, Entry] = {}

    def encode(self, entry: Entry, writer: str) -> bytes:
        """As `tidemark.pipeline.lake.log.codec.encode`."""
        if self._real:
            return log_codec.encode(entry, writer)
        content = f"{len(self._entries)} by {writer}".encode()
        self._entries[content] = entry
        return content

    def decode(self, content: bytes, name: str) -> Entry:
        """As `tidemark.pipeline.lake.log.codec.decode`."""
        if content not in self._entries:
            self._entries[content] = log_codec.decode(content, name)
        return self._entries[content]


class Folds:
    """Folding is pure, and many workers fold the same log: each step is done once."""

    def __init__(self) -> None:
        self._fold = WatermarkState.after
        self._done: dict[tuple[int, int, int], tuple[WatermarkState, WatermarkState, Entry]] = {}

    def after(self, state: WatermarkState, number: int, entry: Entry) -> WatermarkState:
        """As `WatermarkState.after`."""
        key = number, id(state) if state.number >= 0 else 0, id(entry)
        if key not in self._done:
            # With what it was made from: so that nothing else has its id.
            self._done[key] = self._fold(state, number, entry), state, entry
        return self._done[key][0]

    def forget(self) -> None:
        """The next fold begins anew."""
        self._done.clear()


class Objects:
    """The bucket: what all workers see. `on_create` is told of each new object, and `on_delete` of each that goes."""

    def __init__(self, on_create: Callable[[str, bytes], None], on_delete: Callable[[str], None]) -> None:
        self.contents: dict[str, bytes] = {}
        self.on_create = on_create
        self.on_delete = on_delete


class WorkersObjects:
    """The bucket as one worker reaches it: an `ObjectStore`."""

    def __init__(self, objects: Objects, outside: Outside) -> None:
        self._objects = objects
        self._outside = outside

    @property
    def uri(self) -> str:
        return "memory:"

    def create(self, name: str, content: bytes) -> None:
        self._outside.step(f"create {name}")
        fail_if(self._outside, f"{name} may not be there")
        if name in self._objects.contents:
            raise ObjectExists(f"{name} is there already")
        self._objects.contents[name] = content
        self._objects.on_create(name, content)
        self._outside.step(f"created {name}")
        fail_if(self._outside, f"{name} may be there")

    def read(self, name: str) -> bytes:
        self._outside.step("read an entry", RISK_OF_A_READ)
        fail_if(self._outside, f"{name} was not read", RISK_OF_A_READ)
        if name not in self._objects.contents:
            # An entry that has moved to an archive is missing too, but newer ones are there.
            if not any(other > name for other in self._objects.contents if other.startswith(tracking_log.FOLDER)):
                self._outside.found_nothing_more()
            raise ObjectMissing(f"there is no {name}")
        return self._objects.contents[name]

    def names(self, prefix: str) -> Iterator[str]:
        self._outside.step(f"list {prefix}")
        if prefix == tracking_log.FOLDER:
            self._outside.found_nothing_more()
        return iter(sorted(name for name in self._objects.contents if name.startswith(prefix)))

    def delete(self, name: str) -> None:
        """What was archived, and what somebody wrote in its place."""
        self._outside.step(f"delete {name}")
        fail_if(self._outside, f"{name} may still be there")
        self._objects.contents.pop(name, None)
        self._objects.on_delete(name)
        self._outside.step(f"deleted {name}")
        fail_if(self._outside, f"{name} may be gone")


class Written(NamedTuple):
    """The rows of a durable file, and the watermarks by which they may be judged late."""

    rows: list[Row]
    judged_by: JudgedBy


class Table:
    """A table whose version is how many transactions it has had. Each is whole or not there. `files` are all that were
    written, also those that no version lists. `on_add` is told of each file of a transaction, and `on_write` of each
    file."""

    def __init__(
        self, name: str, on_add: Callable[[str, Written, Outside], None], on_write: Callable[[list[Row]], None]
    ) -> None:
        self.name = name
        self.commits: list[list[Row]] = []
        self.files: dict[str, Written] = {}
        self.on_add = on_add
        self.on_write = on_write

    @property
    def version(self) -> int:
        """The newest version."""
        return len(self.commits)

    def rows(self, version: int | None = None, since: int = 0) -> list[Row]:
        """The rows of a version, or those that came after an earlier one."""
        return [row for commit in self.commits[since:version] for row in commit]


class WorkersNewFiles(NewFiles):
    """The table as one worker reaches it, who writes files apart from the transaction that adds them."""

    def __init__(self, table: Table, outside: Outside) -> None:
        self._in_memory = table
        self._outside = outside

    def write(self, rows: pa.Table) -> list[NewFile]:
        name, files = self._in_memory.name, self._in_memory.files
        self._outside.step(f"write a file of {name}")
        fail_if(self._outside, f"a file of {name} may not be there")
        path = f"{name}/{len(files)}"
        files[path] = Written(_rows(rows), self._outside.judges_by)
        self._in_memory.on_write(files[path].rows)
        self._outside.step(f"wrote {len(rows)} rows to {path}")
        fail_if(self._outside, f"{path} may be there")
        return [NewFile(path, "", len(rows), 0, {})]

    def add(self, files: Sequence[NewFile], says: Mapping[str, str]) -> None:  # noqa: ARG002
        if not files:
            return
        table = self._in_memory
        self._outside.step(f"add {len(files)} files to {table.name}")
        fail_if(self._outside, f"{table.name} may not have them")
        added = [table.files[file.path] for file in files]
        table.commits.append([row for one in added for row in one.rows])
        for one in added:
            table.on_add(table.name, one, self._outside)
        self._outside.step(f"added {len(table.commits[-1])} rows to {table.name}")
        fail_if(self._outside, f"{table.name} may have them")


def _rows(table: pa.Table) -> list[Row]:
    """Times as microseconds, which is what is compared."""
    columns = {
        name: (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column).to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def fail_if(outside: Outside, what: str, risk: float = 1.0) -> None:
    """Raise LakeUnreachable if it is time for it."""
    if outside.lake_fails(risk):
        raise LakeUnreachable(f"the lake did not answer: {what}")

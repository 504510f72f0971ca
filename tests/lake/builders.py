"""Short ways to write what lands in the lake."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.clock import ManualClock
from tests.watermark.builders import START, at
from tidemark.pipeline.compute.slices import Output, new_file
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import ObjectExists, ObjectMissing
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats, heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.lake.tables.quarantine import Quarantine, quarantine_rows
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.lake.tables.windowed import DiffRun, Fence, WindowedTable
from tidemark.pipeline.settings_sections import LakeSettings

LATER = 600.0
"""When everything lands and every run computes, in seconds from the start."""


class InMemory:
    """An `ObjectStore` that is quick to make, so that a kill at each write can be tried."""

    uri = "memory:"

    def __init__(self, contents: Mapping[str, bytes]) -> None:
        self.contents = dict(contents)

    def create(self, name: str, content: bytes) -> None:
        if name in self.contents:
            raise ObjectExists(name)
        self.contents[name] = content

    def read(self, name: str) -> bytes:
        if name not in self.contents:
            raise ObjectMissing(name)
        return self.contents[name]

    def names(self, prefix: str) -> Iterator[str]:
        return iter(sorted(name for name in self.contents if name.startswith(prefix)))

    def delete(self, name: str) -> None:
        self.contents.pop(name, None)


def version_of(heartbeats: Heartbeats) -> int | None:
    """The newest version, or None while nothing has landed."""
    table = heartbeats.current()
    return None if table is None else table.version()


@dataclass(frozen=True, slots=True)
class Beat:
    """A message that lands: times in seconds from the start, `values` by compared field."""

    stream_id: str
    event_time: float
    message_id: str = ""
    publisher_id: str | None = None
    publish_time: float | None = None
    late: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)


def columns_of(beats: Sequence[Beat], fields: Sequence[str] = ()) -> dict[str, list[Any]]:
    """The columns of landed messages."""
    return {
        "stream_id": [beat.stream_id for beat in beats],
        "event_time": [at(beat.event_time) for beat in beats],
        "publisher_id": [beat.publisher_id for beat in beats],
        "message_id": [beat.message_id or f"{beat.stream_id}@{beat.event_time}" for beat in beats],
        "publish_time": [at(beat.event_time + 1 if beat.publish_time is None else beat.publish_time) for beat in beats],
        "ordering_key": [None for _ in beats],
        "attributes": [[("stream_id", beat.stream_id)] for beat in beats],
        "payload": [b"{}" for _ in beats],
        "landed_at": [at(LATER) for _ in beats],
        "late": [beat.late for beat in beats],
        **{name: [beat.values.get(name) for beat in beats] for name in fields},
    }


def append(table: LakeTable, rows: pa.Table) -> None:
    """Add rows to a table, as landing does."""
    files = NewFiles(table, ManualClock(at(LATER)))
    files.add(files.write(rows), {})


def append_beats(heartbeats: Heartbeats, columns: Mapping[str, Sequence[Any]]) -> None:
    """Land messages that are given by column."""
    append(heartbeats, heartbeat_rows(columns, heartbeats.fields))


def append_rejected(quarantine: Quarantine, *messages: Mapping[str, Any]) -> None:
    """Quarantine messages; columns that are not given have their usual values."""
    usual = {
        "reason": "NO_STREAM_ID",
        "detail": "",
        "message_id": "m",
        "publish_time": START,
        "ordering_key": None,
        "attributes": [],
        "payload": b"{}",
        "landed_at": at(LATER),
    }
    append(quarantine, quarantine_rows({name: [({**usual, **one})[name] for one in messages] for name in usual}))


def lake_in(folder: Path, fields: Mapping[str, FieldKind] | None = None) -> Lake:
    """A lake in a local folder, whose clock stands still."""
    return lake_of(LakeSettings(uri=f"file:{folder}/lake"), fields)


def lake_of(settings: LakeSettings, fields: Mapping[str, FieldKind] | None = None) -> Lake:
    """A lake, whose clock stands still."""
    return Lake(settings, {} if fields is None else fields, ManualClock(at(LATER)))


def put(
    table: WindowedTable,
    name: str,
    rows: Mapping[str, Sequence[Mapping[str, Any]]] | Sequence[str],
    version: int = 0,
    now: datetime = START,
    fence: Fence | None = None,
) -> Mapping[str, int]:
    """What a run does that has read this version of `heartbeats`: rows of its windows, or windows without rows,
    committed in one transaction."""
    of_windows = rows if isinstance(rows, Mapping) else dict.fromkeys(rows, ())
    fence = table.fence(of_windows) if fence is None else fence
    run = DiffRun(name, sorted(of_windows), version, now, table._clock.now())
    with suppress(ObjectExists):  # one for both tables
        table.leave_manifest(run)
    return table.replace(run, fence, files_of(table, name, of_windows))


def files_of(table: WindowedTable, run: str, rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[NewFile]:
    """Write a file of these rows for each window, as a run's tasks do."""
    output = Output(table.files, table.place_of_run(run))
    of_windows = ((key, pa.Table.from_pylist(list(of_window), table.schema)) for key, of_window in rows.items())
    return [new_file(output.write(*of_window)) for of_window in of_windows]

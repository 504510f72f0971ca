"""The layout of a lake: the locations of its tables and log, and the factory of its parts."""

from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import Any, TypeVar

import pyarrow.fs as pafs

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.lake.failures import OF_TABLES, FailedRuns, FailedTicks
from tidemark.pipeline.lake.log.tracking_log import CHECKPOINT_EVERY, TrackingLog
from tidemark.pipeline.lake.owner import AcceptedSchemas
from tidemark.pipeline.lake.store.address import arrow_files, open_objects, storage_options, table_uri
from tidemark.pipeline.lake.store.admission import Admission, AdmittedObjects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables import corrections, heartbeats, quarantine, windowed
from tidemark.pipeline.lake.tables.diffs import STATUS, StreamStatus, diff_schema
from tidemark.pipeline.lake.tables.quarantine import JudgedBy, Rejudged, Requeued
from tidemark.pipeline.lake.tables.streams import Streams
from tidemark.pipeline.lake.tables.table import LakeTable, TablePlace, table_errors
from tidemark.pipeline.lake.tables.window_index import KeptWindows, WindowIndex
from tidemark.pipeline.lake.tables.windowed import OwnTable, WindowedTable
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.windows import Windowing

HEARTBEATS, QUARANTINE, HEARTBEAT_DIFFS = "heartbeats", "quarantine", "heartbeat_diffs"
STREAM_STATUS, STREAMS, CORRECTIONS = "stream_status", "streams", "corrections"
OWN_TABLES = windowed.FOLDER

PARTITIONS = {
    HEARTBEATS: heartbeats.PARTITION,
    QUARANTINE: quarantine.PARTITION,
    HEARTBEAT_DIFFS: windowed.PARTITION,
    STREAM_STATUS: windowed.PARTITION,
    STREAMS: "",
    CORRECTIONS: corrections.PARTITION,
}
"""The partition column of each table of the lake; empty if not partitioned."""


KEPT_BYTES = 64 << 20
"""Size of the cache for a table's files in a bucket: an hour of the design load. All checks then share one read."""

PAST_BYTES = 16 << 20
"""Size of the cache for past log entries: some hours of the design load."""

Part = TypeVar("Part")


@cache
def admission_to(settings: LakeSettings) -> Admission:
    """Return the check of the lake's formats. Each process has one per lake, so it reads the formats once."""
    return Admission(lambda: open_objects(settings))


class Lake:
    """The factory of a lake's parts. It makes no requests and keeps no state; a part has one user at a time. On first
    use, a part raises NewerFormat if a later version of tidemark has written the lake."""

    def __init__(self, settings: LakeSettings, fields: Mapping[str, FieldKind], clock: Clock) -> None:
        self._settings = settings
        self._fields = fields
        self._clock = clock

    def objects(self) -> ObjectStore:
        """Return the store of the lake's named objects."""
        return AdmittedObjects(open_objects(self._settings), admission_to(self._settings))

    def tracking_log(self, kept_bytes: int = 0) -> TrackingLog:
        """Return the numbered log of snapshots and decisions."""
        return TrackingLog(self.objects(), checkpoint_every=CHECKPOINT_EVERY, kept_bytes=kept_bytes, clock=self._clock)

    def heartbeats(self, kept_bytes: int = 0) -> heartbeats.Heartbeats:
        """Return the table of landed messages. `kept_bytes` is the size of a cache for a bucket's files: see
        BucketFiles."""
        return heartbeats.Heartbeats(self._place(HEARTBEATS, kept_bytes), self._fields)

    def quarantine(self, kept_bytes: int = 0) -> quarantine.Quarantine:
        """Return the table of rejected messages. `kept_bytes` is as for `heartbeats`."""
        return quarantine.Quarantine(self._place(QUARANTINE, kept_bytes), quarantine.PARTITION)

    def rejudged(self) -> Rejudged:
        """Return the new reasons of messages that a requeue rejected again."""
        return Rejudged(self.objects())

    def requeued(self) -> Requeued:
        """Return the notes of requeued messages."""
        return Requeued(self.objects())

    def accepted_schemas(self, of_settings: Iterable[str] = ()) -> AcceptedSchemas:
        """Return the schemas that messages may name."""
        return AcceptedSchemas(self.objects(), of_settings)

    def judged_by(self) -> JudgedBy:
        """Return the note of the contract by which quarantine was last judged."""
        return JudgedBy(self.objects())

    def diffs(self) -> WindowedTable:
        """Return the table `heartbeat_diffs`."""
        return WindowedTable(self.table(HEARTBEAT_DIFFS), self.objects(), diff_schema(self._fields), self._clock)

    def own_table(self, name: str) -> OwnTable:
        """Return a custom table."""
        return OwnTable(self.table(f"{OWN_TABLES}/{name}"), self.objects(), self._clock, name)

    def own_tables(self) -> list[str]:
        """Return the names of all custom tables in the lake, including those no longer in the settings. Raises
        LakeError."""
        files = arrow_files(self._settings, OWN_TABLES)
        with table_errors(table_uri(self._settings, OWN_TABLES)):
            found = files.get_file_info(pafs.FileSelector("", allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.Directory)

    def stream_status(self) -> StreamStatus:
        """Return the table `stream_status`: the streams that stopped, started or missed heartbeats, by window."""
        return StreamStatus(self.table(STREAM_STATUS), self.objects(), STATUS, self._clock)

    def streams(self) -> Streams:
        """Return the table of each stream's first and last heartbeat."""
        return Streams(self.table(STREAMS), self.table(HEARTBEAT_DIFFS))

    def corrections(self) -> corrections.Corrections:
        """Return the table of changes in recomputed windows."""
        return corrections.Corrections(self.table(CORRECTIONS), self.objects())

    def kept_windows(self, windowing: Windowing) -> KeptWindows:
        """Return the note of the first window whose input the lake keeps in full."""
        return KeptWindows(self.objects(), windowing)

    def failed_runs(self, own_table: str | None = None) -> FailedRuns:
        """Return the notes of the newest failed runs: those of a custom table, or all others."""
        return FailedRuns(self.objects(), own_table)

    def own_tables_with_failed_runs(self) -> list[str]:
        """Return the names of the custom tables with notes of failed runs. Raises LakeError."""
        return sorted({name.split("/")[1] for name in self.objects().names(OF_TABLES)})

    def failed_ticks(self) -> FailedTicks:
        """Return the notes of sensors whose ticks fail."""
        return FailedTicks(self.objects())

    def window_index(self, windowing: Windowing, lookback: timedelta) -> WindowIndex:
        """Return the index of windows with heartbeats, and of computed windows."""
        return WindowIndex(self.table(HEARTBEATS), self.table(HEARTBEAT_DIFFS), windowing, lookback)

    def table(self, name: str) -> LakeTable:
        """Return a table as a plain LakeTable. `name` is one of PARTITIONS, or `tables/NAME`."""
        return LakeTable(self._place(name), PARTITIONS.get(name, windowed.PARTITION))

    def by_window(self) -> list[str]:
        """Return the names of all windowed tables, in the form that `table` takes: diffs, status and custom tables.
        Raises LakeError."""
        return [HEARTBEAT_DIFFS, STREAM_STATUS, *(f"{OWN_TABLES}/{name}" for name in self.own_tables())]

    def _place(self, name: str, kept_bytes: int = 0) -> TablePlace:
        lake = self._settings
        files = arrow_files(lake, name, kept_bytes)
        return TablePlace(table_uri(lake, name), storage_options(lake), files, admission_to(lake))


class OpenLake(Lake):
    """A lake that keeps its log and tables open. Each method returns the same part every time, and a later read fetches
    only what is new. One user at a time."""

    def __init__(self, settings: LakeSettings, fields: Mapping[str, FieldKind], clock: Clock) -> None:
        super().__init__(settings, fields, clock)
        self._open: dict[str, Any] = {}

    def tracking_log(self, kept_bytes: int = PAST_BYTES) -> TrackingLog:
        return self._part("tracking", partial(super().tracking_log, kept_bytes))

    def heartbeats(self, kept_bytes: int = KEPT_BYTES) -> heartbeats.Heartbeats:
        return self._part(HEARTBEATS, partial(super().heartbeats, kept_bytes))

    def quarantine(self, kept_bytes: int = KEPT_BYTES) -> quarantine.Quarantine:
        return self._part(QUARANTINE, partial(super().quarantine, kept_bytes))

    def window_index(self, windowing: Windowing, lookback: timedelta) -> WindowIndex:
        return self._part(f"{windowing} {lookback}", partial(super().window_index, windowing, lookback))

    def table(self, name: str) -> LakeTable:
        if name == HEARTBEATS:
            return self.heartbeats()
        return self.quarantine() if name == QUARANTINE else self._part(name, partial(super().table, name))

    def _part(self, name: str, make: Callable[[], Part]) -> Part:
        if name not in self._open:
            self._open[name] = make()
        part: Part = self._open[name]
        return part

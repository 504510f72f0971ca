"""The layout of a lake: the names of its tables, and the classes that open its tables, its log and its other
objects."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TypeVar

import pyarrow.fs as pafs

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.failures import OF_TABLES, FailedRuns, FailedTicks
from tidemark.pipeline.lake.log.tracking_log import CHECKPOINT_EVERY, PastEntries, TrackingLog
from tidemark.pipeline.lake.owner import AcceptedSchemas
from tidemark.pipeline.lake.store.address import arrow_files, open_objects, table_uri
from tidemark.pipeline.lake.store.admission import check_format
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables import corrections, heartbeats, quarantine, windowed
from tidemark.pipeline.lake.tables.diffs import STATUS, StreamStatus, diff_schema
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.quarantine import JudgedBy, Quarantine, Rejudged, Requeued
from tidemark.pipeline.lake.tables.streams import Streams
from tidemark.pipeline.lake.tables.table import LakeTable, table_errors
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
"""The partition column of each built-in table. An empty string means that the table has no partitions."""

KEPT_BYTES = 64 << 20
"""Size in bytes of the cache for the files of a table in a bucket. It holds an hour of data of 10,000 streams, so that
the data checks read each file once."""

PAST_BYTES = 16 << 20
"""Maximum size in bytes of the cache for past log entries. With ticks of 10 s, the entries of an hour take 6 MB."""

Part = TypeVar("Part")


class Lake:
    """The parts of a lake: its tables, its log and its other objects.

    The methods make no requests, except those that return a list of names. The returned parts are not thread-safe. On
    its first use, a part raises NewerFormat if a later version of tidemark has written the lake.
    """

    kept_bytes = 0
    """Size in bytes of the cache for the files of `heartbeats` and of `quarantine` in a bucket (see BucketFiles)."""

    def __init__(
        self, settings: LakeSettings, fields: Mapping[str, FieldKind], clock: Clock, past: PastEntries | None = None
    ) -> None:
        """Prepare the lake. `past` is the cache for the entries of its log."""
        self._settings = settings
        self._fields = fields
        self._clock = clock
        self._past = past

    def objects(self) -> ObjectStore:
        """Return the store of the lake's objects."""
        return open_objects(self._settings, before=partial(check_format, self._settings))

    def tracking_log(self) -> TrackingLog:
        """Return the tracking log."""
        opened = partial(TrackingLog, checkpoint_every=CHECKPOINT_EVERY, past=self._past, clock=self._clock)
        return self._part("log", lambda: opened(self.objects()))

    def heartbeats(self) -> Heartbeats:
        """Return the table of landed messages."""
        return self._part(HEARTBEATS, lambda: Heartbeats(self._settings, HEARTBEATS, self._fields, self.kept_bytes))

    def quarantine(self) -> Quarantine:
        """Return the table of rejected messages."""
        by = PARTITIONS[QUARANTINE]
        return self._part(QUARANTINE, lambda: Quarantine(self._settings, QUARANTINE, by, self.kept_bytes))

    def rejudged(self) -> Rejudged:
        """Return the records of messages that a requeue rejected again, with their new reasons."""
        return Rejudged(self.objects())

    def requeued(self) -> Requeued:
        """Return the records of requeued messages."""
        return Requeued(self.objects())

    def accepted_schemas(self, of_settings: Iterable[str] = ()) -> AcceptedSchemas:
        """Return the Pub/Sub schemas that messages may have: `of_settings`, and the one that the lake has accepted, if
        any."""
        return AcceptedSchemas(self.objects(), of_settings)

    def judged_by(self) -> JudgedBy:
        """Return the record of the contract by which all messages in quarantine were last judged."""
        return JudgedBy(self.objects())

    def diffs(self) -> WindowedTable:
        """Return the table `heartbeat_diffs`."""
        parts = self.table(HEARTBEAT_DIFFS), self.objects(), diff_schema(self._fields), self._clock
        return self._part("diffs", lambda: WindowedTable(*parts))

    def own_table(self, name: str) -> OwnTable:
        """Return the custom table with this name."""
        parts = self.table(f"{OWN_TABLES}/{name}"), self.objects(), self._clock, name
        return self._part(f"own table {name}", lambda: OwnTable(*parts))

    def own_tables(self) -> list[str]:
        """Return the names of all custom tables in the lake, including those no longer in the settings. Raises
        LakeError."""
        files = arrow_files(self._settings, OWN_TABLES)
        with table_errors(table_uri(self._settings, OWN_TABLES)):
            found = files.get_file_info(pafs.FileSelector("", allow_not_found=True))
        return sorted(info.base_name for info in found if info.type == pafs.FileType.Directory)

    def stream_status(self) -> StreamStatus:
        """Return the table `stream_status`: for each window, the streams that stopped, started or missed heartbeats."""
        parts = self.table(STREAM_STATUS), self.objects(), STATUS, self._clock
        return self._part("status", lambda: StreamStatus(*parts))

    def streams(self) -> Streams:
        """Return the table of each stream's first and last heartbeat."""
        return Streams(self.table(STREAMS), self.table(HEARTBEAT_DIFFS), self._clock)

    def corrections(self) -> corrections.Corrections:
        """Return the table `corrections`: the rows that changed when windows were recomputed."""
        return corrections.Corrections(self.table(CORRECTIONS), self.objects(), self._clock)

    def kept_windows(self, windowing: Windowing) -> KeptWindows:
        """Return the record of the first window whose heartbeats are all kept: retention has deleted none of them."""
        return KeptWindows(self.objects(), windowing)

    def failed_runs(self, own_table: str | None = None) -> FailedRuns:
        """Return the records of failed runs of the custom table `own_table`. Without a name, return those of the runs
        that compute `heartbeat_diffs` or read the subscriptions."""
        return FailedRuns(self.objects(), own_table)

    def own_tables_with_failed_runs(self) -> list[str]:
        """Return the names of the custom tables with records of failed runs. Raises LakeError."""
        return sorted({name.split("/")[1] for name in self.objects().names(OF_TABLES)})

    def failed_ticks(self) -> FailedTicks:
        """Return the records of failed sensor ticks."""
        return FailedTicks(self.objects())

    def window_index(self, windowing: Windowing, name: str = HEARTBEAT_DIFFS) -> WindowIndex:
        """Return the index of the windows that have heartbeats or are computed in the table `name`."""
        tables = self.heartbeats(), self.table(name)
        return self._part(f"{name} {windowing}", lambda: WindowIndex(*tables, windowing))

    def table(self, name: str) -> LakeTable:
        """Return a table as a LakeTable. `name` is a key of PARTITIONS or, for a custom table, `tables/NAME`."""
        if name == HEARTBEATS:
            return self.heartbeats()
        if name == QUARANTINE:
            return self.quarantine()
        return self._part(name, lambda: LakeTable(self._settings, name, PARTITIONS.get(name, windowed.PARTITION)))

    def by_window(self) -> list[str]:
        """Return the names of all windowed tables: `heartbeat_diffs`, `stream_status`, and `tables/NAME` for each
        custom table. Raises LakeError."""
        return [HEARTBEAT_DIFFS, STREAM_STATUS, *(f"{OWN_TABLES}/{name}" for name in self.own_tables())]

    def _part(self, name: str, make: Callable[[], Part]) -> Part:  # noqa: ARG002 (for OpenLake)
        return make()


class OpenLake(Lake):
    """A lake whose tables, log and window index are opened only once. Later calls use the open ones, which read only
    what is new. Not thread-safe."""

    kept_bytes = KEPT_BYTES

    def __init__(
        self, settings: LakeSettings, fields: Mapping[str, FieldKind], clock: Clock, past: PastEntries | None = None
    ) -> None:
        super().__init__(settings, fields, clock, past or PastEntries(PAST_BYTES, clock))
        self._open = Kept()

    def _part(self, name: str, make: Callable[[], Part]) -> Part:
        return self._open.get(name, make)

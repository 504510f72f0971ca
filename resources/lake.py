"""The lake as a Dagster resource."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import dagster as dg

from tidemark.local.services.ownership import Ownership
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.progress import BacklogWatch
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.ingest.signals import signals_of
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.log.watermark_object import WatermarkObject
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.own_table import OwnTable
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.lake.tables.window_index import KeptWindows, WindowIndex
from tidemark.pipeline.lake.tables.windowed import WindowedTable
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.quality.late import LateHeartbeats
from tidemark.pipeline.quality.missed.staleness import Staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.state import WatermarkState

Part = TypeVar("Part")

PAST_BYTES = 16 << 20
"""Past entries that are kept: some hours of the design load."""

NEWEST_FOLD = "newest fold"
"""Its key among what the process keeps."""

FOLDS_SERVE = 2
"""The number of ticks for which the fold of a tracking tick serves those who need no newer one."""


@dataclass
class NewestFold:
    """The log's fold as one thread has left it, and when; others read it. A state never changes."""

    noted: tuple[WatermarkState, datetime] | None = None


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The parts of the lake. They are not shared between threads: each `user` gets its own, kept between ticks."""

    settings: dg.ResourceDependency[Settings]
    kept: dg.ResourceDependency[Kept]
    clock: dg.ResourceDependency[Clock]

    def whole(self) -> Lake:
        """The factory of all parts, which keeps none of them."""
        return Lake(self.settings.lake, self.settings.message.kinds, self.clock)

    def ownership(self) -> Ownership:
        """This process' hold on the lake, which all of its users share."""
        return self.kept.get("ownership", lambda: Ownership(self.settings, self.clock))

    def tracking_log(self, user: str) -> TrackingLog:
        """The numbered log of snapshots and decisions, with its live histogram."""
        return self._part(user, Lake.tracking_log)

    def watermark(self) -> datetime | None:
        """The watermark of the newest decision, for a run."""
        decided = self.tracking_log("run").newest().record
        return None if decided is None else decided.decision.watermark

    def watch(self) -> BacklogWatch:
        """The progress of both backlogs, as this process has seen it."""
        return self.kept.get("watch", BacklogWatch)

    def signals(self, user: str) -> Sequence[WatermarkObject]:
        """The places outside that are told the newest decision, with what this user has told."""
        return self._part(user, lambda lake: signals_of(self.settings, lake), "signals")

    def past(self, user: str) -> TrackingLog:
        """The log for looking at past entries again and again, each of which is read once."""
        return self._part(user, lambda lake: lake.tracking_log(PAST_BYTES), "past")

    def folded(self, state: WatermarkState) -> None:
        """Note the log's fold as a tick of `tracking` has left it."""
        self.kept.get(NEWEST_FOLD, NewestFold).noted = state, self.clock.now()

    def state(self, user: str) -> WatermarkState:
        """The log's fold as of the last tick of `tracking`; read by this user if that is long ago, or was elsewhere.
        Raises as `TrackingLog.catch_up`."""
        noted, now = self.kept.get(NEWEST_FOLD, NewestFold).noted, self.clock.now()
        if noted is not None and now - noted[1] <= FOLDS_SERVE * self.settings.watermark.tick:
            return noted[0]
        return self.tracking_log(user).catch_up()

    def heartbeats(self, user: str) -> Heartbeats:
        """Landed messages."""
        return self._part(user, Lake.heartbeats)

    def quarantine(self, user: str) -> Quarantine:
        """Rejected messages."""
        return self._part(user, Lake.quarantine)

    def new_files(self, user: str) -> tuple[NewFiles, NewFiles]:
        """`heartbeats` and `quarantine` as those see them who write their files."""
        return self._part(user, lambda lake: new_files(lake, self.clock), "new files")

    def judge(self, user: str) -> HeartbeatReader:
        """The reader that judges messages by the settings, with the schemas that it has read."""
        names = self.settings.message.schema_names
        return self._part(
            user,
            lambda lake: reader_of(self.settings.contract, self.settings.pubsub, lake.accepted_schemas(names)),
            "judge",
        )

    def diffs(self, user: str) -> WindowedTable:
        """Computed windows."""
        return self._part(user, Lake.diffs)

    def own_table(self, user: str, name: str) -> OwnTable:
        """One of the tables of `[tables]`, or given by `tables`."""
        return self._part(user, lambda lake: lake.own_table(name), f"tables/{name}")

    def staleness(self, user: str) -> Staleness:
        """The check of missed heartbeats, which goes on from the checkpoint that the lake keeps."""
        windowing, lookback = self.settings.windowing, self.settings.windows.lookback
        return self._part(user, lambda lake: Staleness.restored(lake, windowing, lookback), "staleness")

    def late(self, user: str) -> LateHeartbeats:
        """Heartbeats whose first landing was below the watermark."""
        landed = self.staleness(user).heartbeats
        return self._part(user, lambda _: LateHeartbeats(landed, self.settings.windowing), "late")

    def window_index(self, user: str) -> WindowIndex:
        """The index of the windows that hold heartbeats, and of those that are computed."""
        windowing, lookback = self.settings.windowing, self.settings.windows.lookback
        tables = self.heartbeats(user), self.diffs(user).table
        return self._part(user, lambda _: WindowIndex(*tables, windowing, lookback), "window_index")

    def kept_windows(self) -> KeptWindows:
        """The first window whose input the lake still keeps."""
        return self.whole().kept_windows(self.settings.windowing)

    def _part(self, user: str, make: Callable[[Lake], Part], name: str = "") -> Part:
        return self.kept.get((user, name or make.__name__), lambda: make(self.whole()))

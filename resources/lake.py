"""The lake as a Dagster resource."""

from collections.abc import Callable
from typing import TypeVar

import dagster as dg

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.diffs import HeartbeatDiffs
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.kept_windows import KeptWindows
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.lake.tables.window_index import WindowIndex
from tidemark.pipeline.quality.late import LateHeartbeats
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.settings import Settings

Part = TypeVar("Part")


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The parts of the lake. They are not shared between threads: each `user` gets its own, kept between ticks."""

    settings: dg.ResourceDependency[Settings]
    kept: dg.ResourceDependency[Kept]
    clock: dg.ResourceDependency[Clock]

    def whole(self) -> Lake:
        """The factory of all parts, which keeps none of them."""
        return Lake(self.settings.lake, self.settings.message.fields, self.clock)

    def tracking_log(self, user: str) -> TrackingLog:
        """The numbered log of snapshots and decisions, with its live histogram."""
        return self._part(user, Lake.tracking_log)

    def heartbeats(self, user: str) -> Heartbeats:
        """Landed messages."""
        return self._part(user, Lake.heartbeats)

    def quarantine(self, user: str) -> Quarantine:
        """Rejected messages."""
        return self._part(user, Lake.quarantine)

    def diffs(self, user: str) -> HeartbeatDiffs:
        """Computed windows."""
        return self._part(user, Lake.diffs)

    def staleness(self, user: str) -> Staleness:
        """The check of missed heartbeats, which goes on from the checkpoint that the lake keeps."""
        windowing, lookback = self.settings.windowing, self.settings.windows.lookback
        return self._part(user, lambda lake: Staleness.restored(lake, windowing, lookback), "staleness")

    def late(self, user: str) -> LateHeartbeats:
        """Heartbeats whose first landing was below the watermark."""
        return self._part(user, lambda lake: LateHeartbeats(lake, self.settings.windowing), "late")

    def window_index(self, user: str) -> WindowIndex:
        """Which windows hold heartbeats, and which are computed."""
        windowing, lookback = self.settings.windowing, self.settings.windows.lookback
        return self._part(user, lambda lake: lake.window_index(windowing, lookback), "window_index")

    def kept_windows(self) -> KeptWindows:
        """The first window whose input the lake still keeps."""
        return self.whole().kept_windows(self.settings.windowing)

    def _part(self, user: str, make: Callable[[Lake], Part], name: str = "") -> Part:
        return self.kept.get((user, name or make.__name__), lambda: make(self.whole()))

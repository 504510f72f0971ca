"""The lake as a Dagster resource."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

import dagster as dg

from tidemark.local.services.ownership import Ownership
from tidemark.pipeline.clock import Clock, is_recent
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.progress import BacklogWatch
from tidemark.pipeline.ingest.settle import judge_of, new_files
from tidemark.pipeline.ingest.signals import signals_of
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import PAST_BYTES, OpenLake
from tidemark.pipeline.lake.log.notes import WatermarkObject
from tidemark.pipeline.lake.log.tracking_log import PastEntries, TrackingLog
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.window_index import KeptWindows, WindowIndex
from tidemark.pipeline.quality.landings import LateHeartbeats
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.state import WatermarkState

Part = TypeVar("Part")

NEWEST_FOLD = "newest fold"
"""The key of the NewestFold in `LakeResource.kept`."""

FOLDS_SERVE = 2
"""Number of tick intervals for which other sensors reuse the WatermarkState of the sensor `tracking`."""


@dataclass
class NewestFold:
    """The WatermarkState after the last tick of the sensor `tracking`, and the time of the tick. One thread writes it
    and others read it, which is safe because a WatermarkState never changes."""

    noted: tuple[WatermarkState, datetime] | None = None


class LakeResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The parts of the lake, such as its tables. Each `user` (such as a sensor) gets its own objects, so that threads
    share none. The objects are kept between ticks."""

    settings: dg.ResourceDependency[Settings]
    kept: dg.ResourceDependency[Kept]
    clock: dg.ResourceDependency[Clock]

    def of(self, user: str) -> OpenLake:
        """Return the user's own OpenLake, with open tables, an open log and a window index. All calls with the same
        `user` return the same object. All users share the cache of log entries."""
        past = self.kept.get("past entries", lambda: PastEntries(PAST_BYTES, self.clock))
        given = self.settings.lake, self.settings.message.kinds, self.clock, past
        return self.kept.get((user, "lake"), lambda: OpenLake(*given))

    def ownership(self) -> Ownership:
        """Return this process's ownership of the lake. All users share it."""
        return self.kept.get("ownership", lambda: Ownership(self.settings, self.clock))

    def tracking_log(self, user: str) -> TrackingLog:
        """Return the log of tracking snapshots and decisions."""
        log = self.of(user).tracking_log()
        if (noted := self.kept.get(NEWEST_FOLD, NewestFold).noted) is not None:
            log.saw(noted[0])
        return log

    def watermark(self) -> datetime | None:
        """Return the current watermark, or None if there is none yet. For runs, not for sensors."""
        return self.tracking_log("run").newest().watermark

    def watch(self) -> BacklogWatch:
        """Return this process's observations of the progress of both backlogs."""
        return self.kept.get("watch", BacklogWatch)

    def signals(self, user: str) -> Sequence[WatermarkObject]:
        """Return the outlets that publish a decision: `watermark.json` and the signal topic. Each outlet remembers what
        it has published for this user."""
        return self._part(user, "signals", lambda lake: signals_of(self.settings, lake))

    def folded(self, state: WatermarkState) -> None:
        """Store the WatermarkState after a tick of the sensor `tracking`, for other sensors."""
        self.kept.get(NEWEST_FOLD, NewestFold).noted = state, self.clock.now()

    def has_folded(self) -> bool:
        """Return True after the first tick of the sensor `tracking` in this process."""
        return self.kept.get(NEWEST_FOLD, NewestFold).noted is not None

    def state(self, user: str) -> WatermarkState:
        """Return the WatermarkState after the last tick of the sensor `tracking`. If the tick is too old or ran in
        another process, read the state from the tracking log. Raises the errors of `TrackingLog.catch_up`."""
        noted, now = self.kept.get(NEWEST_FOLD, NewestFold).noted, self.clock.now()
        if noted is not None and is_recent(noted[1], now, FOLDS_SERVE * self.settings.watermark.tick):
            return noted[0]
        return self.tracking_log(user).catch_up()

    def new_files(self, user: str) -> tuple[NewFiles, NewFiles]:
        """Return the writers that add files to `heartbeats` and `quarantine`."""
        return self._part(user, "new files", lambda lake: new_files(lake, self.clock))

    def judge(self, user: str) -> HeartbeatReader:
        """Return the reader that judges messages by the settings. It caches schemas."""
        return self._part(user, "judge", lambda lake: judge_of(self.settings, lake))

    def staleness(self, user: str) -> Staleness:
        """Return the check for missed heartbeats, restored from its checkpoint in the lake."""
        return self._part(user, "staleness", lambda lake: Staleness(lake, self.settings.windowing))

    def late(self, user: str) -> LateHeartbeats:
        """Return the counter of late heartbeats."""
        return self._part(user, "late", lambda lake: LateHeartbeats(lake.heartbeats(), self.settings.windowing))

    def window_index(self, user: str) -> WindowIndex:
        """Return the index of windows that have heartbeats, and of windows that are computed."""
        return self.of(user).window_index(self.settings.windowing)

    def kept_windows(self, user: str) -> KeptWindows:
        """Return the retention boundary: the first window for which the lake still has the full input."""
        return self.of(user).kept_windows(self.settings.windowing)

    def _part(self, user: str, name: str, make: Callable[[OpenLake], Part]) -> Part:
        return self.kept.get((user, name), lambda: make(self.of(user)))

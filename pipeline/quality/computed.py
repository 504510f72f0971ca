"""How far a window has come, from open to computed, and waiting until its rows are there."""

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.gate import LOOK_EVERY_SECONDS
from tidemark.pipeline.settings_sections import WindowSettings
from tidemark.pipeline.windows import Window, Windowing


class Stage(StrEnum):
    """How far a window has come."""

    TOO_EARLY = "too early"
    OPEN = "open"
    WAITING = "waiting"
    COMPUTED = "computed"
    EMPTY = "nothing to compute"
    EXPIRED = "expired"

    @property
    def passes(self) -> bool:
        """Whether time alone may change it."""
        return self in (Stage.OPEN, Stage.WAITING)


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """Tells how far windows of a lake have come. Each further look reads what is new, if the lake is an OpenLake."""

    lake: Lake
    windowing: Windowing
    windows: WindowSettings

    def stage(self, window: Window) -> Stage:
        """How far a window has come. One that is closed is EMPTY if no run will be asked for it: neither it nor its
        lookback holds a heartbeat, and it did not close live after one. Raises LakeError."""
        # In this order: below the watermark every heartbeat is in the table, and an expiry is noted before any goes.
        watermark = self.lake.tracking_log().newest_watermark()
        index = self.lake.window_index(self.windowing, self.windows.lookback).update()
        number = self.windowing.number_of(window.start)
        if number in index.computed:
            return Stage.COMPUTED
        if window.start < self.windowing.first:
            return Stage.TOO_EARLY
        if not window.is_closed_at(watermark):
            return Stage.OPEN
        closed = self.lake.kept_windows(self.windowing).closed(watermark)
        if number not in closed:
            return Stage.EXPIRED
        return Stage.WAITING if any(number in stretch for stretch in index.due(closed)) else Stage.EMPTY

    def wait_for(self, window: Window, timeout: timedelta, clock: Clock) -> Stage:
        """The stage of a window once time alone does not change it, or as it is after the timeout. Raises LakeError."""
        ends = clock.monotonic() + timeout.total_seconds()
        while (stage := self.stage(window)).passes and (left := ends - clock.monotonic()) > 0:
            clock.sleep(min(left, LOOK_EVERY_SECONDS))
        return stage


def words(stage: Stage, window: Window) -> str:
    """How far a window has come, and what to do if its rows are wanted."""
    key = window.key
    waits = f"`tidemark watermark --wait-for {key} --computed` waits for its rows"
    return {
        Stage.TOO_EARLY: f"window {key} begins before windows.first, so it is never computed",
        Stage.OPEN: f"the watermark has not passed window {key}, so it is not computed; {waits}",
        Stage.WAITING: f"window {key} is closed and not computed yet; {waits}, and `tidemark status` tells what fails",
        Stage.COMPUTED: f"window {key} is computed; `tidemark diffs --window {key}` prints its rows",
        Stage.EMPTY: f"window {key} is closed, and there is nothing to compute: it holds no heartbeat",
        Stage.EXPIRED: f"window {key} is not computed and will not be: housekeeping has removed heartbeats that it is "
        "computed from",
    }[stage]

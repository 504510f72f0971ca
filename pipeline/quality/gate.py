"""The watermark as a gate for other systems: its value, its reason, and the progress of windows. Reads only the
lake."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

from tidemark.pipeline.clock import EPOCH, Clock, SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import WindowSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.windows import Window, Windowing

LOOK_EVERY_SECONDS = 5.0
"""The poll interval while waiting: half of the default tick."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A lake's watermark. It never goes back, so a closed window stays closed.

    `event_time` is aware and in UTC; None until there is a watermark. Under the assumptions of the method, no heartbeat
    below it will still land in this lake. `decision` is the newest decision, None before the first. `lake` is the
    lake's address.
    """

    lake: str
    event_time: datetime | None
    decision: Decision | None
    windowing: Windowing

    @property
    def reason(self) -> Reason | None:
        """The reason of the newest decision."""
        return None if self.decision is None else self.decision.reason

    @property
    def decided_at(self) -> datetime | None:
        """The time of the newest decision. A running pipeline decides every tick: if this is old, the pipeline has
        stopped."""
        return None if self.decision is None else self.decision.at

    @property
    def newest_closed(self) -> Window | None:
        """The newest of the pipeline's windows that the watermark has passed; None before the first."""
        if self.event_time is None:
            return None
        window = self.windowing.numbered(self.windowing.number_of(self.event_time) - 1)
        return window if window.start >= self.windowing.first else None

    def has_reached(self, event_time: datetime) -> bool:
        """True if every heartbeat below `event_time` has landed. Raises ValueError for a time without a zone."""
        if event_time.tzinfo is None:
            raise ValueError(f"{event_time} has no time zone")
        return self.event_time is not None and event_time <= self.event_time

    def is_closed(self, window: str | datetime) -> bool:
        """True if the watermark has passed a window, given by its key (`2026-11-21T05-20Z`) or by its end. Raises
        ValueError for a text that is not a window's key and for a time without a zone."""
        return self.has_reached(self.windowing.named(window).end if isinstance(window, str) else window)

    def sentence(self) -> str:
        """Describe the newest decision and its reason in one sentence."""
        if self.decision is None:
            return f"no decision has been made in {self.lake} yet"
        return self.decision.sentence()


class WatermarkReader:
    """Polls the watermark of one lake. Not thread-safe."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._log = Lake(settings.lake, settings.message.kinds, clock).tracking_log()
        self._lake, self._windowing, self._clock = settings.lake.uri, settings.windowing, clock

    def read(self) -> Watermark:
        """Read the current watermark. Raises LakeError: CorruptObject for a damaged entry, NewerFormat for a newer
        lake."""
        reached, record = self._log.newest().watermark, self._log.newest().record
        decision = None if record is None else record.decision
        known = (reached, None if decision is None else decision.watermark)  # a decision may come in between
        event_time = max((moment for moment in known if moment is not None), default=None)
        return Watermark(self._lake, event_time, decision, self._windowing)

    def wait_for(self, event_time: datetime, timeout: timedelta) -> Watermark:
        """Wait until the watermark has reached the event time or the timeout is over, and return the watermark. Raises
        like `read`."""
        _wait(lambda: event_time <= (self._log.newest().watermark or EPOCH), timeout, self._clock)
        return self.read()


def read_watermark(config: str | Path | None = None, *, name: str | None = None) -> Watermark:
    """Read the watermark of a pipeline from its lake: one or two listings and a few reads.

    `config` is the settings file; by default `$TIDEMARK_CONFIG`, or `tidemark.toml` in the current folder. `name` is as
    for `tidemark.dagster.pipeline`. Before the first decision, `event_time` is None and no window is closed. Raises
    InvalidSettings; LakeError if the lake does not answer, is damaged, or was written by a later version.
    """
    settings = load_settings(None if config is None else Path(config), name=name)
    return WatermarkReader(settings, SystemClock()).read()


class Stage(StrEnum):
    """The progress of a window."""

    TOO_EARLY = "too early"
    OPEN = "open"
    WAITING = "waiting"
    COMPUTED = "computed"
    EMPTY = "nothing to compute"
    EXPIRED = "expired"

    @property
    def passes(self) -> bool:
        """True if the stage may still change by itself."""
        return self in (Stage.OPEN, Stage.WAITING)


@dataclass(frozen=True, slots=True)
class WindowProgress:
    """Follows the progress of a lake's windows. If the lake is an OpenLake, later calls read only what is new."""

    lake: Lake
    windowing: Windowing
    windows: WindowSettings

    def stage(self, window: Window) -> Stage:
        """Return a window's progress. A closed window is EMPTY if no run will be requested for it: it would have no
        rows, and it is not live (`tidemark.pipeline.windows.due`). Raises LakeError."""
        # Read in this order: every heartbeat below the watermark is in the table, and an expiry is noted before any
        # heartbeat is removed.
        watermark = self.lake.tracking_log().newest().watermark
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
        """Wait until a window's stage no longer changes by itself or the timeout is over, and return the stage. Raises
        LakeError."""
        _wait(lambda: not self.stage(window).passes, timeout, clock)
        return self.stage(window)


def _wait(is_reached: Callable[[], bool], timeout: timedelta, clock: Clock) -> None:
    ends = clock.monotonic() + timeout.total_seconds()
    while not is_reached() and (left := ends - clock.monotonic()) > 0:
        clock.sleep(min(left, LOOK_EVERY_SECONDS))


def words(stage: Stage, window: Window) -> str:
    """Describe a window's progress, and how to get its rows."""
    key = window.key
    waits = f"`tidemark watermark --wait-for {key} --computed` waits for its rows"
    return {
        Stage.TOO_EARLY: f"window {key} begins before windows.first, so it is never computed",
        Stage.OPEN: f"the watermark has not passed window {key}, so it is not computed; {waits}",
        Stage.WAITING: f"window {key} is closed but not computed yet; {waits}, and `tidemark status` shows what fails",
        Stage.COMPUTED: f"window {key} is computed; `tidemark diffs --window {key}` prints its rows",
        Stage.EMPTY: f"window {key} is closed, and there is nothing to compute: it holds no heartbeat",
        Stage.EXPIRED: f"window {key} is not computed and will not be: housekeeping has removed heartbeats that it is "
        "computed from",
    }[stage]

"""Lets other systems read the watermark, wait until it passes a time, or wait until a window is computed. Reads only
the lake."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.windows import Window, Windowing

Seen = TypeVar("Seen")

LOOK_EVERY_SECONDS = 5.0
"""Number of seconds between two reads of the lake while waiting: half of the default tick interval."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """The watermark of a lake. A watermark never goes back, so a closed window stays closed.

    `event_time` is the watermark itself, in UTC; None before the first watermark. Under the assumptions of the method,
    no heartbeat with an earlier event time is still to come. `decision` is the newest decision; None before the first
    one. `lake` is the lake's address.
    """

    lake: str
    event_time: datetime | None
    decision: Decision | None
    windowing: Windowing

    @property
    def reason(self) -> Reason | None:
        """The reason of the newest decision; None before the first one."""
        return None if self.decision is None else self.decision.reason

    @property
    def decided_at(self) -> datetime | None:
        """The time of the newest decision; None before the first one. A running pipeline decides at every tick, so an
        old decision means that the pipeline has stopped."""
        return None if self.decision is None else self.decision.at

    @property
    def newest_closed(self) -> Window | None:
        """The newest closed window; None if the watermark has not passed any window since `windows.first` yet."""
        if self.event_time is None:
            return None
        window = self.windowing.numbered(self.windowing.number_of(self.event_time) - 1)
        return window if window.start >= self.windowing.first else None

    def has_reached(self, event_time: datetime) -> bool:
        """Return True if the watermark has reached `event_time`. In this case, if the disorder is within the band,
        every earlier heartbeat has landed (with `pubsub.attach`: has been acknowledged). Raises ValueError if
        `event_time` has no time zone."""
        if event_time.tzinfo is None:
            raise ValueError(f"{event_time} has no time zone; pass a datetime with one, such as UTC")
        return self.event_time is not None and event_time <= self.event_time

    def is_closed(self, window: str | datetime) -> bool:
        """Return True if the watermark has passed a window, given by its key (`2026-11-21T05-20Z`) or by its end.
        Raises ValueError for a string that is not a window's key, and for a time without a time zone."""
        return self.has_reached(self.windowing.named(window).end if isinstance(window, str) else window)

    def sentence(self) -> str:
        return f"no decision has been made in {self.lake} yet" if self.decision is None else self.decision.sentence()


def watermark_of(lake: Lake, settings: Settings) -> Watermark:
    """Read the current watermark. If `lake` is an OpenLake, each call reads only what is new. Raises LakeError,
    including CorruptObject if a log entry is damaged or the log is lost, and NewerFormat if a later version of tidemark
    has written the lake."""
    log = lake.tracking_log()
    newest = log.newest()
    if newest.record is None:
        log.catch_up_to_append()
    decision = None if newest.record is None else newest.record.decision
    return Watermark(settings.lake.uri, newest.watermark, decision, settings.windowing)


def read_watermark(config: str | Path | None = None, *, name: str | None = None) -> Watermark:
    """Read the watermark of a pipeline from its lake. Costs one or two listings and a few reads.

    `config` is the settings file; the default is `$TIDEMARK_CONFIG`, or else `tidemark.toml` in the current folder.
    `name` has the same meaning as in `tidemark.dagster.pipeline`. Before the first decision, `event_time` is None
    and no window is closed. Raises InvalidSettings, and LakeError if the lake is unreachable, damaged, or written by a
    later version of tidemark.
    """
    settings = load_settings(None if config is None else Path(config), name=name)
    return watermark_of(Lake(settings.lake, settings.message.kinds, SystemClock()), settings)


class Stage(StrEnum):
    """The stage of a window, from not closed to computed. The function `words` describes a stage."""

    TOO_EARLY = "too early"
    OPEN = "open"
    WAITING = "waiting"
    COMPUTED = "computed"
    EMPTY = "nothing to compute"
    EXPIRED = "expired"

    @property
    def passes(self) -> bool:
        """True if a running pipeline moves the window from this stage to another one."""
        return self in (Stage.OPEN, Stage.WAITING)


def stage_of(window: Window, lake: Lake, settings: Settings) -> Stage:
    """Return the stage of a window. EMPTY means: the window is closed and has no rows, so it will not be computed.
    Recent windows are computed even without rows (see `tidemark.pipeline.windows.due`). If `lake` is an OpenLake, each
    call reads only the changes since the last call. Raises LakeError, and InvalidSettings (see WindowIndex)."""
    # The order of the reads matters. The watermark comes before the table, which then has every heartbeat below it.
    # The kept windows come last, because their note is written before any heartbeat is deleted.
    windowing, watermark = settings.windowing, lake.tracking_log().newest().watermark
    index = lake.window_index(windowing).update()
    number = windowing.number_of(window.start)
    if number in index.computed:
        return Stage.COMPUTED
    if window.start < windowing.first:
        return Stage.TOO_EARLY
    if not window.is_closed_at(watermark):
        return Stage.OPEN
    closed = lake.kept_windows(windowing).closed(watermark)
    if number not in closed:
        return Stage.EXPIRED
    return Stage.WAITING if any(number in stretch for stretch in index.due(closed)) else Stage.EMPTY


def wait_until(look: Callable[[], Seen], is_done: Callable[[Seen], bool], timeout: timedelta, clock: Clock) -> Seen:
    """Call `look` every LOOK_EVERY_SECONDS until `is_done` accepts its result or the timeout is over. Return the last
    result."""
    ends = clock.monotonic() + timeout.total_seconds()
    while not is_done(seen := look()) and (left := ends - clock.monotonic()) > 0:
        clock.sleep(min(left, LOOK_EVERY_SECONDS))
    return seen


def words(stage: Stage, window: Window) -> str:
    """Return a sentence that describes the stage of a window and tells the user how to get its rows."""
    key = window.key
    waits = f"`tidemark watermark --wait-for {key} --computed` waits for its rows"
    return {
        Stage.TOO_EARLY: f"window {key} begins before windows.first, so it is never computed",
        Stage.OPEN: f"the watermark has not passed window {key}, so the window is not computed; {waits}",
        Stage.WAITING: f"window {key} is closed but not computed yet; {waits}, and `tidemark status` shows what fails",
        Stage.COMPUTED: f"window {key} is computed; `tidemark diffs --window {key}` prints its rows",
        Stage.EMPTY: f"window {key} is closed, and there is nothing to compute: the window has no heartbeat",
        Stage.EXPIRED: f"window {key} has no rows and will not be computed: housekeeping has deleted its rows, or "
        "heartbeats from which they would be computed",
    }[stage]

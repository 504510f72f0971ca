"""The watermark as a gate for other systems: how far it has come and why, told from the lake's log alone."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.windows import Window, Windowing

LOOK_EVERY_SECONDS = 5.0
"""How often waiting looks at the log: twice in a tick of the default length."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """How far a lake's watermark has come. It never goes back, so what is closed stays closed.

    `event_time` is aware and in UTC: no heartbeat below it is still to land in this lake, under the assumptions of the
    method. It is None until there is a watermark. `decision` is the newest one, None before the first; `lake` is the
    lake's address.
    """

    lake: str
    event_time: datetime | None
    decision: Decision | None
    windowing: Windowing

    @property
    def reason(self) -> Reason | None:
        """Why the watermark stands where it stands."""
        return None if self.decision is None else self.decision.reason

    @property
    def decided_at(self) -> datetime | None:
        """When that was decided. A running pipeline decides every tick: an old moment tells that it has stopped."""
        return None if self.decision is None else self.decision.at

    @property
    def newest_closed(self) -> Window | None:
        """The newest window that the watermark has passed; None if it has passed none of the pipeline's."""
        if self.event_time is None:
            return None
        window = self.windowing.numbered(self.windowing.number_of(self.event_time) - 1)
        return window if window.start >= self.windowing.first else None

    def has_reached(self, event_time: datetime) -> bool:
        """Whether every heartbeat below this time has landed. Raises ValueError for a time without a zone."""
        if event_time.tzinfo is None:
            raise ValueError(f"{event_time} has no time zone")
        return self.event_time is not None and event_time <= self.event_time

    def is_closed(self, window: str | datetime) -> bool:
        """Tell whether the watermark has passed a window, named by its key (`2026-11-21T05-20Z`) or by its end. Raises
        ValueError for a text that is no window's key and for a time without a zone."""
        return self.has_reached(self.windowing.named(window).end if isinstance(window, str) else window)

    def sentence(self) -> str:
        """Where it stands and why, in one sentence."""
        if self.decision is None:
            return f"no decision has been made in {self.lake} yet"
        return self.decision.sentence()


class WatermarkReader:
    """Reads the watermark of one lake again and again. One user at a time."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._log = Lake(settings.lake, settings.message.kinds, clock).tracking_log()
        self._lake, self._windowing, self._clock = settings.lake.uri, settings.windowing, clock

    def read(self) -> Watermark:
        """The watermark now. Raises LakeError: CorruptObject for a damaged entry, NewerFormat for a newer lake."""
        reached, record = self._log.newest_watermark(), self._log.newest_decision()
        decision = None if record is None else record.decision
        known = (reached, None if decision is None else decision.watermark)  # the decision may have come in between
        event_time = max((moment for moment in known if moment is not None), default=None)
        return Watermark(self._lake, event_time, decision, self._windowing)

    def wait_for(self, event_time: datetime, timeout: timedelta) -> Watermark:
        """The watermark once it has reached the event time, or as it is after the timeout. Raises as `read`."""
        ends = self._clock.monotonic() + timeout.total_seconds()
        while (reached := self._log.newest_watermark()) is None or reached < event_time:
            left = ends - self._clock.monotonic()
            if left <= 0:
                break
            self._clock.sleep(min(left, LOOK_EVERY_SECONDS))
        return self.read()


def read_watermark(config: str | Path | None = None, *, name: str | None = None) -> Watermark:
    """The watermark of the pipeline with these settings, from its lake alone: a listing or two, and a few reads.

    `config` is the settings file; without it `$TIDEMARK_CONFIG`, otherwise `tidemark.toml` in the current folder.
    `name` is as for `tidemark.dagster.pipeline`. Before the first decision there is no event time, and no window is
    closed. Raises InvalidSettings; LakeError if the lake does not answer, is damaged, or is of a later version.
    """
    settings = load_settings(None if config is None else Path(config), name=name)
    return WatermarkReader(settings, SystemClock()).read()

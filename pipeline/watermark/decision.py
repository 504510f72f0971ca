"""A decision: where the watermark stands, the reason, and the evidence, enough to derive it again."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pipeline.clock import iso
from pipeline.durations import format_duration
from pipeline.watermark.histogram import Cell
from pipeline.watermark.readings import EffectiveReading


class Reason(StrEnum):
    """Why the watermark stands where it stands."""

    ADVANCED = "ADVANCED"
    UNCHANGED = "UNCHANGED"
    PINNED_BY_BACKLOG = "PINNED_BY_BACKLOG"
    HELD_TRACKING_BEHIND = "HELD_TRACKING_BEHIND"
    HELD_INCOMPLETE = "HELD_INCOMPLETE"
    HELD_NO_DATA = "HELD_NO_DATA"
    HELD_STALE_READING = "HELD_STALE_READING"
    HELD_SEEK = "HELD_SEEK"
    IDLE_ADVANCED = "IDLE_ADVANCED"
    IDLE_HELD = "IDLE_HELD"
    RELEASED = "RELEASED"

    @property
    def is_hold(self) -> bool:
        """Whether the watermark waits for something other than the event times themselves."""
        return self.name.startswith("HELD_")


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one tick. Moments are aware and in UTC; None means not known or not looked at.

    `watermark` never goes back from one decision to the next. `base` and `tracking` are the effective readings
    before slack. `band_start`, `band_end`, `pin` and `messages_in_band` are of the publish times that were looked at:
    the band, or, where there is a `frontier`, what was published since base's oldest. `released_before` is there where
    an operator let go what base holds from before it.
    """

    at: datetime
    watermark: datetime | None
    reason: Reason
    candidate: datetime | None = None
    base: EffectiveReading | None = None
    tracking: EffectiveReading | None = None
    band_start: datetime | None = None
    band_end: datetime | None = None
    anchor: datetime | None = None
    pin: Cell | None = None
    messages_in_band: int = 0
    newest_publish_time: datetime | None = None
    recent_lag: timedelta | None = None
    complete_from: datetime | None = None
    frontier: datetime | None = None
    released_before: datetime | None = None

    @property
    def lag(self) -> timedelta | None:
        """How far the watermark is behind the moment of the decision."""
        return None if self.watermark is None else self.at - self.watermark

    def sentence(self) -> str:
        """What was decided and why, in one sentence."""
        where = "no watermark yet" if self.watermark is None else f"watermark {iso(self.watermark)}"
        if self.lag is not None:
            lag = timedelta(seconds=round(self.lag.total_seconds()))
            where += f" ({format_duration(abs(lag))} {'behind' if lag >= timedelta(0) else 'ahead'} when decided)"
        return f"{self.reason}: {where}; {self._because()}"

    def _because(self) -> str:
        base = "unknown" if self.base is None else iso(self.base.oldest_unacked)
        tracking = "unknown" if self.tracking is None else iso(self.tracking.oldest_unacked)
        match self.reason:
            case Reason.ADVANCED if self.frontier is not None and not self.messages_in_band:
                return f"the frontier; nothing that tracking has read was published since {_at(self.band_start)}"
            case Reason.ADVANCED if self.frontier is not None:
                return f"the lesser of the frontier {_at(self.frontier)} and {self._least()}"
            case Reason.ADVANCED:
                return self._least()
            case Reason.UNCHANGED:
                return f"what may still land is only known to have event times from {_at(self.candidate)} on"
            case Reason.PINNED_BY_BACKLOG if self.released_before is not None:
                return (
                    f"base still holds what was let go (published at {base}), so nothing is known of what else it "
                    f"holds from {_at(self.released_before)} on"
                )
            case Reason.PINNED_BY_BACKLOG:
                return (
                    f"base has not acknowledged what was published from {base} on, and what it may hold is as old as "
                    f"{_at(self.candidate)}"
                )
            case Reason.HELD_TRACKING_BEHIND:
                return (
                    f"tracking has read up to {tracking}, neither near now nor ahead of base ({base}) by the band; "
                    "it moves when tracking has caught up"
                )
            case Reason.HELD_INCOMPLETE:
                return (
                    f"tracking knows what was published since {_at(self.complete_from)}, and base may hold older "
                    f"messages (its reading is {base}, before slack); it moves when base has landed them"
                )
            case Reason.HELD_NO_DATA:
                return (
                    "nothing is known with an event time and published more than a band before what tracking has read "
                    f"({tracking})"
                )
            case Reason.HELD_STALE_READING:
                return "the oldest unacknowledged publish time of base or tracking is not known, or too old"
            case Reason.HELD_SEEK:
                return f"a subscription was sought back (base {base}, tracking {tracking}); what it replays may be late"
            case Reason.IDLE_ADVANCED:
                return f"nothing valid was published since {_at(self.newest_publish_time)}, and nothing is outstanding"
            case Reason.IDLE_HELD:
                return f"nothing valid was published since {_at(self.newest_publish_time)}, and idle is set to hold"
            case Reason.RELEASED:
                return f"an operator let go what was published before {_at(self.released_before)} and has not landed"

    def _least(self) -> str:
        return (
            f"the least event time published since {_at(self.band_start)} (messages: at most {self.messages_in_band:,})"
        )


def _at(moment: datetime | None) -> str:
    return "an unknown moment" if moment is None else iso(moment)

"""A decision: the watermark, the reason, and the evidence."""

from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tidemark.pipeline.clock import iso, rough
from tidemark.pipeline.figures import counted
from tidemark.pipeline.watermark.histogram import Cell
from tidemark.pipeline.watermark.readings import EffectiveReading


class Reason(StrEnum):
    """The reason why a decision moved the watermark, or did not. The second paragraph of each reason says what moves
    the watermark."""

    ADVANCED = "ADVANCED"
    """The candidate was above the watermark, and became the watermark.

    The watermark moves again when further messages are published and landed.
    """
    UNCHANGED = "UNCHANGED"
    """The candidate is not above the watermark.

    The watermark moves when the band or the frontier has moved past the pin, the message that limits the watermark."""
    PINNED_BY_BACKLOG = "PINNED_BY_BACKLOG"
    """The message that limits the watermark (the pin) may still be in base's backlog, according to the last reading.

    The watermark moves after base has landed the pin, at the next reading of base. Readings may be hours apart
    (docs/concepts/costs-and-scale.md). With the rule `band`, the anchor must also be newer than the pin: tracking must
    have read at least `band` past a valid message that was published after the pin. With the rule `frontier`, the
    frontier must also be above the watermark."""
    HELD_TRACKING_BEHIND = "HELD_TRACKING_BEHIND"
    """Tracking is behind: its last reading is neither close to the present nor at least `band` ahead of base's reading.

    The watermark moves when tracking has caught up. Check that the sensor `tracking` ticks."""
    HELD_INCOMPLETE = "HELD_INCOMPLETE"
    """Base may hold messages that tracking does not know, or that tracking judged before the message contract changed.

    The watermark moves when base has landed these messages, or when you release them (`tidemark release`)."""
    HELD_NO_DATA = "HELD_NO_DATA"
    """Tracking knows no valid message that was published more than `band` before its last reading.

    The watermark moves when tracking's reading is more than `band` after a valid message's publish time. If all
    messages are rejected, correct `[message]` (see `tidemark quarantine`).
    """
    HELD_STALE_READING = "HELD_STALE_READING"
    """A backlog was never read, or its next reading is overdue by more than five minutes.

    The watermark moves when both backlogs are read again. The tick's problems, in Dagster and in `tidemark status`, say
    why the readings fail.
    """
    HELD_CLOCK_SKEW = "HELD_CLOCK_SKEW"
    """This machine's clock is ahead of Pub/Sub's, or was set back.

    The watermark moves when the clock is right. If the clock was set back, the watermark moves when the clock is near
    the time that it showed before. Synchronize the clock."""
    HELD_SEEK = "HELD_SEEK"
    """A subscription was sought back.

    The watermark may move at the next tick. Replayed messages that had not landed before are late if their event
    time is below the watermark.
    """
    IDLE_ADVANCED = "IDLE_ADVANCED"
    """Nothing is published and nothing is outstanding, so the watermark follows the clock.

    The watermark moves by itself."""
    IDLE_HELD = "IDLE_HELD"
    """Nothing is published, and `watermark.idle` is `hold`.

    The watermark moves after a new message, or with `watermark.idle = "advance"`.
    """
    RELEASED = "RELEASED"
    """An operator released the messages published before a chosen time. Base is treated as if it had acknowledged
    them.

    The watermark moves again when base lands the released messages, or when you release more.
    """

    @property
    def is_hold(self) -> bool:
        """True if a rule held the watermark, so that no candidate was computed."""
        return self.name.startswith("HELD_")


BECAUSE = {
    Reason.UNCHANGED: "messages yet to land may have event times from {candidate} on, which is not above the watermark",
    Reason.PINNED_BY_BACKLOG: "base has a backlog from publish time {base} on, in which tracking saw an event time as "
    "old as {candidate}",
    Reason.HELD_TRACKING_BEHIND: "tracking has read up to {tracking}, which is neither close to the present nor a band "
    "ahead of base ({base}); the watermark moves when tracking has caught up",
    Reason.HELD_INCOMPLETE: "tracking knows what was published since {complete_from}, and base may hold older messages "
    "(its reading, without slack, is {base}); the watermark moves when base has acknowledged them",
    Reason.HELD_NO_DATA: "tracking knows no event time published more than a band before its reading ({tracking}); "
    "`tidemark explain` says what would move the watermark, and `tidemark quarantine` (with pubsub.attach, `tidemark "
    "try --sample 20`) lists rejected messages",
    Reason.HELD_STALE_READING: "the backlog of base or tracking was never read, or its next reading is overdue",
    Reason.HELD_CLOCK_SKEW: "this machine's clock and Pub/Sub's disagree; the watermark moves when the clock is right",
    Reason.HELD_SEEK: "a subscription was sought back (base {base}, tracking {tracking}); replayed messages may "
    "be late",
    Reason.IDLE_ADVANCED: "nothing valid was published since {newest_publish_time}, and there is no backlog",
    Reason.IDLE_HELD: 'nothing valid was published since {newest_publish_time}, and idle = "hold"',
    Reason.RELEASED: "an operator released the messages published before {released_before}",
}
"""The second half of a decision's sentence, by reason. The first half states the watermark. `ADVANCED` is absent: its
second half depends on the kind of evidence."""


@dataclass(frozen=True, slots=True)
class SilenceEvidence:
    """Evidence of the idle rule, which applies after publishing has stopped. The candidate is the earlier of the two
    readings, minus the band and minus `recent_lag`. `recent_lag` is the largest lag (publish time minus event time) in
    the newest publish second, but at most `max_idle_lag`."""

    candidate: datetime
    recent_lag: timedelta


@dataclass(frozen=True, slots=True)
class Bound:
    """Evidence of the rules `band` and `frontier`. The candidate is the event time of a message.

    - `pin` is the histogram cell of this message.
    - `messages` is an upper bound for the number of messages considered: those published at `start` or later.
    - `passed_over` is an upper bound for the number of these messages that `max_lag` keeps from holding the watermark.
    - `end` is the publish time up to which tracking has read.
    """

    pin: Cell
    start: datetime
    end: datetime
    messages: int
    _: KW_ONLY
    passed_over: int = 0

    @property
    def candidate(self) -> datetime:
        return self.pin.min_event_time


@dataclass(frozen=True, slots=True)
class BandEvidence(Bound):
    """Evidence of the rule `band`. The candidate is the earliest event time of the messages published from `start` to
    `end`.

    `anchor` is the publish time of the newest valid message published more than `band` before `end`. It is None if the
    rule did not look for it.
    """

    anchor: datetime | None


@dataclass(frozen=True, slots=True)
class FrontierEvidence(Bound):
    """Evidence of the rule `frontier`. The candidate is the earlier of two times: `frontier`, and the earliest event
    time of the messages published at `start` or later.

    `frontier` is the greatest event time of the messages published more than `band` before `end`. All messages
    published before `start` are acknowledged on base, or released.
    """

    frontier: datetime

    @property
    def is_at_frontier(self) -> bool:
        return self.candidate == self.frontier


@dataclass(frozen=True, slots=True)
class Decision:
    """The outcome of one tick. Moments are aware and in UTC; None means unknown.

    `watermark` never goes back from one decision to the next. `base` and `tracking` are the effective readings, with no
    slack subtracted. `evidence` is the basis of the candidate; it is None exactly when the reason is a hold.
    `released_before` is set if an operator's release applies: messages published before it do not hold the watermark.
    """

    at: datetime
    watermark: datetime | None
    reason: Reason
    base: EffectiveReading | None = None
    tracking: EffectiveReading | None = None
    newest_publish_time: datetime | None = None
    complete_from: datetime | None = None
    released_before: datetime | None = None
    evidence: SilenceEvidence | BandEvidence | FrontierEvidence | None = None

    @property
    def readings(self) -> dict[str, EffectiveReading]:
        """The effective readings, by subscription (`base`, `tracking`). An unknown reading is left out."""
        both = {"base": self.base, "tracking": self.tracking}
        return {name: one for name, one in both.items() if one is not None}

    @property
    def lag(self) -> timedelta | None:
        """Time from the watermark to the moment of the decision; None if there is no watermark."""
        return None if self.watermark is None else self.at - self.watermark

    @property
    def candidate(self) -> datetime | None:
        """The event time that the watermark may reach; None for a hold."""
        return None if self.evidence is None else self.evidence.candidate

    @property
    def bound(self) -> Bound | None:
        """The evidence, if the candidate is a message's event time; None for a hold or a silence."""
        return None if isinstance(self.evidence, SilenceEvidence) else self.evidence

    @property
    def pin(self) -> Cell | None:
        """The cell whose event time is the candidate; None if the candidate is not a message's event time."""
        return None if self.bound is None else self.bound.pin

    @property
    def knows_of_a_loss(self) -> bool:
        """True if the decision takes a loss of log entries into account. After a loss, it is unknown which messages the
        log lacks. Therefore the log counts as complete (`complete_from`) only from the decision's time, or later."""
        return self.complete_from is not None and self.complete_from >= self.at

    def sentence(self) -> str:
        """Return the decision and its reason in one sentence."""
        where = "no watermark yet" if self.watermark is None else f"watermark {iso(self.watermark)}"
        if self.lag is not None:
            side = "behind" if round(self.lag.total_seconds()) >= 0 else "ahead"
            where += f" ({rough(abs(self.lag))} {side} when decided)"
        return f"{self.reason}: {where}; {self._because()}"

    def _because(self) -> str:
        base, reason = self.base, self.reason
        read_at = max((one.newest.observed_at for one in self.readings.values()), default=self.at)
        if reason is Reason.HELD_CLOCK_SKEW and read_at > self.at:
            return (
                f"this machine's clock was set back: a reading was observed at {iso(read_at)}, and the watermark moves "
                "once the clock is near that time again"
            )
        if reason is Reason.PINNED_BY_BACKLOG and base is not None and self.released_before is not None:
            return (
                f"base still holds released messages (published at {iso(base.oldest_unacked)}), so its reading says "
                f"nothing about messages published from {iso(self.released_before)} on"
            )
        if reason is Reason.PINNED_BY_BACKLOG and base is not None and base.is_read_rarely:
            return (
                f"base was last read at {iso(base.newest.observed_at)}, and is read again by {iso(base.next_by)} "
                f"(snapshot_budget); among the messages published since {iso(base.oldest_unacked)}, tracking saw an "
                f"event time as old as {when(self.candidate)}"
            )
        if reason not in BECAUSE:
            return self._least()
        moments = ("candidate", "complete_from", "released_before", "newest_publish_time")
        facts = {name: when(getattr(self, name)) for name in moments}
        for name, reading in (("base", base), ("tracking", self.tracking)):
            facts[name] = "unknown" if reading is None else iso(reading.oldest_unacked)
        return BECAUSE[reason].format(**facts)

    def _least(self) -> str:
        if (bound := self.bound) is None:
            return "the candidate is above the previous watermark"
        if isinstance(bound, FrontierEvidence) and not bound.messages:
            return f"the frontier; tracking has read nothing published since {iso(bound.start)}"
        most = counted(bound.messages, "message")
        least = f"the earliest event time published since {iso(bound.start)} (at most {most})"
        if isinstance(bound, FrontierEvidence):
            return f"the earlier of two times: the frontier {iso(bound.frontier)}, and {least}"
        return least


def when(moment: datetime | None) -> str:
    """Format a moment that may be unknown."""
    return "an unknown moment" if moment is None else iso(moment)

"""A decision in plain words: each rule in its order, what pins the watermark, what would move it, and which setting.

The decision has the numbers; the fold of the log before it adds how many messages are concerned, and what the same tick
would have given under other settings.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.clock import iso, to_us
from pipeline.durations import format_duration
from pipeline.watermark.alternatives import Alternative, alternatives
from pipeline.watermark.conditions import Condition, Outcome, conditions, when
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.estimator import AFTER_ALL
from pipeline.watermark.histogram import BUCKET_US, bucket_of, bucket_start
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading
from pipeline.watermark.standing import Decided, Standing

SECOND = timedelta(microseconds=BUCKET_US)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the watermark stands where a decision put it.

    `since_base` and `since_pin` count the messages with an event time that were published from base's oldest and from
    the pin's second on: upper bounds, since redeliveries count again. They are None where
    that is not known (any more), `alternatives` where the log before the decision is not.
    """

    decision: Decision
    conditions: list[Condition]
    pin: str | None
    since_base: int | None
    since_pin: int | None
    ahead: str | None
    moves: list[str]
    alternatives: list[Alternative] | None

    def sentences(self) -> list[str]:
        """All of it but what was not looked at and the alternatives, in order."""
        reached = [condition.text for condition in self.conditions if condition.outcome is not Outcome.NOT_REACHED]
        parts = [self.decision.sentence() + ".", *reached]
        return [*parts, *(text for text in (self.pin, self.ahead) if text is not None), *self.moves]


def explain(decided: Decided, standing: Standing | None) -> Explanation:
    """Explain a decision. `standing` is the fold of the entries before it, None where they are lost."""
    decision, policy = decided.decision, decided.policy
    since_base = since_pin = None
    if standing is not None and decision.base is not None:
        since_base = _published_since(standing, decision.base.oldest_unacked)
    if standing is not None and decision.pin is not None:
        since_pin = _published_since(standing, decision.pin.published_from)
    return Explanation(
        decision=decision,
        conditions=conditions(decision, policy, standing),
        pin=_pin(decision, policy),
        since_base=since_base,
        since_pin=since_pin,
        ahead=_ahead(decision, since_base, since_pin),
        moves=list(_moves(decision, policy)),
        alternatives=None if standing is None else alternatives(standing, decided),
    )


def _published_since(standing: Standing, moment: datetime) -> int | None:
    """None where a part of it was pruned, as after a seek."""
    if standing.pruned_before is not None and standing.pruned_before > bucket_of(moment):
        return None
    histogram = standing.histogram
    return histogram.messages_at(histogram.since(to_us(moment), AFTER_ALL))


def _pin(decision: Decision, policy: Policy) -> str | None:
    pin, base, tracking = decision.pin, decision.base, decision.tracking
    if pin is None or base is None or tracking is None:
        return None
    published, event_time = f"published within the second from {iso(pin.published_from)}", iso(pin.min_event_time)
    if decision.frontier is not None and pin.min_event_time == decision.frontier:
        return (
            f"The candidate is the frontier, {event_time}, of a message {published}. What tracking has not read yet "
            "may be as old as that."
        )
    which = "the message" if pin.count == 1 else f"at most {pin.count:,} messages"
    least = f"The candidate is the least event time, {event_time}, of {which} {published}."
    ends = pin.published_from + SECOND
    if ends > _held_from(decision, base, policy):
        if decision.released_before is not None:
            return f"{least} What base holds from then on is not known, so it may still have to land."
        if ends <= base.oldest_unacked:
            return f"{least} Base is past that, but less than the slack (base_slack)."
        return f"{least} Base has not acknowledged all that was published then: it may still have to land."
    if ends > tracking.oldest_unacked - policy.reading_slack - policy.band:
        return f"{least} It has landed, but is within the band: something as old may still be published."
    return f"{least} It has landed. It is the anchor: what is published next may be as old."


def _ahead(decision: Decision, since_base: int | None, since_pin: int | None) -> str | None:
    if since_base is None or decision.base is None:
        return None
    since = f"{iso(decision.base.oldest_unacked)} (base's oldest)"
    text = f"Of what tracking has read, at most {since_base:,} were published since {since}"
    return f"{text}, and at most {since_pin:,} from the pin's second on." if since_pin is not None else f"{text}."


def _moves(decision: Decision, policy: Policy) -> Iterator[str]:
    """What would have to happen for the watermark to move (on)."""
    base, tracking, pin = decision.base, decision.tracking, decision.pin
    band = format_duration(policy.band)
    match decision.reason:
        case Reason.HELD_STALE_READING:
            yield "It moves when both backlogs can be read again. The problems of the last ticks say why they cannot."
        case Reason.HELD_SEEK:
            yield "It moves on from the next tick; what the seek replays is late where it lands below the watermark."
        case Reason.HELD_INCOMPLETE:
            yield f"It moves when base has landed everything that was published before {when(decision.complete_from)}."
            if decision.complete_from is not None:
                yield from _let_go(decision.complete_from)
        case Reason.HELD_TRACKING_BEHIND:
            yield (
                f"It moves when tracking has read to within {format_duration(policy.near_real_time)} of now, or to "
                f"{band} ahead of base. See whether its sensor ticks; `[track]` says how much a tick reads."
            )
        case Reason.HELD_NO_DATA:
            yield f"It moves when tracking has read to {band} (the band) after the first message with an event time."
        case Reason.IDLE_ADVANCED:
            yield "It follows the clock until something is published, then what is published."
        case Reason.IDLE_HELD:
            yield 'It moves when something is published, or with idle = "advance".'
        case Reason.ADVANCED | Reason.RELEASED if _is_pinned_by_base(decision, policy):
            yield from _base_lands(decision)
        case Reason.ADVANCED | Reason.RELEASED:
            yield "It moves on with the next messages that are published and landed."
        case Reason.PINNED_BY_BACKLOG:
            yield from _base_lands(decision)
        case Reason.UNCHANGED if decision.recent_lag is not None:
            if decision.watermark is not None:
                reached = decision.watermark + policy.band + decision.recent_lag
                yield f"It follows the clock again after {iso(reached)}, or moves when something is published."
        case Reason.UNCHANGED if decision.frontier is not None:
            yield (
                f"It moves when tracking has read to {band} (the band) after a message with an event time after "
                f"{when(decision.watermark)}, and base has landed what is older."
            )
        case Reason.UNCHANGED if base is not None and tracking is not None and pin is not None:
            yield (
                f"It moves when what was published before {iso(pin.published_from + SECOND)} is out of the band: when "
                f"tracking has read to {band} (the band) after that, and after a message that was published later."
            )


def _is_pinned_by_base(decision: Decision, policy: Policy) -> bool:
    base, tracking, pin = decision.base, decision.tracking, decision.pin
    if base is None or tracking is None or pin is None:
        return False
    held_from = _held_from(decision, base, policy)
    is_behind = held_from < tracking.oldest_unacked - policy.reading_slack - policy.band
    return is_behind and pin.published_from + SECOND > held_from


def _held_from(decision: Decision, base: EffectiveReading, policy: Policy) -> datetime:
    """From which publish time on base may hold what counts."""
    return base.oldest_unacked - policy.base_slack if decision.released_before is None else decision.released_before


def _base_lands(decision: Decision) -> Iterator[str]:
    if decision.released_before is not None:
        yield (
            "It moves when base has landed what was let go: until then its reading does not tell what else it holds. "
            "Or with a further `tidemark release`."
        )
        return
    base, pin = decision.base, decision.pin
    if base is None or pin is None:
        return
    until = pin.published_from + SECOND
    if until > base.oldest_unacked:
        what = f"what was published from {iso(base.oldest_unacked)} to {iso(until)}"
    else:
        until = base.oldest_unacked + timedelta(microseconds=1)
        what = f"what was published at {iso(base.oldest_unacked)}, of which the slack (base_slack) is taken off"
    yield f"It moves when base has landed {what}. See whether its sensor ticks, and whether another consumes base."
    yield from _let_go(until)


def _let_go(before: datetime) -> Iterator[str]:
    whole = bucket_start(-(-to_us(before) // BUCKET_US))
    yield (
        f"Or when an operator lets it go, to be late: `tidemark release --before {iso(whole)}` shows what it is. A "
        "later time lets more go, and takes the watermark further."
    )

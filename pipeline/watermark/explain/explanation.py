"""A decision in plain words: each rule in its order, what pins the watermark, what would move it, and which setting.

The decision has the numbers; the fold of the log before it adds how many messages are concerned, and what the same tick
would have given under other settings.
"""

from dataclasses import dataclass

from pipeline.clock import iso
from pipeline.watermark.decision import Decision
from pipeline.watermark.explain.alternatives import Alternative, alternatives
from pipeline.watermark.explain.conditions import Condition, Outcome, conditions, messages, passed_over
from pipeline.watermark.explain.moves import SECOND, band_edge, held_from, moves, published_since
from pipeline.watermark.histogram import bucket_of, bucket_start
from pipeline.watermark.policy import Policy
from pipeline.watermark.state import DecisionRecord, WatermarkState


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why the watermark stands where a decision put it.

    `since_base` and `since_pin` count the messages with an event time that were published from base's oldest and from
    the pin's second on: upper bounds, since redeliveries count again. They are None where that is not known (any more),
    `alternatives` where the log before the decision is not.
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


def explain(decided: DecisionRecord, state: WatermarkState | None) -> Explanation:
    """Explain a decision. `state` is the fold of the entries before it, None where they are lost."""
    decision, policy = decided.decision, decided.policy
    since_base = None if decision.base is None else published_since(state, decision.base.oldest_unacked)
    since_pin = None if decision.pin is None else published_since(state, decision.pin.published_from)
    return Explanation(
        decision=decision,
        conditions=conditions(decision, policy, state),
        pin=_pin(decision, policy),
        since_base=since_base,
        since_pin=since_pin,
        ahead=_ahead(decision, since_base, since_pin),
        moves=list(moves(decision, policy, state)),
        alternatives=None if state is None else alternatives(state, decided),
    )


def _pin(decision: Decision, policy: Policy) -> str | None:
    pin, base = decision.pin, decision.base
    held, edge = held_from(decision, policy), band_edge(decision, policy)
    if pin is None or base is None or held is None or edge is None:
        return None
    cell = (
        f"Its cell: published in the second from {iso(pin.published_from)}, happened in the second from "
        f"{iso(bucket_start(bucket_of(pin.min_event_time)))}, at most {messages(pin.count)}."
    )
    event_time = iso(pin.min_event_time)
    if decision.frontier is not None and pin.min_event_time == decision.frontier:
        return (
            f"The candidate is the frontier, {event_time}. {cell} What tracking has not read yet may be as old as that."
        )
    least = f"The candidate is the least event time{passed_over(policy)}, {event_time}. {cell}"
    ends = pin.published_from + SECOND
    if ends > held:
        if decision.released_before is not None:
            return f"{least} What base holds from then on is not known, so it may still have to land."
        if ends <= base.oldest_unacked:
            return f"{least} Base is past that, but by less than the slack (base_slack)."
        return f"{least} Base has not acknowledged all that was published then: it may still have to land."
    if ends > edge:
        return f"{least} It has landed, but is within the band: something as old may still be published."
    return f"{least} It has landed. It is the anchor: what is published next may be as old."


def _ahead(decision: Decision, since_base: int | None, since_pin: int | None) -> str | None:
    if since_base is None or decision.base is None:
        return None
    oldest = iso(decision.base.oldest_unacked)
    if not since_base:
        return f"Base has landed all that tracking has read: none of it was published at {oldest} or later."
    since = f"{oldest}, base's oldest"
    text = f"Of what tracking has read, at most {messages(since_base)} may still have to land (published since {since})"
    return text + ("." if since_pin is None else f"; since the pin's second at most {messages(since_pin)} came in.")

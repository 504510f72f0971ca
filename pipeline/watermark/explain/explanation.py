"""Explains a decision: each rule in its order, what pins the watermark, what would move it, and which setting.

The rules are evaluated again from the state before the decision. The explanation formats their verdicts, so it cannot
disagree with the decision.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from tidemark.pipeline.clock import format_duration, iso
from tidemark.pipeline.watermark.decision import Decision, FrontierEvidence, Reason
from tidemark.pipeline.watermark.estimator import advance, verdicts_of
from tidemark.pipeline.watermark.explain.conditions import Condition, RuleOutcome, conditions, messages
from tidemark.pipeline.watermark.explain.moves import SECOND, moves, published_since
from tidemark.pipeline.watermark.histogram import bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.situation import Situation
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState

BANDS = (timedelta(seconds=5), timedelta(seconds=1))
"""Bands to try in addition to half of the current one, if they are smaller than the current one."""

MAX_LAGS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=10), timedelta(minutes=1))
"""Bounds on lag to try, if they are smaller than the current one."""

TRIED = ("rule", "band", "idle", "max_lag")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A setting that would have changed this one decision.

    `further` is how much further the watermark would have been (negative: further back). It is None if the watermark
    would be the first, or if there would be none.
    """

    setting: str
    value: str
    watermark: datetime | None
    reason: Reason
    further: timedelta | None
    cost: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of one decision.

    `since_base` and `since_pin` count the messages with an event time that were published from base's oldest and from
    the pin's second. They are upper bounds, because redeliveries are counted again, and None if unknown. If the log
    before the decision is lost, only the decision itself is known, and `alternatives` is None.
    """

    decision: Decision
    conditions: Sequence[Condition] = ()
    pin: str | None = None
    since_base: int | None = None
    since_pin: int | None = None
    ahead: str | None = None
    moves: Sequence[str] = ()
    alternatives: Sequence[Alternative] | None = None

    def sentences(self) -> list[str]:
        """Return the explanation in order, without alternatives and without the rules that were not reached."""
        reached = [condition.text for condition in self.conditions if condition.outcome is not RuleOutcome.NOT_REACHED]
        return [self.decision.sentence() + ".", *reached, *filter(None, (self.pin, self.ahead)), *self.moves]


def explain(record: DecisionRecord, before: WatermarkState) -> Explanation:
    """Explain a decision. `before` is the fold of the entries before it."""
    decision = record.decision
    situation = before.situation(record.base, record.tracking, record.policy, decision.at)
    verdicts = verdicts_of(situation)
    if advance(situation, verdicts) != decision:  # its inputs have been lost since
        return Explanation(decision)
    since_base = None if decision.base is None else published_since(situation, decision.base.oldest_unacked)
    since_pin = None if decision.pin is None else published_since(situation, decision.pin.published_from)
    return Explanation(
        decision=decision,
        conditions=conditions(situation, verdicts, decision),
        pin=_pin(situation, decision),
        since_base=since_base,
        since_pin=since_pin,
        ahead=_ahead(decision, since_base, since_pin),
        moves=list(moves(situation, decision)),
        alternatives=alternatives(before, record),
    )


def _pin(s: Situation, decision: Decision) -> str | None:
    pin, base, evidence = decision.pin, decision.base, decision.evidence
    if pin is None or base is None:
        return None
    cell = (
        f"Its cell: published in the second from {iso(pin.published_from)}, happened in the second from "
        f"{iso(bucket_start(bucket_of(pin.min_event_time)))}, at most {messages(pin.count)}."
    )
    event_time = iso(pin.min_event_time)
    if isinstance(evidence, FrontierEvidence) and evidence.is_at_frontier:
        unread = "Messages that tracking has not read yet may be as old."
        return f"The candidate is the frontier, {event_time}. {cell} {unread}"
    quantile = f" (except {s.policy.quantile:.2g} of each publish second: quantile)" if s.policy.quantile > 0 else ""
    least = f"The candidate is the least event time{quantile}, {event_time}. {cell}"
    ends = pin.published_from + SECOND
    if ends > s.oldest_base:
        if s.release is not None:
            return f"{least} What base holds from then on is unknown, so it may still be outstanding there."
        if ends <= base.oldest_unacked:
            return f"{least} Base is past that, but by less than the slack."
        return f"{least} Base has not acknowledged everything published then: it may still be outstanding."
    if ends > s.band_edge:
        return f"{least} Base has acknowledged it, but it is within the band: messages as old may still be published."
    return f"{least} Base has acknowledged it. It is the anchor: messages published next may be as old."


def _ahead(decision: Decision, since_base: int | None, since_pin: int | None) -> str | None:
    if since_base is None or decision.base is None:
        return None
    oldest = iso(decision.base.oldest_unacked)
    if not since_base:
        return (
            f"Base has acknowledged everything that tracking has read: none of it was published at {oldest} or later."
        )
    text = (
        f"At most {messages(since_base)} that tracking has read may be outstanding on base (published since {oldest})"
    )
    return text + ("." if since_pin is None else f"; since the pin's second at most {messages(since_pin)} came in.")


def alternatives(before: WatermarkState, record: DecisionRecord) -> list[Alternative]:
    """Find the settings that, each alone, would have changed the watermark or the reason of this decision.

    Under another setting, earlier ticks might have led to another state; they are not decided again.
    """
    decision = record.decision
    found: list[Alternative] = []
    for setting, value, policy, cost in _trials(record.policy):
        other = before.decide(record.base, record.tracking, policy, decision.at).decision
        further = None
        if other.watermark is not None and decision.watermark is not None:
            further = other.watermark - decision.watermark
        effect = other.watermark, other.reason
        is_known = any(one.setting == setting and (one.watermark, one.reason) == effect for one in found)
        if effect != (decision.watermark, decision.reason) and not is_known:  # the mildest value is enough
            found.append(Alternative(setting, value, *effect, further, cost))
    return found


def _trials(policy: Policy) -> Iterator[tuple[str, str, Policy, str]]:
    """Yield setting, value, policy, and the cost of the policy."""
    if policy.rule == "band":
        yield "rule", "frontier", replace(policy, rule="frontier"), "messages of a late stream count as late"
    else:
        yield "rule", "band", replace(policy, rule="band"), "one slow clock, or one late stream, holds all others back"
    for band in sorted({policy.band / 2, *BANDS}, reverse=True):
        if band < policy.band:
            # Unless it is set, the slack of base is the band (on the service), so it shrinks with it.
            base_slack = band if policy.base_slack == policy.band else policy.base_slack
            smaller = replace(policy, band=band, base_slack=base_slack)
            yield "band", format_duration(band), smaller, "messages with more disorder than that are late"
    for max_lag in MAX_LAGS:
        if policy.max_lag is None or max_lag < policy.max_lag:
            cost = "messages that lag more than that are late"
            yield "max_lag", format_duration(max_lag), replace(policy, max_lag=max_lag), cost
    if policy.idle == "advance":
        cost = "the last windows before a silence stay open until something is published"
        yield "idle", "hold", replace(policy, idle="hold"), cost
    else:
        cost = "after a silence, messages that lag more than the recent lag and the band are late"
        yield "idle", "advance", replace(policy, idle="advance"), cost

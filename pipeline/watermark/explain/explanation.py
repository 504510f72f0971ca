"""Explains a decision: the outcome of each rule, the message that determines the candidate (the pin), what would move
the watermark, and which setting would have changed the decision.

The rules are evaluated again, from the state before the decision, so the explanation cannot disagree with the decision.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from string import Formatter
from typing import Any

from tidemark.pipeline.clock import format_duration, from_us, iso, rough
from tidemark.pipeline.figures import counted
from tidemark.pipeline.watermark.decision import Bound, Decision, FrontierEvidence, Reason, when
from tidemark.pipeline.watermark.estimator import advance, verdicts_of
from tidemark.pipeline.watermark.explain.moves import SECOND, ZERO, moves, published_since
from tidemark.pipeline.watermark.histogram import bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading
from tidemark.pipeline.watermark.rules import Finding, Held, Verdict, reading_of_a_message
from tidemark.pipeline.watermark.situation import Situation, has_no_backlog, is_stale, known, was_sought
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState


class RuleOutcome(StrEnum):
    """The outcome of a rule. A rule is not reached if an earlier rule held or decided the watermark."""

    PASSED = "passed"
    HELD = "held"
    DECIDED = "decided"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Condition:
    rule: str
    outcome: RuleOutcome
    text: str


RULES = {
    "readings": "whether both backlogs were read recently",
    "seek": "whether a subscription was sought back",
    "completeness": "whether tracking knows every message that base may hold",
    "tracking": "whether tracking has read far enough",
    "silence": "whether publishing has stopped",
    "data": "whether an event time is known from before the band",
    "candidate": "whether the candidate is above the watermark",
}
"""The name of each rule and the question that it answers, in the order of the estimator."""


def conditions(s: Situation, verdicts: Sequence[Verdict], decision: Decision) -> list[Condition]:
    """Describe each rule by its outcome and a sentence, from the verdicts. Rules without a verdict were not reached."""
    found = {rule: Condition(rule, RuleOutcome.NOT_REACHED, f"Not evaluated: {asks}.") for rule, asks in RULES.items()}
    for rule, verdict in zip(RULES, verdicts, strict=False):
        outcome = RuleOutcome.HELD if isinstance(verdict, Held) else RuleOutcome.PASSED
        if verdict.finding is Finding.SILENCE:
            outcome = RuleOutcome.DECIDED
        found[rule] = Condition(rule, outcome, _text(verdict, s, decision))
    if decision.candidate is not None:
        found["candidate"] = _compared(s, decision, decision.candidate)
    return list(found.values())


def _text(verdict: Verdict, s: Situation, decision: Decision) -> str:
    named = {name for _, name, _, _ in Formatter().parse(verdict.finding) if name is not None}
    return verdict.finding.format(**{name: WORDS[name](s, decision) for name in named})


def _newest(s: Situation) -> str:
    newest = from_us(s.holding.newest_publish_us or 0)
    pause = rough(max(known(s.tracking).observed_at - newest, ZERO))
    return f"The newest valid message was published at {iso(newest)}, {pause} before tracking was read"


def _passed_over(s: Situation, evidence: Bound) -> str:
    if s.policy.max_lag is None or not evidence.passed_over:
        return ""
    over, max_lag = counted(evidence.passed_over, "message"), format_duration(s.policy.max_lag)
    return f" These include at most {over} passed over for a lag of more than {max_lag} (max_lag)."


def _compared(s: Situation, decision: Decision, candidate: datetime) -> Condition:
    if decision.watermark == s.watermark:
        text = f"The candidate is {iso(candidate)}, not above the watermark ({when(s.watermark)}): the watermark stays."
        return Condition("candidate", RuleOutcome.HELD, text)
    how = "the first watermark" if s.watermark is None else f"above the watermark ({iso(s.watermark)}), which moves"
    return Condition("candidate", RuleOutcome.DECIDED, f"The candidate is {iso(candidate)}, {how}.")


def _readings(s: Situation) -> tuple[tuple[str, EffectiveReading], tuple[str, EffectiveReading]]:
    return ("Base", known(s.base)), ("Tracking", known(s.tracking))


def _backlog(name: str, reading: EffectiveReading) -> str:
    """Say what the subscription has acknowledged, to the exact time: after a restore, someone seeks to it."""
    if reading.names_a_message:
        return f"{name}'s backlog began at {iso(reading.oldest_unacked)}, {_age(reading)} before it was read."
    if has_no_backlog(reading, ZERO):
        return f"{name} had no backlog at {iso(reading.observed_at)}."
    return f"{name} has acknowledged everything that was published before {iso(reading.oldest_unacked)}."


def _fresh(s: Situation) -> Iterator[str]:
    for name, reading in _readings(s):
        yield _backlog(name, reading)
        if reading.is_read_rarely:
            age, every = rough(s.at - reading.newest.observed_at), rough(reading.newest.next_within)
            yield (
                f"{name} was last read {age} before the decision, and is read every {every}, or sooner if its backlog "
                "is gone: a snapshot of the backlog exceeds its share of a day's budget (snapshot_budget)."
            )
    behind = max(reading.newest.clock_is_behind_by for _, reading in _readings(s))
    if behind > SECOND:
        yield f"This machine's clock is at least {rough(behind)} behind Pub/Sub's, which delays each window by as much."


def _stale(s: Situation) -> Iterator[str]:
    for name, reading in (("Base", s.base), ("Tracking", s.tracking)):
        if reading is None:
            yield f"{name}'s backlog was never read."
        elif is_stale(reading, s.at, s.policy):
            age, late = rough(s.at - reading.newest.observed_at), ""
            if reading.newest.next_within > ZERO:
                late = f" after the next reading was due, at {iso(reading.next_by)}"
            yield (
                f"{name}'s backlog was last read at {iso(reading.newest.observed_at)}, {age} before the decision: more "
                f"than {format_duration(s.policy.max_reading_age)}{late}."
            )


def _sought(s: Situation) -> Iterator[str]:
    before = s.previous
    earlier = (None, None) if before is None else (before.base, before.tracking)
    for (name, now), then in zip(_readings(s), earlier, strict=True):
        if then is not None and was_sought(now, then):
            began, begins = iso(then.oldest_unacked), iso(now.oldest_unacked)
            yield f"{name} was sought back: its backlog began at {began}, and begins at {begins} now."


def _less_slack(s: Situation) -> str:
    if s.release or s.policy.base_slack <= ZERO:
        return ""
    return f" (less {format_duration(s.policy.base_slack)} of slack)"


def _ahead(s: Situation) -> str:
    ahead = known(s.tracking).oldest_unacked - s.base_as_read
    return f"{rough(ahead)} ahead of base" if ahead >= ZERO else f"{rough(-ahead)} behind base"


def _age(reading: EffectiveReading) -> str:
    return rough(reading.observed_at - reading.oldest_unacked)


WORDS: Mapping[str, Callable[[Situation, Any], str]] = {
    "fresh": lambda s, _: " ".join(_fresh(s)),
    "stale": lambda s, _: " ".join(_stale(s)),
    "sought": lambda s, _: " ".join(_sought(s)),
    "knows": lambda _, made: f"Tracking knows everything published from {when(made.complete_from)} to its reading",
    "lost": lambda s, _: "An entry of the log was lost, or the contract changed. " if s.complete_from >= s.at else "",
    "base": lambda s, _: iso(s.oldest_base),
    "less_slack": lambda s, _: _less_slack(s),
    "named": lambda s, _: iso(reading_of_a_message(s).oldest_unacked),
    "near": lambda s, _: format_duration(s.policy.near_on_tracking),
    "backlog": lambda s, _: _age(known(s.tracking)),
    "ahead": lambda s, _: _ahead(s),
    "clock_ahead": lambda s, _: rough(s.clock_ahead or ZERO),
    "read_at": lambda s, _: iso(max(reading.newest.observed_at for _, reading in _readings(s))),
    "at": lambda s, _: iso(s.at),
    "newest": lambda s, _: _newest(s),
    "idle_timeout": lambda s, _: f"{format_duration(s.policy.idle_timeout)} (idle_timeout)",
    "max_lag": lambda s, _: f"{format_duration(s.policy.max_lag or ZERO)} (max_lag)",
    "band": lambda s, _: format_duration(s.policy.band),
    "recent_lag": lambda _, made: rough(made.evidence.recent_lag),
    "messages": lambda _, made: counted(made.evidence.messages, "message"),
    "start": lambda _, made: iso(made.evidence.start),
    "end": lambda _, made: iso(made.evidence.end),
    "anchor": lambda _, made: f", and the anchor at {iso(made.evidence.anchor)}" if made.evidence.anchor else "",
    "frontier": lambda _, made: iso(made.evidence.frontier),
    "passed_over": lambda s, made: _passed_over(s, made.evidence),
}
"""For each name in a finding's sentence, the function that returns the text to put in its place, given the situation
and the decision. The decision is untyped, because the evidence that a name needs exists only for some findings."""

BANDS = (timedelta(seconds=5), timedelta(seconds=1))
"""Bands to try as alternatives, in addition to half of the decision's band. Only bands smaller than the decision's are
tried."""

MAX_LAGS = (timedelta(days=1), timedelta(hours=1), timedelta(minutes=10), timedelta(minutes=1))
"""Values of `max_lag` to try as alternatives. Only values below the decision's `max_lag` are tried."""

TRIED = ("rule", "band", "idle", "max_lag")


@dataclass(frozen=True, slots=True)
class Alternative:
    """A setting that alone would have changed one decision.

    `further_seconds` is how much higher the watermark would have been (negative: lower). It is None if there is no
    watermark with the setting, or none without it.
    """

    setting: str
    value: str
    watermark: datetime | None
    reason: Reason
    further_seconds: float | None
    cost: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """An explanation of one decision.

    - `since_base` is the number of messages published since base's oldest unacknowledged message.
    - `since_pin` is the number of messages published since the publish second of the message that determines the
      candidate.
    - `pin` describes that message's cell, and `ahead` says how many messages base may still hold.
    - `alternatives` is None if the log before the decision is lost. Then only the decision itself is explained.

    `since_base` and `since_pin` count only messages with an event time. They are upper bounds, because redelivered
    messages are counted again. None means unknown.
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
        """Return the sentences of the explanation in order, except alternatives and rules that were not reached."""
        reached = [condition.text for condition in self.conditions if condition.outcome is not RuleOutcome.NOT_REACHED]
        return [self.decision.sentence() + ".", *reached, *filter(None, (self.pin, self.ahead)), *self.moves]


def explain(record: DecisionRecord, before: WatermarkState) -> Explanation:
    """Return the explanation of a decision. `before` is the state after all log entries before the decision."""
    decision = record.decision
    situation = before.situation(record.base, record.tracking, record.policy, decision.at)
    verdicts = verdicts_of(situation)
    if advance(situation, verdicts) != decision:  # the decision's inputs have been lost since
        return Explanation(decision)
    since_base = None if decision.base is None else published_since(situation, decision.base.oldest_unacked)
    since_pin = None if decision.pin is None else published_since(situation, decision.pin.published_from)
    return Explanation(
        decision=decision,
        conditions=conditions(situation, verdicts, decision),
        pin=_pin(situation, decision),
        since_base=since_base,
        since_pin=since_pin,
        ahead=_outstanding(decision, since_base, since_pin),
        moves=list(moves(situation, decision)),
        alternatives=alternatives(before, record),
    )


def _pin(s: Situation, decision: Decision) -> str | None:
    pin, base, evidence = decision.pin, decision.base, decision.evidence
    if pin is None or base is None:
        return None
    happened = iso(bucket_start(bucket_of(pin.min_event_time)))
    seconds = f"published in the second from {iso(pin.published_from)}, happened in the second from {happened}"
    cell = f"Its cell: {seconds}, at most {counted(pin.count, 'message')}."
    event_time = iso(pin.min_event_time)
    if isinstance(evidence, FrontierEvidence) and evidence.is_at_frontier:
        unread = "Equally old messages may be among those that tracking has not read yet."
        return f"The candidate is the frontier, {event_time}. {cell} {unread}"
    quantile = f" (except {s.policy.quantile:.2g} of each publish second: quantile)" if s.policy.quantile > 0 else ""
    least = f"The candidate is the earliest event time{quantile}, {event_time}. {cell}"
    ends = pin.published_from + SECOND
    if ends > s.oldest_base:
        if s.release is not None:
            return f"{least} What base holds from then on is unknown: the message may still be outstanding."
        if ends <= base.oldest_unacked:
            return f"{least} Base has passed this second, but by less than the slack."
        return f"{least} Base has not acknowledged everything published then: the message may still be outstanding."
    passed = "Base has acknowledged it" if ends <= s.base_after_slack else "An operator released it"
    if ends > s.band_edge:
        return f"{least} {passed}, but it is within the band: equally old messages may still come."
    return f"{least} {passed}. It is the anchor: equally old messages may still come."


def _outstanding(decision: Decision, since_base: int | None, since_pin: int | None) -> str | None:
    if since_base is None or decision.base is None:
        return None
    oldest = iso(decision.base.oldest_unacked)
    if not since_base:
        return f"Base has acknowledged everything that tracking has read: all of it was published before {oldest}."
    most, since_then = counted(since_base, "message"), ""
    if since_pin is not None:
        since_then = f"; published since the pin's second: at most {counted(since_pin, 'message')}"
    return f"At most {most} (published since {oldest}) that tracking has read may still be on base{since_then}."


def alternatives(before: WatermarkState, record: DecisionRecord) -> list[Alternative]:
    """Return each setting that alone would have changed the watermark or the reason of this decision.

    Only this decision is made again. Earlier decisions are kept, although the setting might have changed them too.
    """
    decision = record.decision
    found: list[Alternative] = []
    for setting, value, policy, cost in _trials(record.policy):
        other = before.decide(record.base, record.tracking, policy, decision.at).decision
        further = None
        if other.watermark is not None and decision.watermark is not None:
            further = (other.watermark - decision.watermark).total_seconds()
        effect = other.watermark, other.reason
        is_known = any(one.setting == setting and (one.watermark, one.reason) == effect for one in found)
        if effect != (decision.watermark, decision.reason) and not is_known:  # the mildest value is enough
            found.append(Alternative(setting, value, *effect, further, cost))
    return found


def _trials(policy: Policy) -> Iterator[tuple[str, str, Policy, str]]:
    """Yield alternatives to try. Each is the name of a setting, its new value, the resulting policy, and the cost of
    the change in words."""
    if policy.rule == "band":
        yield "rule", "frontier", replace(policy, rule="frontier"), "messages of a late stream count as late"
    else:
        yield "rule", "band", replace(policy, rule="band"), "one slow clock, or one late stream, holds all others back"
    for band in sorted({policy.band / 2, *BANDS}, reverse=True):
        if band < policy.band:
            cost = "messages with more disorder than that are late"
            yield "band", format_duration(band), policy.with_band(band), cost
    for max_lag in MAX_LAGS:
        if policy.max_lag is None or max_lag < policy.max_lag:
            cost = "messages that lag more than that are late"
            yield "max_lag", format_duration(max_lag), replace(policy, max_lag=max_lag), cost
    if policy.idle == "advance":
        cost = "the last windows before a silence stay open until something is published"
        yield "idle", "hold", replace(policy, idle="hold"), cost
    else:
        cost = "after a silence, messages that lag more than the recent lag plus the band are late"
        yield "idle", "advance", replace(policy, idle="advance"), cost

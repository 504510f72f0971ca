"""The rules of a decision in the order in which they are applied, each with its outcome and a sentence."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pipeline.clock import iso
from pipeline.durations import format_duration
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.estimator import has_no_backlog, is_idle, is_stale, was_sought
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading
from pipeline.watermark.state import WatermarkState

ZERO = timedelta(0)


class Outcome(StrEnum):
    """What a rule said. What comes after one that held or decided is not looked at."""

    PASSED = "passed"
    HELD = "held"
    DECIDED = "decided"
    NOT_REACHED = "not reached"


@dataclass(frozen=True, slots=True)
class Condition:
    """A rule and what it said."""

    rule: str
    outcome: Outcome
    text: str


RULES = {
    "readings": "whether both backlogs were read, and lately",
    "seek": "whether a subscription was sought back",
    "completeness": "whether tracking knows all that base may hold",
    "tracking": "whether tracking has read far enough",
    "silence": "whether nothing is published any more",
    "data": "whether anything was published a band ago",
    "candidate": "whether the candidate is above the watermark",
}
"""The rules by name, in order, and what each asks."""


def conditions(decision: Decision, policy: Policy, state: WatermarkState | None) -> list[Condition]:
    """Each rule in order. `state` is the fold before the decision (None: not known; less is told then)."""
    found = list(_until_decided(decision, policy, state))
    reached = {condition.rule for condition in found}
    found += [
        Condition(rule, Outcome.NOT_REACHED, f"Not looked at: {asks}.")
        for rule, asks in RULES.items()
        if rule not in reached
    ]
    return sorted(found, key=lambda condition: list(RULES).index(condition.rule))


def _until_decided(decision: Decision, policy: Policy, state: WatermarkState | None) -> Iterator[Condition]:
    base, tracking = decision.base, decision.tracking
    if decision.reason is Reason.HELD_STALE_READING or base is None or tracking is None:
        yield Condition("readings", Outcome.HELD, _stale(decision, policy))
        return
    yield Condition(
        "readings", Outcome.PASSED, f"{_backlog('Base', base, policy)} {_backlog('Tracking', tracking, policy)}"
    )

    if decision.reason is Reason.HELD_SEEK:
        yield Condition("seek", Outcome.HELD, _sought(decision, state))
        return
    yield Condition("seek", Outcome.PASSED, "Neither subscription was sought back since the decision before.")

    oldest_base, oldest_tracking = (
        base.oldest_unacked - policy.base_slack,
        tracking.oldest_unacked - policy.reading_slack,
    )
    if decision.reason is Reason.HELD_INCOMPLETE:
        yield Condition("completeness", Outcome.HELD, _incomplete(decision, policy, state))
        return
    if decision.released_before is not None:
        oldest_base = decision.released_before
        holds = f"what base holds from before {iso(oldest_base)} was let go by an operator"
    else:
        less = f" (less {format_duration(policy.base_slack)} of slack)" if policy.base_slack > ZERO else ""
        holds = f"base holds nothing older than {iso(oldest_base)}{less}"
    yield Condition("completeness", Outcome.PASSED, f"{_knows(decision)}, and {holds}.")

    ahead, band = oldest_tracking - oldest_base, format_duration(policy.band)
    near = format_duration(policy.near_real_time)
    age = tracking.observed_at - tracking.oldest_unacked
    slack = " (less slack)" if policy.base_slack > ZERO or policy.reading_slack > ZERO else ""
    if decision.reason is Reason.HELD_TRACKING_BEHIND:
        where = (f"{rough(ahead)} ahead of base" if ahead >= ZERO else f"{rough(-ahead)} behind base") + slack
        yield Condition(
            "tracking",
            Outcome.HELD,
            f"Tracking has a backlog of {rough(age)}, more than {near} (near_real_time), and is {where}: less than the "
            f"band of {band}.",
        )
        return
    if has_no_backlog(tracking, policy):
        text = f"Tracking has no backlog: it was read to within {near} (near_real_time) of the moment of its reading."
    else:
        text = (
            f"Tracking has a backlog of {rough(age)}, but is {rough(ahead)} ahead of base{slack}: at least the band of "
            f"{band}."
        )
    yield Condition("tracking", Outcome.PASSED, text)
    yield from _candidate(decision, policy, state)


def _candidate(decision: Decision, policy: Policy, state: WatermarkState | None) -> Iterator[Condition]:
    band, newest = format_duration(policy.band), when(decision.newest_publish_time)
    timeout = format_duration(policy.idle_timeout)
    if decision.recent_lag is not None:
        yield Condition(
            "silence",
            Outcome.DECIDED,
            f"Nothing with an event time was published since {newest}, for more than {timeout} (idle_timeout); nothing "
            f"is outstanding. The candidate is the lesser reading, less the band of {band}, less the last messages' "
            f"lag of {rough(decision.recent_lag)}.",
        )
        yield _compared(decision, state)
        return
    if decision.newest_publish_time is None:
        text = "No message with an event time was ever seen."
    elif _is_silent(decision, policy, state):
        text = (
            f'Nothing with an event time was published since {newest}, and nothing is outstanding; but idle = "hold".'
        )
    elif decision.tracking is not None and decision.base is not None:
        silence = decision.tracking.observed_at - decision.newest_publish_time
        text = f"The newest message was published at {newest}, {rough(max(silence, ZERO))} before tracking was read"
        if silence <= policy.idle_timeout:
            text += f": no silence of more than {timeout} (idle_timeout)."
        elif decision.base.oldest_unacked - policy.base_slack <= decision.newest_publish_time:
            text += ", but base may still hold it: that is no silence."
        else:
            text += ", but there is a backlog: that is no silence."
    yield Condition("silence", Outcome.PASSED, text)

    if decision.reason is Reason.HELD_NO_DATA:
        yield Condition(
            "data",
            Outcome.HELD,
            f"Nothing is known with an event time and published more than {band} (the band) before what tracking has "
            "read.",
        )
        return
    looked_at = f"at most {messages(decision.messages_in_band)} published from {when(decision.band_start)}"
    if decision.frontier is not None:
        greatest = "the greatest event time"
        if policy.frontier_quantile > 0:
            greatest += f" (but for {policy.frontier_quantile:.2g} of each publish second: frontier_quantile)"
        text = (
            f"Looked at: {looked_at} on (base's backlog), and the frontier, {iso(decision.frontier)}: {greatest} that "
            f"was published more than {band} (the band) before what tracking has read."
        )
    else:
        anchor = f", and the anchor at {iso(decision.anchor)}" if decision.anchor else ""
        text = (
            f"Looked at: {looked_at} to {when(decision.band_end)} (base's backlog, the band of {band} before what "
            f"tracking has read{anchor})."
        )
    yield Condition("data", Outcome.PASSED, text)
    yield _compared(decision, state)


def _compared(decision: Decision, state: WatermarkState | None) -> Condition:
    candidate = f"The candidate is {when(decision.candidate)}"
    if decision.reason in (Reason.ADVANCED, Reason.IDLE_ADVANCED, Reason.RELEASED):
        before = None if state is None else state.watermark
        above = "." if before is None else f", above the watermark before it ({iso(before)}): it moves."
        if state is not None and before is None:
            above = ", and there was no watermark before: it is the first."
        return Condition("candidate", Outcome.DECIDED, candidate + above)
    return Condition(
        "candidate", Outcome.HELD, f"{candidate}, not above the watermark ({when(decision.watermark)}): it stays."
    )


def _is_silent(decision: Decision, policy: Policy, state: WatermarkState | None) -> bool:
    if state is None or decision.base is None or decision.tracking is None:
        return decision.reason is Reason.IDLE_HELD
    return is_idle(state.histogram, decision.base, decision.tracking, policy)


def _backlog(name: str, reading: EffectiveReading, policy: Policy) -> str:
    if reading.names_a_message:
        age = reading.observed_at - reading.oldest_unacked
        return (
            f"{name}'s oldest unacknowledged message was published at {iso(reading.oldest_unacked)}, {rough(age)} "
            "before it was observed."
        )
    if has_no_backlog(reading, policy):
        return f"{name} had no backlog at {iso(reading.observed_at)}."
    return f"{name} has acknowledged everything that was published before {iso(reading.oldest_unacked)}."


def _stale(decision: Decision, policy: Policy) -> str:
    texts = []
    for name, reading in (("Base's", decision.base), ("Tracking's", decision.tracking)):
        if reading is None:
            texts.append(f"{name} backlog was never read.")
        elif is_stale(reading, decision.at, policy):
            texts.append(
                f"{name} backlog was last read at {iso(reading.newest.observed_at)}, "
                f"{rough(decision.at - reading.newest.observed_at)} before, which is more than "
                f"{format_duration(policy.max_reading_age)} (max_reading_age)."
            )
    return " ".join(texts)


def _sought(decision: Decision, state: WatermarkState | None) -> str:
    before = None if state is None else state.decision
    if before is None:
        return "A subscription was sought back."
    pairs = (("Base", decision.base, before.base), ("Tracking", decision.tracking, before.tracking))
    return " ".join(
        f"{name} was sought back: what is outstanding there began at {iso(earlier.oldest_unacked)}, and begins now at "
        f"{iso(later.oldest_unacked)}."
        for name, later, earlier in pairs
        if later is not None and earlier is not None and was_sought(later, earlier)
    )


def _incomplete(decision: Decision, policy: Policy, state: WatermarkState | None) -> str:
    base = when(None if decision.base is None else decision.base.oldest_unacked)
    knows, holds = _knows(decision), f"base may hold what was published since {base}"
    if policy.base_slack > ZERO:
        holds += f", and as much as {format_duration(policy.base_slack)} (base_slack) before"
    if decision.released_before is not None:
        holds += f", of which what is from before {iso(decision.released_before)} was let go"
    if state is not None and state.is_missing_entries:
        return f"An entry of the tracking log was lost. {knows}, and {holds}."
    if state is not None and state.complete_from != decision.complete_from:
        return f"Base holds a message published at {base} that tracking has never seen: a hole. {knows}."
    return f"{knows}, and {holds}."


def _knows(decision: Decision) -> str:
    return f"Tracking knows everything published from {when(decision.complete_from)} to where it has read"


def passed_over(policy: Policy) -> str:
    """What a quantile leaves out of a least event time."""
    return f" (but for {policy.quantile:.2g} of each publish second: quantile)" if policy.quantile > 0 else ""


def messages(count: int) -> str:
    """A number of messages."""
    return "1 message" if count == 1 else f"{count:,} messages"


def rough(duration: timedelta) -> str:
    """A duration to the second."""
    return format_duration(timedelta(seconds=round(duration.total_seconds())))


def when(moment: datetime | None) -> str:
    """A moment, where there is one."""
    return "an unknown moment" if moment is None else iso(moment)

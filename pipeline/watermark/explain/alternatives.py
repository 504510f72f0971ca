"""The same tick under other settings: which of them would have moved the watermark, by how much, at what cost.

Pure: the readings and the log's fold are those of the decision, so that each answer is what the estimator gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pipeline.durations import format_duration
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.estimator import is_stale
from pipeline.watermark.policy import Policy
from pipeline.watermark.state import DecisionRecord, WatermarkState

ZERO, SECOND = timedelta(0), timedelta(seconds=1)
BANDS = (timedelta(seconds=5), SECOND)
QUANTILES = (0.001, 0.01)
"""What is tried, apart from half the band, where it is less careful than the setting."""
TRIED = (
    *("rule", "band", "quantile", "frontier_quantile", "idle", "idle_timeout", "max_idle_lag", "near_real_time"),
    *("max_reading_age", "seek_tolerance", "reading_slack", "base_slack"),
)
"""Each of which is tried where it may matter."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A setting that would have made this one decision another. `further` is by how much the watermark would have been
    further on (negative: further back; None: there would be one, or none, for the first time)."""

    setting: str
    value: str
    watermark: datetime | None
    reason: Reason
    further: timedelta | None
    cost: str


@dataclass(frozen=True, slots=True)
class _Trial:
    setting: str
    value: str
    policy: Policy
    cost: str


def alternatives(state: WatermarkState, decided: DecisionRecord) -> list[Alternative]:
    """The settings that would have changed the watermark or the reason of a decision, each alone, as mild as does.

    `state` is the fold of the entries before the decision. The effect is that on this one tick: what the setting
    would have done in the ticks before is not looked at.
    """
    found: list[Alternative] = []
    for trial in _trials(state, decided):
        other = state.decide(decided.base, decided.tracking, trial.policy, decided.decision.at).decision
        further = _difference(other.watermark, decided.decision.watermark)
        tried = Alternative(trial.setting, trial.value, other.watermark, other.reason, further, cost=trial.cost)
        if (tried.watermark, tried.reason) == (decided.decision.watermark, decided.decision.reason):
            continue
        if not found or _effect(found[-1]) != _effect(tried):  # the mildest value that does it is enough
            found.append(tried)
    return found


def _effect(tried: Alternative) -> tuple[str, datetime | None, Reason]:
    return tried.setting, tried.watermark, tried.reason


def _difference(there: datetime | None, here: datetime | None) -> timedelta | None:
    return None if there is None or here is None else there - here


def _trials(state: WatermarkState, decided: DecisionRecord) -> Iterator[_Trial]:
    policy, decision = decided.policy, decided.decision
    if policy.rule == "band":
        cost = "a clock that runs fast makes everybody else late"
        yield _Trial("rule", "frontier", replace(policy, rule="frontier"), cost)
    else:
        cost = "one slow clock, or one late stream, holds everybody back"
        yield _Trial("rule", "band", replace(policy, rule="band"), cost)
    for band in sorted({policy.band / 2, *BANDS}, reverse=True):
        if band < policy.band:
            cost = "tolerates less disorder: what is out of order by more is late"
            # Unless it is set, base_slack is the band (on the service), so it becomes less with it.
            base_slack = band if policy.base_slack == policy.band else policy.base_slack
            yield _Trial("band", format_duration(band), replace(policy, band=band, base_slack=base_slack), cost)
    for quantile in QUANTILES:
        if quantile > policy.quantile:
            cost = "that share of each publish second is knowingly late"
            yield _Trial("quantile", f"{quantile:g}", replace(policy, quantile=quantile), cost)
    if policy.frontier_quantile > 0:
        cost = "a clock that runs fast makes everybody else late"
        yield _Trial("frontier_quantile", "0", replace(policy, frontier_quantile=0.0), cost)
    if policy.idle == "advance":
        cost = "the last windows before a silence stay open until something is published"
        yield _Trial("idle", "hold", replace(policy, idle="hold"), cost)
    else:
        cost = "after a silence, what is older than the recent lag and the band is late"
        yield _Trial("idle", "advance", replace(policy, idle="advance"), cost)
    yield from _silences(decision, policy)
    yield from _waits(state, decision, policy)
    cost = "what the service shows only a moment after its publish time may be late"
    if policy.reading_slack > ZERO:
        yield _Trial("reading_slack", "0s", replace(policy, reading_slack=ZERO), cost)
    if policy.base_slack > ZERO:
        yield _Trial("base_slack", "0s", replace(policy, base_slack=ZERO), cost)


def _silences(decision: Decision, policy: Policy) -> Iterator[_Trial]:
    """What counts as a silence, and how far behind it is followed. Less than the band is a pause of no account."""
    tracking, newest, lag = decision.tracking, decision.newest_publish_time, decision.recent_lag
    if tracking is not None and newest is not None and tracking.observed_at - newest > policy.band:
        timeout = _whole(tracking.observed_at - newest) - SECOND
        if ZERO < timeout < policy.idle_timeout:
            cost = "so short a pause is a silence: what is older than the recent lag and the band is late"
            yield _Trial("idle_timeout", format_duration(timeout), replace(policy, idle_timeout=timeout), cost)
    if lag is not None:
        for most in (_whole(lag / 2), ZERO):
            cost = "after a silence, what lags further behind than that and the band is late"
            yield _Trial("max_idle_lag", format_duration(most), replace(policy, max_idle_lag=most), cost)


def _waits(state: WatermarkState, decision: Decision, policy: Policy) -> Iterator[_Trial]:
    """The settings that say how long to wait for a reading, just large enough for this tick."""
    base, tracking = decision.base, decision.tracking
    if base is None or tracking is None:
        return
    for reading, name in ((tracking, "tracking"), (base, "base")):
        near = _whole(reading.observed_at - reading.oldest_unacked)
        if near > policy.near_real_time:
            cost = f"counts what {name} has not acknowledged for {format_duration(near)} as no backlog"
            yield _Trial("near_real_time", format_duration(near), replace(policy, near_real_time=near), cost)
    if is_stale(base, decision.at, policy) or is_stale(tracking, decision.at, policy):
        age = _whole(decision.at - min(base.newest.observed_at, tracking.newest.observed_at))
        cost = "it is noticed later that a backlog cannot be read"
        yield _Trial("max_reading_age", format_duration(age), replace(policy, max_reading_age=age), cost)
    before = state.decision
    if decision.reason is Reason.HELD_SEEK and before is not None:
        pairs = [(earlier, later) for earlier, later in ((before.base, base), (before.tracking, tracking)) if earlier]
        fall = _whole(max(earlier.oldest_unacked - later.newest.no_later_than for earlier, later in pairs))
        cost = "such a seek goes unnoticed, and what it replays is not waited for"
        yield _Trial("seek_tolerance", format_duration(fall), replace(policy, seek_tolerance=fall), cost)


def _whole(duration: timedelta) -> timedelta:
    """Rounded up to a second."""
    return -(-duration // SECOND) * SECOND

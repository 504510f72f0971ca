"""The same tick under other settings: which of them would have moved the watermark, by how much, at what cost.

Pure: the readings and the log's fold are those of the decision, so that each answer is what the estimator gives.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pipeline.durations import format_duration
from pipeline.watermark.decision import Reason
from pipeline.watermark.policy import Policy
from pipeline.watermark.state import DecisionRecord, WatermarkState

BANDS = (timedelta(seconds=5), timedelta(seconds=1))
"""The bands that are tried, beside half of the present one, where they are smaller."""

TRIED = ("rule", "band", "idle")
"""The settings that are tried."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """A setting that would have changed this one decision.

    `further` is how much further the watermark would have been (negative: further back). It is None where the watermark
    would be the first, or there would be none.
    """

    setting: str
    value: str
    watermark: datetime | None
    reason: Reason
    further: timedelta | None
    cost: str


def alternatives(before: WatermarkState, record: DecisionRecord) -> list[Alternative]:
    """The settings that would have changed the watermark or the reason of a decision, each alone.

    `before` is the fold of the entries before the decision. Only this tick is decided again: earlier ticks under the
    setting might have led elsewhere.
    """
    decision = record.decision
    found: list[Alternative] = []
    for setting, value, policy, cost in _trials(record.policy):
        other = before.decide(record.base, record.tracking, policy, decision.at).decision
        has_both = other.watermark is not None and decision.watermark is not None
        further = other.watermark - decision.watermark if has_both else None  # type: ignore[operator]
        tried = Alternative(setting, value, other.watermark, other.reason, further, cost)
        effect = tried.watermark, tried.reason
        is_told = any(one.setting == setting and (one.watermark, one.reason) == effect for one in found)
        if effect != (decision.watermark, decision.reason) and not is_told:  # the mildest value that does it is enough
            found.append(tried)
    return found


def _trials(policy: Policy) -> Iterator[tuple[str, str, Policy, str]]:
    """Setting, value, policy, and what that policy costs."""
    if policy.rule == "band":
        yield "rule", "frontier", replace(policy, rule="frontier"), "a clock that runs fast makes everybody else late"
    else:
        yield "rule", "band", replace(policy, rule="band"), "one slow clock, or one late stream, holds everybody back"
    for band in sorted({policy.band / 2, *BANDS}, reverse=True):
        if band < policy.band:
            # Unless it is set, base_slack is the band (on the service), so it shrinks with it.
            base_slack = band if policy.base_slack == policy.band else policy.base_slack
            smaller = replace(policy, band=band, base_slack=base_slack)
            yield "band", format_duration(band), smaller, "messages with more disorder than that are late"
    if policy.idle == "advance":
        cost = "the last windows before a silence stay open until something is published"
        yield "idle", "hold", replace(policy, idle="hold"), cost
    else:
        cost = "after a silence, messages that lag more than the recent lag and the band are late"
        yield "idle", "advance", replace(policy, idle="advance"), cost

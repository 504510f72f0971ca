"""The measures of each rule: its late share, and how long after its end a one-minute window was ready."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Literal

import numpy as np

from benchmarks.compare.rules import Watermark, beam, dataflow, flink, policy_of, spark, ticks_for, tidemark
from benchmarks.compare.traces import SECOND_US, Traffic
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.replay.trace import NO_EVENT_TIME, NO_WATERMARK, Tick
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy

WINDOW_US = 60 * SECOND_US
LEFT_OUT_US = 12 * WINDOW_US
"""Windows of the last minutes are left out, because the trace ends before they are ready."""

DEFAULT = timedelta(seconds=10)
"""tidemark's default band. Flink and Spark have no default; they are given the same."""

BOUNDS = tuple(
    timedelta(seconds=each) for each in (0, 2, 5, 8, 10, 12, 15, 20, 30, 60, 75, 90, 180, 300, 600, 1200, 1500, 2400)
)
BANDS = tuple(timedelta(seconds=each) for each in (0, 2, 5, 8, 10, 15, 30, 60, 75))
MAX_AGE = timedelta(minutes=10)
"""tidemark's `message.max_age`, tried beside its default (off), as is `idle = "hold"` where a trace has a silence."""

GOOD_ENOUGH = 0.0001
"""The late share that a best setting must keep: the target of `tidemark tune`."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One setting of one rule on one trace: shares and seconds. A window that was never ready has infinite seconds."""

    setting: str
    late_share: float
    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class Compared:
    """All outcomes of a rule on a trace, in the order of its bound; the default is one of them."""

    outcomes: Sequence[Outcome]
    default: Outcome

    @property
    def best(self) -> Outcome:
        """The freshest of those with few late enough; where there are none, the one with the fewest late."""
        good = [each for each in self.outcomes if each.late_share <= GOOD_ENOUGH and np.isfinite(each.median)]
        if good:
            return min(good, key=lambda each: (each.median, each.worst))
        known = [each for each in self.outcomes if np.isfinite(each.median)]
        return min(known or self.outcomes, key=lambda each: (each.late_share, each.median))


def outcome(setting: str, traffic: Traffic, mark: Watermark) -> Outcome:
    """A message is late if its window was passed when it was read: by then the window is computed, or dropped."""
    valid = traffic.counted & (traffic.event_us != NO_EVENT_TIME)
    event_us, landed_us = traffic.event_us[valid], traffic.landed_us[valid]
    ends_us = (event_us // WINDOW_US + 1) * WINDOW_US
    standing = np.concatenate([[NO_WATERMARK], mark.value_us])[np.searchsorted(mark.at_us, landed_us, side="left")]
    late_share = float(np.count_nonzero(ends_us <= standing) / len(event_us))
    windows = _windows_with_data(np.sort(event_us), traffic)
    passed = np.searchsorted(mark.value_us, windows, side="left")
    known = passed < len(mark.at_us)
    ready = np.full(len(windows), np.inf)
    ready[known] = (mark.at_us[passed[known]] + mark.ready_after_us - windows[known]) / SECOND_US
    return Outcome(setting, late_share, float(np.quantile(ready, 0.5, method="lower")), float(ready.max()))


def _windows_with_data(event_us: Ints, traffic: Traffic) -> Ints:
    """The ends of one-minute windows with a message in them, at any whole second: when a tick comes is then chance."""
    last = int(traffic.publish_us.max()) - LEFT_OUT_US
    ends = np.arange(traffic.live_from_us, last, SECOND_US, dtype=np.int64)
    before = np.searchsorted(event_us, ends, side="left")
    return ends[before > np.searchsorted(event_us, ends - WINDOW_US, side="left")]


def compare(traffic: Traffic) -> Mapping[str, Compared]:
    """Play every rule with every setting on one trace. Return the outcomes by the rule's name."""
    ticks = ticks_for(traffic)
    found = {name: _compared(list(_tidemark(name, ticks, traffic))) for name in TIDEMARK}
    found["Dataflow, described"] = _compared([outcome(_said(band), traffic, dataflow(ticks, band)) for band in BANDS])
    for name, idleness in (("Flink", False), ("Flink, idleness", True)):
        found[name] = _compared(
            [outcome(_said(bound), traffic, flink(traffic, bound, idleness=idleness)) for bound in BOUNDS]
        )
    found["Spark"] = _compared([outcome(_said(bound), traffic, spark(traffic, bound)) for bound in BOUNDS])
    only = outcome("no bound", traffic, beam(traffic))
    found["Beam"] = Compared([only], only)
    return found


TIDEMARK: Mapping[str, tuple[Literal["band", "frontier"], bool]] = {
    "`band`": ("band", True),
    "`frontier`": ("frontier", True),
    "`frontier`, no slack": ("frontier", False),
}
"""tidemark's columns: the rule, and whether the readings have the slack that is the default on Google's service."""


def _tidemark(name: str, ticks: list[Tick], traffic: Traffic) -> Iterator[Outcome]:
    rule, slack = TIDEMARK[name]
    policies = [policy_of(rule, band, slack=slack) for band in BANDS]
    for policy in policies:
        yield outcome(_said(policy.band), traffic, tidemark(ticks, policy))
    if np.diff(np.sort(traffic.publish_us)).max() > duration_us(Policy().idle_timeout):
        for policy in policies:
            yield outcome(f"{_said(policy.band)}, hold", traffic, tidemark(ticks, replace(policy, idle="hold")))
    aged = traffic.without_older_than(MAX_AGE)
    if (aged.event_us != traffic.event_us).any():
        ticks = ticks_for(aged)
        for policy in policies:
            yield outcome(f"{_said(policy.band)}, max_age 10m", aged, tidemark(ticks, policy))


def _compared(outcomes: Sequence[Outcome]) -> Compared:
    (default,) = [each for each in outcomes if each.setting == _said(DEFAULT)]
    return Compared(outcomes, default)


def _said(bound: timedelta) -> str:
    return f"{bound.total_seconds():g} s"

"""Faults planted on purpose, each a few lines: what the simulation must find, or it proves nothing.

`found_within` bounds the seeds that it takes, from 0 on: about ten times what it took on average when it was measured,
so that a change of the product, which deals the same seeds other cards, does not by itself make a fault go unseen.
`where` leaves out the seeds in which it could not show. `tests/simulation/test_planted_faults.py` holds both; it begins
with the seed in which a fault showed first, `FIRST_SHOWN`, and goes through all where it shows there no more.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from pipeline.ticks.landing import land
from pipeline.ticks.tracking import track
from pipeline.watermark.policy import Policy
from tests.simulation.broken_parts import (
    Ahead,
    AnyCopy,
    CopiesByMessage,
    CopiesKept,
    NotLoadedAgain,
    Unfenced,
    anchor_with_ties,
    append_once,
    band_without_need_of_an_anchor,
    compact_without_the_frontier,
    decide_on_what_is_known,
    decided_anyway,
    estimate_as_if_complete,
    follow_the_newest,
    follow_without_seeks,
    frontier_alone,
    frontier_with_ties,
    frontier_without_need_of_one,
    idle_whatever_base_holds,
    land_acknowledging_first,
    land_without_catching_up,
    land_without_quarantine,
    move_without_an_archive,
    never_overtaken,
    quantile_of_the_whole_band,
    reading_of_nothing,
    restored_without_cells,
    track_acknowledging_first,
    track_reading_before_acknowledging,
    track_reading_before_pulling,
)
from tests.simulation.micro_batch import MicroBatch
from tests.simulation.plan import Plan


@dataclass(frozen=True)
class Planted:
    """What is put in place of what, where it could show, and within how many seeds it must be found."""

    name: str
    found_within: int = 0
    where: Callable[[Plan], bool] = lambda _plan: True
    policy: Callable[[Policy], Policy] = lambda policy: policy
    track: Callable[..., Any] = track
    land: Callable[..., Any] = land
    micro_batch: Callable[..., MicroBatch] = MicroBatch
    patches: tuple[tuple[str, Any], ...] = ()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The patches, for as long as the block runs."""
        with ExitStack() as stack:
            for target, replacement in self.patches:
                stack.enter_context(patch(target, replacement))
            yield


AS_IT_IS = Planted("as it is")


ESTIMATOR = "pipeline.watermark.estimator"
ZERO = timedelta(0)
STANDING = "pipeline.watermark.standing"
HISTOGRAM = "pipeline.watermark.histogram.Histogram"
LOG = "pipeline.lake.tracking_log"
PACKING = "pipeline.lake.log_packing.LogPacking"


def two_trackers(plan: Plan) -> bool:
    return plan.trackers > 1


def packed(plan: Plan) -> bool:
    return plan.packers > 0 and plan.checkpoint_every < 1000


def two_runners(plan: Plan) -> bool:
    return plan.runners > 1


def kept(plan: Plan) -> bool:
    return plan.is_kept


def by_band(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.rule == "band" and plan.policy.idle == "hold"


def by_frontier(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.rule == "frontier" and plan.policy.idle == "hold"


def just_in_time(plan: Plan) -> bool:
    return plan.kind == "just in time"


def any_lag(plan: Plan) -> bool:
    return plan.kind == "any lag"


def slack(plan: Plan) -> bool:
    return plan.is_kept and plan.slack_us > 0


def often_compacted(plan: Plan) -> bool:
    return plan.checkpoint_every == 3


def soon(plan: Plan) -> bool:
    return plan.starts_at_once


def quantiles(plan: Plan) -> bool:
    return plan.is_kept and plan.policy.quantile > 0


def hole(plan: Plan) -> bool:
    return plan.is_kept and plan.hole_until_us is not None


def idle(plan: Plan) -> bool:
    return plan.kind == "shrinking lag"


def both(one: Callable[[Plan], bool], other: Callable[[Plan], bool]) -> Callable[[Plan], bool]:
    return lambda plan: one(plan) and other(plan)


def _patched(name: str, found_within: int, where: Callable[[Plan], bool], target: str, replacement: Any) -> Planted:
    return Planted(name, found_within, where, patches=((target, replacement),))


def _anyway(_plan: Plan) -> bool:
    return True


_ALL = (
    Planted("tracking is acknowledged before it is persisted", 10, track=track_acknowledging_first),
    Planted("base is acknowledged before it has landed", 10, land=land_acknowledging_first),
    Planted("what is rejected is not kept", 40, land=land_without_quarantine),
    Planted("T is read before what was persisted is acknowledged", 50, track=track_reading_before_acknowledging),
    Planted("T and B are read before anything is pulled", 50, track=track_reading_before_pulling),
    _patched("the log is not listed again", 80, two_trackers, f"{LOG}.TrackingLog.decide", decide_on_what_is_known),
    Planted("late is judged by what was known before", 200, land=land_without_catching_up),
    _patched("who loses a number loses its entry", 200, two_trackers, f"{LOG}.TrackingLog._append", append_once),
    _patched("a restart forgets the histogram", 10, _anyway, f"{LOG}.TrackingLog._restored", restored_without_cells),
    _patched(
        "a checkpoint forgets the frontier",
        1200,
        both(by_frontier, often_compacted),
        f"{LOG}.TrackingLog.compact_if_due",
        compact_without_the_frontier,
    ),
    _patched("old entries are deleted and not archived", 30, packed, f"{PACKING}._move", move_without_an_archive),
    _patched("who was overtaken does not notice", 100, packed, f"{LOG}.TrackingLog._is_overtaken", never_overtaken),
    Planted("no anchor", 700, by_band, policy=lambda policy: replace(policy, anchor=False)),
    _patched(
        "decided without an anchor", 1200, both(by_band, soon), f"{ESTIMATOR}._band", band_without_need_of_an_anchor
    ),
    _patched(
        "decided without a frontier",
        6000,
        both(by_frontier, soon),
        f"{ESTIMATOR}._frontier",
        frontier_without_need_of_one,
    ),
    _patched("the frontier alone", 150, by_frontier, f"{ESTIMATOR}._frontier", frontier_alone),
    _patched("the newest reading, not the largest", 50, _anyway, f"{STANDING}.follow", follow_the_newest),
    _patched("a seek is a reading like any other", 100, _anyway, f"{STANDING}.follow", follow_without_seeks),
    _patched(
        "<= for < in the frontier",
        2500,
        both(just_in_time, by_frontier),
        f"{HISTOGRAM}.frontier_before",
        frontier_with_ties,
    ),
    _patched(
        "<= for < in the anchor",
        2500,
        both(just_in_time, by_band),
        f"{HISTOGRAM}.newest_valid_before",
        anchor_with_ties,
    ),
    _patched("the running frontier is forgotten", 150, by_frontier, f"{STANDING}.frontier_of", lambda *_: None),
    _patched(
        "a quantile of the whole band", 1200, quantiles, f"{HISTOGRAM}.quantile_between", quantile_of_the_whole_band
    ),
    _patched("complete_from is ignored", 100, kept, f"{STANDING}.estimate", estimate_as_if_complete),
    _patched("no look for holes", 2000, hole, f"{ESTIMATOR}._end_of_hole", lambda *_: None),
    _patched("unknown is nothing outstanding", 300, kept, "pipeline.ticks.tracking._reading", reading_of_nothing),
    _patched("the watermark follows the candidate back", 200, _anyway, f"{ESTIMATOR}._Held.decided", decided_anyway),
    Planted("no slack", 150, slack, policy=lambda policy: replace(policy, base_slack=ZERO, reading_slack=ZERO)),
    Planted("no slack for base", 150, slack, policy=lambda policy: replace(policy, base_slack=ZERO)),
    Planted(
        "no slack for tracking",
        6000,
        both(any_lag, slack),
        policy=lambda policy: replace(policy, reading_slack=ZERO),
    ),
    _patched("idle whatever base holds", 1300, idle, f"{ESTIMATOR}.is_idle", idle_whatever_base_holds),
    Planted("copies are kept", 10, micro_batch=CopiesKept),
    Planted("copies of one publisher are kept", 20, micro_batch=CopiesByMessage),
    Planted("of copies the one that landed first", 200, micro_batch=AnyCopy),
    Planted("windows above the watermark", 20, micro_batch=Ahead),
    Planted("a run reads the version that it knew", 20, micro_batch=NotLoadedAgain),
    Planted("no fence", 300, two_runners, micro_batch=Unfenced),
    _patched("missed messages are not counted", 600, _anyway, "tests.simulation.oracle.missed", lambda *_: {}),
)

PLANTED = {planted.name: planted for planted in _ALL}

FIRST_SHOWN = {
    "old entries are deleted and not archived": 13,
    "who was overtaken does not notice": 13,
    "what is rejected is not kept": 1,
    "T is read before what was persisted is acknowledged": 8,
    "T and B are read before anything is pulled": 8,
    "the log is not listed again": 12,
    "late is judged by what was known before": 7,
    "who loses a number loses its entry": 28,
    "a checkpoint forgets the frontier": 16,
    "no anchor": 78,
    "decided without an anchor": 103,
    "decided without a frontier": 16,
    "the frontier alone": 6,
    "a seek is a reading like any other": 7,
    "<= for < in the frontier": 42,
    "<= for < in the anchor": 203,
    "the running frontier is forgotten": 6,
    "a quantile of the whole band": 217,
    "complete_from is ignored": 3,
    "no look for holes": 249,
    "unknown is nothing outstanding": 5,
    "the watermark follows the candidate back": 7,
    "no slack": 15,
    "no slack for base": 12,
    "no slack for tracking": 354,
    "idle whatever base holds": 146,
    "of copies the one that landed first": 12,
    "no fence": 10,
    "missed messages are not counted": 21,
}
"""The seed in which a fault showed first; 0 where it is not said."""

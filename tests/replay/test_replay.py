"""Deciding again: against the estimator on everything at each tick, and against the rules on exact times."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.replay.test_trace import histogram_at, traces
from tests.replay.traces import NAMED, Held, sparse
from tests.watermark.builders import at, bounded, ints, published, reading, seconds, situation_of
from tests.watermark.exact_rule import exact_late, exact_readings, exact_watermarks
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.replay.replay import (
    RULES_WITHOUT_ANCHOR,
    Difference,
    Hold,
    Replayed,
    Verification,
    decide_again,
    replayed,
    verify,
)
from tidemark.pipeline.replay.trace import NO_EVENT_TIME, NO_WATERMARK, Batch, Tick, ticks_of, watermarks_us
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import Histogram, Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading, follow
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.state import Beginning, Compacted, Entry, Lost, Released, Snapshot, WatermarkState

RuleName = Literal["band", "frontier"]
SEEDS = 3
BUCKET_US = 1_000_000
TICKS = {"two days read in 15 minutes": timedelta(minutes=1)}
"""Two days are not looked at every 10 seconds here."""

both_rules = pytest.mark.parametrize("rule", ["band", "frontier"])


@dataclass(frozen=True, slots=True)
class Run:
    """A named trace, replayed, beside the rules on exact times."""

    decisions: list[Decision]
    late: int
    watermark_us: Ints
    exact_us: Ints
    wider_us: Ints


def run_of(name: str, seed: int, policy: Policy) -> Run:
    trace = Held(NAMED[name](seed))
    ticks = ticks_of(trace, TICKS.get(name, seconds(10)), policy.idle_timeout)
    outcome = replayed([decided.decision for decided in decide_again(ticks, policy)], trace)
    tick_us = ints(to_us(tick.at) for tick in ticks)
    wider = replace(policy, band=policy.band + seconds(2))
    return Run(
        list(outcome.decisions),
        outcome.late,
        watermarks_us([decision.watermark for decision in outcome.decisions]),
        *(
            ints(NO_WATERMARK if us is None else us for us in exact_watermarks(trace.messages, tick_us, each))
            for each in (policy, wider)
        ),
    )


@both_rules
@pytest.mark.parametrize("name", NAMED)
def test_nothing_is_late_and_the_watermark_is_just_below_that_of_exact_times(name: str, rule: RuleName) -> None:
    below: list[int] = []
    for seed in range(SEEDS):
        run = run_of(name, seed, Policy(rule=rule))
        assert run.late == 0, f"seed {seed}"
        assert (run.watermark_us <= run.exact_us).all(), f"seed {seed}: above what the rule gives"
        known = run.exact_us != NO_WATERMARK
        assert (run.watermark_us != NO_WATERMARK)[known].all(), f"seed {seed}: none where the rule gives one"
        # Two buckets of publish time more, and one of event time, bound it whatever the messages are.
        assert (run.watermark_us >= run.wider_us - BUCKET_US)[known].all(), f"seed {seed}"
        moved = known & np.array([decision.reason is Reason.ADVANCED for decision in run.decisions])
        below += (run.exact_us - run.watermark_us)[moved].tolist()
    assert np.mean(np.array(below) <= 2 * BUCKET_US) > 0.995, f"up to {max(below)} us below"
    assert Reason.IDLE_ADVANCED in {decision.reason for decision in run.decisions}  # at the end, at least


def test_without_the_anchor_the_sparse_trace_loses_messages() -> None:
    late = dict.fromkeys((True, False), 0)
    for seed in range(SEEDS):
        trace = Held(sparse(seed))
        for anchor in late:
            rules = RULES if anchor else RULES_WITHOUT_ANCHOR
            decided = decide_again(ticks_of(trace, seconds(10), Policy().idle_timeout), Policy(), rules=rules)
            late[anchor] += replayed([each.decision for each in decided], trace).late
    assert late[True] == 0
    assert late[False] >= SEEDS


policies = st.builds(
    Policy,
    rule=st.sampled_from(["band", "frontier"]),
    band=st.sampled_from([seconds(0), seconds(2.5), seconds(10)]),
    near_real_time=st.sampled_from([seconds(0), seconds(10), seconds(100)]),
    idle_timeout=st.just(seconds(20)),
    idle=st.sampled_from(["advance", "hold"]),
    quantile=st.sampled_from([0, 0, 0.3]),
    reading_slack=st.sampled_from([seconds(0), seconds(1)]),
    base_slack=st.sampled_from([seconds(0), seconds(3)]),
)


@bounded
@given(traces, policies, st.sampled_from([2.0, 7.0, 10.0]), st.sampled_from([RULES, RULES, RULES_WITHOUT_ANCHOR]))
def test_a_replay_is_the_estimator_on_everything_at_each_tick(
    trace: Held, policy: Policy, tick: float, rules: Sequence[Rule]
) -> None:
    ticks = ticks_of(trace, seconds(tick), policy.idle_timeout)
    again = [decided.decision for decided in decide_again(ticks, policy, rules=rules)]
    assert again == decided_on_everything(trace.messages, [tick.at for tick in ticks], policy, rules)
    outcome = replayed(again, trace)
    tick_us, watermarks = watermarks_us([each.at for each in again]), [each.watermark for each in again]
    late = exact_late(trace.messages, tick_us, [None if each is None else to_us(each) for each in watermarks])
    assert outcome.late_total.tolist() == late
    valid = trace.messages.event_us != NO_EVENT_TIME
    assert outcome.landed == np.count_nonzero((trace.messages.landed_us <= tick_us[-1]) & valid)


def decided_on_everything(
    messages: Batch, moments: Sequence[datetime], policy: Policy, rules: Sequence[Rule]
) -> list[Decision]:
    """Each decision on one histogram of all that is tracked by then: no fold, no pruning, nothing from before but the
    last decision."""
    decisions: list[Decision] = []
    complete_from = from_us(int(messages.publish_us.min()))
    for moment in moments:
        previous = decisions[-1] if decisions else None
        base_us, tracking_us = exact_readings(messages, to_us(moment))
        readings = [
            Reading(moment, from_us(oldest), names_a_message=bool(outstanding))
            for oldest, outstanding in (
                (base_us, ((messages.publish_us <= to_us(moment)) & (messages.landed_us > to_us(moment))).any()),
                (tracking_us, ((messages.publish_us <= to_us(moment)) & (messages.tracked_us > to_us(moment))).any()),
            )
        ]
        decisions.append(
            estimate(
                situation_of(
                    histogram_at(messages, to_us(moment)),
                    base=follow(None if previous is None else previous.base, readings[0], policy.seek_tolerance),
                    tracking=follow(
                        None if previous is None else previous.tracking, readings[1], policy.seek_tolerance
                    ),
                    policy=policy,
                    previous=previous,
                    complete_from=complete_from if previous is None else previous.complete_from or complete_from,
                    at=moment,
                ),
                rules,
            )
        )
    return decisions


def recorded(*entries: Entry | int | Literal["compact"]) -> list[Tick]:
    """A log, as ticks with their recorded decisions. A number is a decision at that second, on what stands before."""
    state = WatermarkState()
    ticks: list[Tick] = []
    before: list[Entry] = []
    for each in entries:
        if isinstance(each, int):
            decided = state.decide(reading(each), reading(each), Policy(), at(each))
            ticks.append(Tick(at(each), tuple(before), decided.base, decided.tracking, recorded=decided))
            state, before = state.after(state.number + 1, decided), []
            continue
        entry = Compacted(state) if isinstance(each, str) else each
        before.append(entry)
        state = state.after(state.number + 1, entry)
    return ticks


def snapshot(*publish: float) -> Snapshot:
    return Snapshot(published([(second, second - 1) for second in publish]))


BEGUN = (Beginning(at(0)), snapshot(1, 5, 9), 20, snapshot(21, 25), 30)


def test_every_decision_of_a_log_follows_from_the_entries_before_it() -> None:
    released = Released(before=at(25), at=at(31), by="a test")
    ticks = recorded(*BEGUN, "compact", released, snapshot(41), 50, 60, "compact", snapshot(55, 61), 70)
    assert verify(ticks) == Verification(decisions=5, compacted=2, unknowable=0, first_difference=None)


def test_the_first_decision_that_does_not_follow_is_shown_beside_the_expected_one() -> None:
    ticks = recorded(*BEGUN, snapshot(41), 50)
    right = ticks[1].recorded
    assert right is not None
    assert right.decision.watermark is not None
    moved = replace(right.decision, watermark=right.decision.watermark + timedelta(microseconds=1))
    wrong = replace(right, decision=moved)
    ticks[1] = replace(ticks[1], recorded=wrong)
    assert verify(ticks) == Verification(1, 0, 0, Difference(recorded=wrong, derived=right))


@pytest.mark.parametrize(
    "holding",
    [published([(1, 0), (1, 0), (5, 4), (9, 8)]), published([(5, 4), (9, 8)])],
    ids=["a message more", "a cell less"],
)
def test_a_compacted_entry_with_another_state_is_reported(holding: Histogram) -> None:
    before = (Beginning(at(0)), snapshot(1, 5, 9))
    wrong = WatermarkState(histogram=holding, complete_from=at(0))
    decided = wrong.decide(reading(20), reading(20), Policy(), at(20))
    verdict = verify([Tick(at(20), (*before, Compacted(wrong)), decided.base, decided.tracking, recorded=decided)])
    assert verdict.first_difference is not None
    assert verdict.first_difference.recorded == wrong
    assert (verdict.decisions, verdict.compacted) == (0, 0)


def test_a_decision_that_knew_a_lost_entry_cannot_be_derived_and_the_rest_can() -> None:
    ticks = recorded(*BEGUN, snapshot(41), 50)
    # The snapshot before the second decision is lost, and found to be so only after the third.
    ticks[1] = replace(ticks[1], entries=(Lost("its object was damaged"),))
    state = WatermarkState()
    for tick in ticks:
        for entry in (*tick.entries, tick.recorded):
            assert entry is not None
            state = state.after(state.number + 1, entry)
    knowing = state.decide(reading(60), reading(60), Policy(), at(60))
    ticks.append(Tick(at(60), (), knowing.base, knowing.tracking, recorded=knowing))
    assert verify(ticks) == Verification(decisions=2, compacted=0, unknowable=2, first_difference=None)


def test_compacted_entries_do_not_bring_back_decisions_of_another_policy() -> None:
    plain, compacted = recorded(*BEGUN, snapshot(41), 50), recorded(*BEGUN, "compact", snapshot(41), 50)
    wider = Policy(band=seconds(30))
    assert list(decide_again(plain, wider)) == list(decide_again(compacted, wider))
    assert list(decide_again(compacted, wider)) != [tick.recorded for tick in compacted]
    assert list(decide_again(compacted, Policy())) == [tick.recorded for tick in compacted]


def decisions_for(*reasons: Reason) -> list[Decision]:
    return [Decision(at(10 * number), at(number), reason) for number, reason in enumerate(reasons)]


def test_the_longest_hold_lasts_to_the_first_tick_after_it() -> None:
    held, behind, moved = Reason.HELD_NO_DATA, Reason.HELD_TRACKING_BEHIND, Reason.ADVANCED
    outcome = Replayed(decisions_for(held, moved, held, behind, behind, moved, behind), ints([0] * 7), 0)
    assert outcome.longest_hold() == Hold(at(20), at(50), "HELD_TRACKING_BEHIND")  # which is most of it
    assert Replayed(decisions_for(moved, moved), ints([0, 0]), 0).longest_hold() is None
    at_the_end = Replayed(decisions_for(moved, held, held, held), ints([0] * 4), 0)
    assert at_the_end.longest_hold() == Hold(at(10), at(30), "HELD_NO_DATA")


def test_the_summary_is_of_what_landed_and_of_the_ticks_that_had_a_watermark() -> None:
    decisions = [Decision(at(0), None, Reason.HELD_NO_DATA), *decisions_for(Reason.ADVANCED)]
    decisions += [Decision(at(20), at(5), Reason.ADVANCED), Decision(at(30), at(10), Reason.UNCHANGED)]
    outcome = Replayed(decisions, ints([0, 0, 1, 3]), 12)
    assert (outcome.late, outcome.late_share, outcome.watermark) == (3, 0.25, at(10))
    assert outcome.lag(0.5) == seconds(15)
    assert outcome.reasons == {"ADVANCED": 2, "HELD_NO_DATA": 1, "UNCHANGED": 1}
    nothing = Replayed(decisions[:1], ints([0]), 0)
    assert (nothing.lag(0.5), nothing.late_share) == (None, 0.0)

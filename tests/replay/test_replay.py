"""Deciding again: against the estimator on everything at each tick; the ticks of a trace, and those of a log."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.replay.traces import Held, deciding, record, steady
from tests.watermark.builders import START_US, at, bounded, ints, published, reading, seconds, situation_of
from tests.watermark.exact_rule import exact_late, exact_readings
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.errors import CorruptObject, TraceUnusable
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR, Replayed, Verification, decide_again, replayed, verify
from tidemark.pipeline.replay.sources import LakeLandings, recorded_ticks
from tidemark.pipeline.replay.trace import (
    NEVER,
    NO_EVENT_TIME,
    Batch,
    Tick,
    Totals,
    tick_times,
    ticks_at,
    ticks_of,
    watermarks_us,
)
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading, follow
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.state import Beginning, Compacted, Entry, Released, Snapshot, WatermarkState

SECOND_US = 1_000_000

moments = st.one_of(
    st.integers(0, 60).map(lambda second: START_US + second * SECOND_US),  # on ticks, and ties
    st.integers(0, 60 * SECOND_US).map(lambda offset: START_US + offset),
)
messages = st.tuples(
    moments,
    st.one_of(moments, st.just(NO_EVENT_TIME)),
    st.one_of(moments, st.just(NEVER)),
    st.one_of(moments, st.just(NEVER)),
)


def batch_of(rows: list[tuple[int, int, int, int]]) -> Batch:
    return Batch(*(ints(column) for column in zip(*rows, strict=True)))


traces = st.builds(
    lambda rows, part: Held(batch_of(rows), part), st.lists(messages, min_size=1, max_size=25), st.integers(1, 10)
)
"""A few messages in any order, anything null that may be, acknowledged at any time, in batches of a few."""


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
def test_a_replay_decides_as_on_everything(trace: Held, policy: Policy, tick: float, rules: Sequence[Rule]) -> None:
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
    previous, complete_from = None, from_us(int(messages.publish_us.min()))
    for moment in moments:
        published, at_us = messages.publish_us <= to_us(moment), to_us(moment)
        base, tracking = (
            Reading(moment, from_us(oldest), names_a_message=bool((published & (acknowledged_us > at_us)).any()))
            for oldest, acknowledged_us in zip(
                exact_readings(messages, at_us), (messages.landed_us, messages.tracked_us), strict=True
            )
        )
        situation = situation_of(
            histogram_at(messages, at_us),
            base=follow(previous and previous.base, base, policy.seek_tolerance),
            tracking=follow(previous and previous.tracking, tracking, policy.seek_tolerance),
            policy=policy,
            previous=previous,
            complete_from=(previous and previous.complete_from) or complete_from,
            at=moment,
        )
        previous = estimate(situation, rules)
        decisions.append(previous)
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
    assert verdict.first_difference.recorded == wrong
    assert (verdict.decisions, verdict.compacted) == (0, 0)


def test_the_summary_is_of_what_landed_and_of_the_ticks_that_had_a_watermark() -> None:
    decisions = [Decision(at(0), None, Reason.HELD_NO_DATA), Decision(at(0), at(0), Reason.ADVANCED)]
    decisions += [Decision(at(20), at(5), Reason.ADVANCED), Decision(at(30), at(10), Reason.UNCHANGED)]
    outcome = Replayed(decisions, ints([0, 0, 1, 3]), 12)
    assert (outcome.late, outcome.late_share, outcome.watermark) == (3, 0.25, at(10))
    assert outcome.lag(0.5) == seconds(15)
    assert outcome.reasons == {"ADVANCED": 2, "HELD_NO_DATA": 1, "UNCHANGED": 1}
    nothing = Replayed(decisions[:1], ints([0]), 0)
    assert (nothing.lag(0.5), nothing.late_share) == (None, 0.0)


@bounded
@given(traces, st.lists(st.tuples(st.floats(0.1, 20), st.floats(-3, 20)), min_size=1, max_size=20))
def test_a_reading_is_the_one_that_was_observed_last(trace: Held, steps: list[tuple[float, float]]) -> None:
    tick_us = np.cumsum([int(step * 1e6) for step, _ in steps]) + START_US
    observed_us = tick_us - ints(int(age * 1e6) for _, age in steps)
    for number, each in enumerate(ticks_at(trace, tick_us, observed_us, at(0))):
        newest = int(min(observed_us[: number + 1].max(), tick_us[number]))
        assert to_us(each.at) == tick_us[number]
        assert to_us(each.base.observed_at) == to_us(each.tracking.observed_at) == newest
        expected = exact_readings(trace.messages, newest)
        assert (to_us(each.base.oldest_unacked), to_us(each.tracking.oldest_unacked)) == expected


def histogram_at(whole: Batch, at_us: int) -> Histogram:
    """What is tracked by a moment, in one go."""
    tracked = whole.tracked_us <= at_us
    return Histogram.of(whole.publish_us[tracked], whole.event_us[tracked])


def test_ticks_begin_one_interval_after_the_first_second_and_end_after_the_idle_timeout() -> None:
    first, last = to_us(at(3.7)), to_us(at(17))
    times = tick_times(first, last, seconds(10), seconds(20))
    assert [from_us(us) for us in times.tolist()] == [at(13), at(23), at(33), at(43), at(53)]
    up_to_the_end = tick_times(first, to_us(at(13)), seconds(10), seconds(20))
    assert from_us(up_to_the_end[-1]) == at(53)  # 13 + 20 + 2 * 10, included


def test_a_trace_without_messages_or_with_a_time_far_from_the_others_is_refused() -> None:
    far = batch_of([(0, 0, 1, 1), (START_US,) * 4])
    for messages, said in ((Batch(*[ints([])] * 4), "no messages"), (far, "far from the others")):
        with pytest.raises(TraceUnusable, match=said):
            ticks_of(Held(messages), timedelta(seconds=1), seconds(20))


def test_many_batches_stay_as_few_cells_as_there_are_different_pairs() -> None:
    totals = Totals(2)
    random = np.random.default_rng(1)
    for _ in range(40):
        totals.count(random.integers(0, 100, 10_000), random.integers(0, 100, 10_000))
    counts = [counts for _, (_, counts) in totals.groups()]
    assert sum(map(len, counts)) <= 10_000
    assert sum(map(np.sum, counts)) == 400_000


def log_in(folder: Path) -> TrackingLog:
    return TrackingLog(DiskObjects(folder), checkpoint_every=10)


def derived(log: TrackingLog) -> Verification:
    state, ticks = recorded_ticks(log)
    return verify(ticks, state)


def test_a_log_whose_beginning_was_removed_begins_at_its_first_compacted_entry(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    decided = record(log, steady(1, per_second=1, minutes=5), Policy())
    for number in range(7):
        DiskObjects(tmp_path).delete(entry_name(number))
    _, ticks = recorded_ticks(log)
    recorded = [tick.recorded for tick in ticks]
    assert 0 < len(recorded) < len(decided)
    assert recorded == decided[-len(recorded) :]
    assert derived(log).first_difference is None


def test_an_entry_missing_from_the_middle_is_named_with_what_to_do(tmp_path: Path) -> None:
    record(log_in(tmp_path), steady(1, per_second=1, minutes=1), Policy())
    DiskObjects(tmp_path).delete(entry_name(3))
    with pytest.raises(CorruptObject, match="tidemark repair --forget 3"):
        derived(log_in(tmp_path))


def test_decisions_made_before_an_entry_was_called_lost_are_not_reported_as_differing(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    decided = record(log, steady(1, per_second=1, minutes=1), Policy())
    before = log.numbers()[-1]
    assert derived(log).unknowable == 0
    log.forget(4, "its object was damaged", decided[-1].decision.watermark)
    again = log_in(tmp_path)
    assert again.numbers()[-1] == before
    for second in (600, 700):
        again.decide(deciding(Tick(at(second), (), reading(second), reading(second)), Policy()))
    verdict = derived(again)
    assert verdict.first_difference is None
    assert verdict.unknowable > 0
    assert verdict.decisions >= 2


def test_messages_that_are_left_out_and_later_copies_are_not_in_the_trace(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    published = (("3", 4), ("4", 64), ("5", 4))  # the last one with the first
    copies = [Beat("a", 3, number, publisher_id="p", publish_time=second) for number, second in published]
    append_beats(lake.heartbeats(), columns_of([Beat("a", 1, "1"), Beat("a", 2, "2"), *copies]))
    (batch,) = LakeLandings(lake.heartbeats(), left_out=pa.array(["1"])).batches()
    assert sorted(from_us(us) for us in batch.publish_us.tolist())[1:] == [at(4)]

"""What a run recorded, as ticks: a log on disk and in a bucket, its decisions derived again, and what landed when."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.replay.traces import Held, both_down, steady
from tests.watermark.builders import at, reading, seconds
from tidemark.pipeline.errors import ObjectMissing
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.objects import READ_AHEAD
from tidemark.pipeline.replay.replay import Verification, verify
from tidemark.pipeline.replay.sources import LakeLandings, recorded_ticks
from tidemark.pipeline.replay.trace import Batch, Tick, ticks_of
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import DecisionRecord, Released, WatermarkState

CHECKPOINT_EVERY = 10


@pytest.fixture(params=["disk", pytest.param("gcs", marks=pytest.mark.gcs)])
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> LakeSettings:
    if request.param == "disk":
        return LakeSettings(uri=f"file:{tmp_path}/lake")
    found: LakeSettings = request.getfixturevalue("gcs_lake_settings")
    return found


def log_on(settings: LakeSettings) -> TrackingLog:
    return TrackingLog(open_objects(settings), checkpoint_every=CHECKPOINT_EVERY)


def record(log: TrackingLog, messages: Batch, policy: Policy, tick: float = 10) -> list[DecisionRecord]:
    """A run over a trace, as a tracker writes it down."""
    decided: list[DecisionRecord] = []
    for each in ticks_of(Held(messages), seconds(tick), policy.idle_timeout):
        for entry in each.entries:
            log.append(entry)
        decided.append(log.decide(deciding(each, policy)))
        log.compact_if_due()
    return decided


def deciding(tick: Tick, policy: Policy) -> Callable[[WatermarkState], DecisionRecord]:
    """What a tick decides."""
    return lambda state: state.decide(tick.base, tick.tracking, policy, tick.at)


def derived(log: TrackingLog) -> Verification:
    state, ticks = recorded_ticks(log)
    return verify(ticks, state)


def test_every_decision_and_compacted_entry_of_a_run_follows_from_the_log(settings: LakeSettings) -> None:
    log = log_on(settings)
    decided = record(log, both_down(1, per_second=1, down=5), Policy(rule="frontier"))
    log.append(Released(before=at(30), at=at(3000), by="a test"))
    log.decide(lambda state: state.decide(reading(3000, 20), reading(3000), Policy(), at(3000)))
    verdict = derived(log_on(settings))
    assert (verdict.decisions, verdict.unknowable, verdict.first_difference) == (len(decided) + 1, 0, None)
    assert verdict.compacted > 3
    assert len(log.numbers()) > 2 * READ_AHEAD  # more than is read ahead


def test_since_a_time_they_begin_at_the_newest_compacted_entry_that_knows_nothing_from_then_on(tmp_path: Path) -> None:
    log = log_on(LakeSettings(uri=f"file:{tmp_path}/lake"))
    decided = record(log, steady(1, per_second=1, minutes=5), Policy())
    since = decided[20].decision.at
    state, ticks = recorded_ticks(log, since)
    recorded = [tick.recorded for tick in ticks]
    begin = len(decided) - len(recorded)
    assert 0 < begin <= 20
    assert recorded == decided[begin:]
    assert state.record == decided[begin - 1]
    state, ticks = recorded_ticks(log, since)
    assert verify(ticks, state).first_difference is None
    _, from_the_first = recorded_ticks(log, at(-1000))
    assert [tick.recorded for tick in from_the_first] == decided


def test_a_log_whose_beginning_was_removed_begins_at_its_first_compacted_entry(tmp_path: Path) -> None:
    settings = LakeSettings(uri=f"file:{tmp_path}/lake")
    log = log_on(settings)
    decided = record(log, steady(1, per_second=1, minutes=5), Policy())
    for number in range(7):
        open_objects(settings).delete(entry_name(number))
    state, ticks = recorded_ticks(log)
    recorded = [tick.recorded for tick in ticks]
    assert 0 < len(recorded) < len(decided)
    assert recorded == decided[-len(recorded) :]
    state, ticks = recorded_ticks(log)
    assert verify(ticks, state).first_difference is None


def test_an_empty_log_has_no_ticks_and_a_missing_entry_is_named(tmp_path: Path) -> None:
    settings = LakeSettings(uri=f"file:{tmp_path}/lake")
    log = log_on(settings)
    assert list(recorded_ticks(log)[1]) == []
    record(log, steady(1, per_second=1, minutes=1), Policy())
    open_objects(settings).delete(entry_name(4))
    _, ticks = recorded_ticks(log)
    with pytest.raises(ObjectMissing, match=entry_name(4)):
        list(ticks)


def test_decisions_made_before_an_entry_was_called_lost_are_not_reported_as_differing(tmp_path: Path) -> None:
    settings = LakeSettings(uri=f"file:{tmp_path}/lake")
    log = log_on(settings)
    decided = record(log, steady(1, per_second=1, minutes=1), Policy())
    before = log.numbers()[-1]
    assert derived(log).unknowable == 0
    log.forget(4, "its object was damaged", decided[-1].decision.watermark)
    again = log_on(settings)
    assert again.numbers()[-1] == before
    for second in (600, 700):
        again.decide(deciding(Tick(at(second), (), reading(second), reading(second)), Policy()))
    verdict = derived(again)
    assert verdict.first_difference is None
    assert verdict.unknowable > 0
    assert verdict.decisions >= 2


def landings(folder: Path, *appends: tuple[float, Sequence[Beat]]) -> list[Batch]:
    """Beats landed, at a second each, as batches since `at(100)` until `at(300)`, and all of them."""
    lake = lake_in(folder)
    heartbeats = lake.heartbeats()
    for landed, beats in appends:
        append_beats(heartbeats, columns_of(beats) | {"landed_at": [at(landed) for _ in beats]})
    return [
        batch
        for trace in (LakeLandings(lake.heartbeats()), LakeLandings(lake.heartbeats(), at(100), at(300)))
        for batch in [one_of(list(trace.batches(streams=True)))]
    ]


def one_of(batches: Sequence[Batch]) -> Batch:
    """All batches in one, by landing."""
    columns = [
        np.concatenate([getattr(batch, name) for batch in batches])
        for name in ("publish_us", "event_us", "tracked_us", "landed_us")
    ]
    order = np.lexsort((columns[0], columns[3]))
    return Batch(*(column[order] for column in columns))


def test_each_message_counts_by_its_first_landing_and_by_when_that_was(tmp_path: Path) -> None:
    hour_later = 3700
    first = [Beat("a", 10, "1"), Beat("b", 20, "2"), Beat("a", hour_later, "3")]
    everything, some = landings(
        tmp_path,
        (250, [Beat("a", 10, "1"), Beat("c", 30, "4")]),  # a copy, whose first landing was committed later
        (50, first),
        (100, [Beat("d", hour_later + 1, "5")]),
        (300, [Beat("b", 20, "2")]),
        (300.000001, [Beat("b", 21, "6")]),
    )
    in_seconds = [(us - everything.landed_us[0]) / 1e6 + 50 for us in everything.landed_us]
    assert in_seconds == [50, 50, 50, 100, 250, 300.000001]
    assert everything.tracked_us.tolist() == everything.publish_us.tolist()
    assert [(us - everything.landed_us[0]) / 1e6 + 50 for us in some.landed_us] == [100, 250]


def test_it_is_one_version_of_the_table_whatever_lands_meanwhile(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 1, "1")]))
    heartbeats = lake.heartbeats()
    trace = LakeLandings(heartbeats)
    append_beats(heartbeats, columns_of([Beat("a", 2, "2")]))
    heartbeats.current()
    assert sum(map(len, trace.batches())) == 1
    assert sum(map(len, LakeLandings(heartbeats).batches())) == 2


def test_messages_that_are_left_out_are_not_in_the_trace(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 1, "1"), Beat("a", 2, "2")]))
    (batch,) = LakeLandings(lake.heartbeats(), left_out=pa.array(["1"])).batches()
    assert len(batch) == 1

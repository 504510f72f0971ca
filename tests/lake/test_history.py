"""Decisions of the past, found in a real log by halves, and refolded from what stands before them."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.watermark.builders import LONG_AGO, at, published, reading
from tidemark.pipeline.lake.log.history import decision_in_force, first_decision, standing_before
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, Compacted, Entry, Snapshot


class CountingObjects(DiskObjects):
    """Objects on disk, which count what is read."""

    reads = 0

    def read(self, name: str) -> bytes:
        self.reads += 1
        return super().read(name)


def log_in(folder: Path, *, checkpoint_every: int = 1_000) -> tuple[TrackingLog, CountingObjects]:
    objects = CountingObjects(folder)
    return TrackingLog(objects, checkpoint_every=checkpoint_every), objects


def decide(log: TrackingLog, second: float) -> None:
    """A tick that saw one more message, at a time."""
    log.append(Snapshot(published([(second - 1, second - 2)])))
    log.decide(lambda state: state.decide(reading(second), reading(second), Policy(), at(second)))
    log.compact_if_due()


def ticked(folder: Path, ticks: int, *, checkpoint_every: int = 1_000) -> tuple[TrackingLog, CountingObjects]:
    """A log with a decision each ten seconds from ten on."""
    log, objects = log_in(folder, checkpoint_every=checkpoint_every)
    log.begin(Beginning(LONG_AGO))
    for tick in range(1, ticks + 1):
        decide(log, 10 * tick)
    return log, objects


def second_of(found: tuple[int, object] | None, log: TrackingLog) -> float | None:
    """When the decision was made, which must be the one at its number."""
    if found is None:
        return None
    number, decided = found
    assert log.entry(number) == decided
    return (decided.decision.at - at(0)).total_seconds()  # type: ignore[attr-defined, no-any-return]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["decide", "snapshot", "compact", "lose"]), max_size=25), st.integers(0, 260))
def test_the_search_finds_what_reading_everything_finds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str], moment: int
) -> None:
    log, objects = log_in(tmp_path_factory.mktemp("log"))
    log.begin(Beginning(LONG_AGO))
    lost, made = [], {}
    for tick, step in enumerate(steps, start=1):
        match step:
            case "decide":
                decide(log, 10 * tick)
                made[log.numbers()[-1]] = 10 * tick
            case "compact":
                log.append(Compacted(log.catch_up()))
            case _:
                log.append(Snapshot(published([(10 * tick, 0)])))
                if step == "lose":
                    lost.append(log.numbers()[-1])
    for number in lost:
        objects.delete(entry_name(number))
    wanted = max((second for second in made.values() if second <= moment), default=None)
    assert second_of(decision_in_force(log, at(moment)), log) == wanted


def test_a_decision_s_history_is_read_back_to_the_last_compacted_entry_and_no_further(tmp_path: Path) -> None:
    log, objects = ticked(tmp_path, 30, checkpoint_every=6)
    for old in range(10):
        objects.delete(entry_name(old))
    for moment in (150, 290):
        found = decision_in_force(log, at(moment))
        assert found is not None
        number, decided = found
        before = objects.reads
        state = standing_before(log, number)
        assert objects.reads - before <= 8
        assert (state.number, state.complete_from) == (number - 1, LONG_AGO)
        assert state.decide(decided.base, decided.tracking, decided.policy, decided.decision.at) == decided


def test_a_log_whose_older_entries_were_removed_is_searched_as_far_as_it_goes(tmp_path: Path) -> None:
    log, objects = ticked(tmp_path, 12, checkpoint_every=5)
    kinds: dict[int, Entry] = {number: log.entry(number) for number in log.numbers()}
    first = next(number for number, entry in kinds.items() if isinstance(entry, Compacted))
    for number in range(first):
        objects.delete(entry_name(number))
    assert decision_in_force(log, at(5)) is None
    assert second_of(decision_in_force(log, at(60)), log) == 60
    oldest = first_decision(log)
    assert oldest is not None
    assert standing_before(log, log.numbers()[1]).number == first

"""Archives of the tracking log: nothing that was said is lost, whoever is killed, and nobody goes on from the past."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.lake.builders import InMemory
from tests.lake.test_tracking_log import deciding
from tests.watermark.builders import at, published
from tidemark.pipeline.errors import CorruptObject, LakeError, LakeUnreachable
from tidemark.pipeline.ingest.progress import recent_looks
from tidemark.pipeline.lake.log import packing as log_packing
from tidemark.pipeline.lake.log.archive import LogArchive
from tidemark.pipeline.lake.log.history import decision_in_force, standing_before
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.replay.replay import verify
from tidemark.pipeline.replay.sources import recorded_ticks
from tidemark.pipeline.upkeep.survey import check_log
from tidemark.pipeline.watermark.state import Beginning, Compacted, Lost, Snapshot, WatermarkState

TICKS = 40
END = 100 + 20 * TICKS
ENTRIES_AN_ARCHIVE = 20


@pytest.fixture(autouse=True)
def small_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_packing, "ENTRIES", ENTRIES_AN_ARCHIVE)


def log_on(objects: ObjectStore) -> TrackingLog:
    return TrackingLog(objects, checkpoint_every=8)


def tell(log: TrackingLog, first: int, ticks: int) -> WatermarkState:
    """A snapshot and a decision a tick, every 20 s from the 100th second on."""
    for tick in range(first, first + ticks):
        second = 100 + 20 * tick
        log.append(Snapshot(published([(second, second - 1)])))
        log.decide(deciding(second + 1))
        log.compact_if_due()
    return log.catch_up()


def told(objects: ObjectStore, ticks: int = TICKS) -> TrackingLog:
    for name, content in contents_told(ticks).items():
        objects.create(name, content)
    log = log_on(objects)
    log.catch_up()
    return log


@cache
def contents_told(ticks: int) -> Mapping[str, bytes]:
    """A log of so many ticks, made in memory: each test begins with one."""
    memory = InMemory({})
    log = log_on(memory)
    log.begin(Beginning(at(0)))
    tell(log, 0, ticks)
    return memory.contents


def contents_of(objects: ObjectStore) -> dict[int, bytes]:
    log = log_on(objects)
    return {number: log.content(number) for number in log.numbers()}


class Failing(InMemory):
    """A store that fails from one of its writes on, before that write or after it: who uses it is as good as dead."""

    def __init__(self, objects: InMemory, *, fails_at: int, after: bool) -> None:
        self.contents = objects.contents
        self._left = fails_at
        self._after = after

    def create(self, name: str, content: bytes) -> None:
        self._write(lambda: super(Failing, self).create(name, content))

    def delete(self, name: str) -> None:
        self._write(lambda: super(Failing, self).delete(name))

    def _write(self, write: Callable[[], None]) -> None:
        self._left -= 1
        if self._left > 0 or (self._left == 0 and self._after):
            write()
        if self._left <= 0:
            raise LakeUnreachable("killed")


@pytest.mark.parametrize("after", [False, True])
def test_a_packing_killed_at_any_write_is_finished_by_the_next(after: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_packing, "ENTRIES", 8)
    first = InMemory({})
    told(first, ticks=14)
    before, folded = contents_of(first), log_on(first).catch_up()
    kills = 0
    for fails_at in range(1, 200):
        objects = InMemory(first.contents)
        try:
            LogPacking(Failing(objects, fails_at=fails_at, after=after)).pack(at(END))
        except LakeUnreachable:
            kills += 1
        else:
            break
        assert contents_of(objects) == before
        assert log_on(objects).catch_up() == folded
        LogPacking(objects).pack(at(END))
        assert contents_of(objects) == before
        archived = [number for numbers in LogArchive(objects).ranges() for number in numbers]
        assert [*archived, *log_on(objects).live_numbers()] == sorted(before), "each is in one place"
    assert kills == 20, "two archives of nine entries"


def test_a_reader_that_sleeps_between_two_entries_finds_the_newest_watermark(tmp_path: Path) -> None:
    """What it reads next has moved to an archive meanwhile, and what it has just read as well."""
    objects = DiskObjects(tmp_path)
    other = log_on(objects)
    other.begin(Beginning(at(0)))
    slept = []

    class Sleeps(DiskObjects):
        def read(self, name: str) -> bytes:
            if name == entry_name(3) and not slept:
                slept.append(name)
                tell(other, 1, TICKS - 1)
                LogPacking(objects).pack(at(END))
            return super().read(name)

    sleeper = log_on(Sleeps(tmp_path))
    assert sleeper.newest().watermark is None
    tell(other, 0, 1)
    found = sleeper.newest().watermark
    assert slept, "it was to read on"
    assert min(log_on(objects).live_numbers()) > 3
    assert found == log_on(objects).newest().watermark == other.catch_up().watermark


def test_archives_older_than_the_log_is_kept_go_and_a_replay_begins_with_the_next(objects: ObjectStore) -> None:
    reader = told(objects)
    first = log_on(objects).content(reader.numbers()[0])
    LogPacking(objects).pack(at(END))
    assert reader.content(0) == first, "it has moved since the archives were listed"
    archives = LogArchive(objects).ranges()
    folded = log_on(objects).catch_up()
    dropped = LogPacking(objects).drop(at(100 + 20 * 12))
    left = LogArchive(objects).ranges()
    assert 0 < dropped["archives"] < len(archives)
    assert left == archives[dropped["archives"] :]
    assert dropped["entries"] == left[0][0]
    log = log_on(objects)
    assert log.catch_up() == folded
    state, ticks = recorded_ticks(log)
    verdict = verify(ticks, state)
    assert verdict.first_difference is None
    assert 0 < verdict.decisions < TICKS
    assert check_log(log, at(0)).is_whole
    with pytest.raises(CorruptObject, match="keeps nothing before entry"):
        standing_before(log, 3)


def test_a_decision_by_a_clock_that_was_years_ahead_stops_neither_packing_nor_dropping() -> None:
    objects = InMemory({})
    log = log_on(objects)
    log.begin(Beginning(at(0)))
    tell(log, 0, 10)
    log.decide(deciding(1e8))
    tell(log, 10, TICKS - 10)
    packed = LogPacking(objects).pack(at(END), at(END))
    assert packed["entries"] == log.catch_up().checkpoint - 9, "the last but one"
    assert LogPacking(objects).drop(at(END), at(END)) | {"leftovers": 0} == packed


def test_a_damaged_archive_is_named_and_no_tracker_needs_it(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    told(objects)
    LogPacking(objects).pack(at(END))
    numbers = LogArchive(objects).ranges()[0]
    path = Path(LogArchive(objects).place(numbers).removeprefix("file:"))
    path.write_bytes(path.read_bytes()[:-50])
    log = log_on(objects)
    with pytest.raises(CorruptObject, match=path.name):
        log.entry(numbers[0])
    assert log.catch_up().number == max(log.numbers())
    with pytest.raises(LakeError, match="restore a backup or, without one, move it away"):
        log.forget(numbers[0], "a disk broke")
    assert not check_log(log, at(0)).is_whole


def test_an_entry_lost_in_the_middle_of_a_tick_leaves_a_gap_that_everybody_finds(tmp_path: Path) -> None:
    """The tick itself remembers the entry, so what it appends is right."""
    objects = DiskObjects(tmp_path)
    log = told(objects)
    last = log.catch_up_to_append().number
    objects.delete(entry_name(last))
    log.append(Lost("nothing"))
    for look in (TrackingLog.catch_up, lambda anew: recent_looks(anew, last + 1, at(END))):
        with pytest.raises(CorruptObject, match=rf"{entry_name(last)} is missing .* --forget {last}`"):
            look(log_on(objects))


def test_what_was_written_since_a_trackers_last_look_stays_however_wrong_the_clocks_are() -> None:
    objects, clock = InMemory({}), ManualClock(at(0))
    tracker, other = (TrackingLog(objects, checkpoint_every=8, clock=clock) for _ in range(2))
    tracker.begin(Beginning(at(0)))
    assert other.catch_up_to_append() == tracker.catch_up()
    tell(tracker, 0, 4)
    LogPacking(objects).pack(at(END) + timedelta(days=1))
    other.append(Snapshot(mine := published([(50, 49)])))
    assert mine.publish_bucket[0] in log_on(objects).catch_up().histogram.publish_bucket


@pytest.mark.parametrize(
    ("fails_at", "entry", "why"), [(999, 27, "the archives lack 27 of"), (5, 2, "000002.parquet and")]
)
def test_an_archive_that_is_gone_needs_no_hand_and_its_entries_cannot_be_forgotten(
    fails_at: int, entry: int, why: str
) -> None:
    objects = InMemory({})
    log = told(objects)
    with suppress(LakeUnreachable):  # a packing that is killed leaves one archive, and some of its entries in the log
        LogPacking(Failing(objects, fails_at=fails_at, after=False)).pack(at(END))
    LogArchive(objects).delete(LogArchive(objects).ranges()[:2][-1])
    health = check_log(log_on(objects), at(0))
    assert health.is_whole
    assert [(lost.entry, why in lost.why) for lost in health.forgotten] == [(entry, True)]
    with pytest.raises(LakeError, match="was moved to an archive"):
        log_on(objects).forget(entry, "its archive is gone")
    tell(log, TICKS, TICKS)
    assert LogPacking(objects).pack(at(3 * END))["archives"]


@pytest.mark.parametrize("hours", [(1, 0), (0, 1)], ids=["a machine that slept", "a clock that was set back"])
def test_who_slept_until_its_number_was_dropped_writes_again_beside_a_packing(hours: tuple[int, int]) -> None:
    """Its entry precedes the first one that is kept, as if it had never been archived: so the next packing takes it."""
    long_ago, mine, taken = at(END) + timedelta(hours=1), published([(50, 49)]), list[str]()
    passed = [0, 0]
    clock: Any = SimpleNamespace(now=lambda: at(3600 * passed[0]), monotonic=lambda: 3600.0 * passed[1])

    class Sleeping(InMemory):
        sleeps_at = ""

        def create(self, name: str, content: bytes) -> None:
            if name != self.sleeps_at:
                super().create(name, content)
                return
            others = InMemory({})
            others.contents = self.contents
            log, packing = log_on(others), LogPacking(others)
            log.append(Snapshot(published([(60, 59)])))
            log.compact_if_due()
            tell(log, 0, 5)
            packing.pack(long_ago)
            packing.drop(long_ago)
            passed[:] = hours
            super().create(name, content)
            taken.extend([name] * packing.pack(long_ago)["archives"])

    for before in (1, 6, 7, 8, 11):
        objects, passed[:] = Sleeping({}), (0, 0)
        sleeper = TrackingLog(objects, checkpoint_every=8, clock=clock)
        sleeper.begin(Beginning(at(0)))
        for second in range(before):
            sleeper.decide(deciding(second))
        objects.sleeps_at = entry_name(before + 1)
        sleeper.append(Snapshot(mine))
        assert mine.publish_bucket[0] in log_on(objects).catch_up().histogram.publish_bucket, before
    assert taken, "no packing took it"


def test_an_entry_that_is_lost_behind_the_first_that_is_kept_has_nothing_deleted(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    told(objects)
    packing = LogPacking(objects)
    packing.pack(at(END) + timedelta(hours=1))
    packing.drop(at(END) + timedelta(hours=1))
    tell(log_on(objects), TICKS, 10)
    kept = log_on(objects).live_numbers()
    objects.delete(entry_name(kept[1]))
    with pytest.raises(CorruptObject, match=entry_name(kept[1])):
        LogPacking(objects).pack(at(END) + timedelta(hours=1))
    assert log_on(objects).live_numbers() == [kept[0], *kept[2:]]


# Decisions of the past


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(["decide", "snapshot", "compact", "lose"]), max_size=25), st.integers(100, 640))
def test_the_search_finds_what_reading_everything_finds(steps: list[str], moment: int) -> None:
    objects = InMemory({})
    log = log_on(objects)
    log.begin(Beginning(at(0)))
    lost, newest = list[int](), None
    for tick, step in enumerate(steps):
        second = 100 + 20 * tick
        if step == "decide":
            decided = tell(log, tick, 1).record
            newest = decided if second + 1 <= moment else newest
        elif step == "compact":
            log.append(Compacted(log.catch_up()))
        else:
            log.append(Snapshot(published([(second, 0)])))
            lost += [log.numbers()[-1]] * (step == "lose")
    for number in lost:
        objects.delete(entry_name(number))
    number, found = decision_in_force(log, at(moment)) or (None, None)
    assert found == newest
    assert number is None or log.entry(number) == found


@pytest.mark.parametrize("is_restored", [False, True], ids=["lost", "a backup from before the packing"])
def test_the_end_of_a_log_is_lost_beside_archives(tmp_path: Path, *, is_restored: bool) -> None:
    objects = DiskObjects(tmp_path)
    end = told(objects).catch_up().number
    backup = {name: objects.read(name) for name in objects.names("tracking/log/")}
    packed = LogPacking(objects).pack(at(END))["entries"]
    for name in [*objects.names("tracking/log/")]:
        objects.delete(name)
    for name, content in [*backup.items()][: packed // 2 if is_restored else 0]:
        objects.create(name, content)
    with pytest.raises(CorruptObject, match=rf"ends with entry {packed - 1}, .* --forget {packed}`"):
        log_on(objects).catch_up_to_append()
    log_on(objects).forget(packed, "the end is lost")
    assert (log_on(objects).catch_up_to_append().number, packed <= end) == (packed, True)
    LogPacking(objects).pack(at(END))
    assert log_on(objects).numbers() == [*range(packed + 1)]

"""The tracking log: numbered, create-only, folded by everybody to the same state; losses are told and held."""

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.pubsub.builders import raising
from tests.watermark.builders import at, published, reading
from tidemark.pipeline import errors
from tidemark.pipeline.errors import ContractReplaced, CorruptObject, LakeError, LakeUnreachable, ObjectMissing
from tidemark.pipeline.lake.log.notes import NOTED
from tidemark.pipeline.lake.log.tracking_log import FOLDER, PastEntries, TrackingLog, entry_name
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import (
    Beginning,
    Compacted,
    DecisionRecord,
    Entry,
    Lost,
    Snapshot,
    WatermarkState,
)

WRITERS = 4
ROUNDS = 5


def nothing(_: str) -> None:
    """What usually happens around a create."""


class Watched(DiskObjects):
    """A store that calls `before` and `after` around each create, in which a test puts what else happens then."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.before: Callable[[str], None] = nothing
        self.after: Callable[[str], None] = nothing

    def create(self, name: str, content: bytes) -> None:
        self.before(name)
        super().create(name, content)
        self.after(name)


def log_on(settings: LakeSettings, checkpoint_every: int = 1000) -> TrackingLog:
    return TrackingLog(open_objects(settings), checkpoint_every=checkpoint_every)


def log_on_disk(folder: Path, past: PastEntries | None = None) -> TrackingLog:
    return TrackingLog(DiskObjects(folder), checkpoint_every=1000, past=past)


def snapshot(second: float) -> Snapshot:
    """One message, published a second after it happened."""
    return Snapshot(published([(second, second - 1)]))


def deciding(second: float) -> Callable[[WatermarkState], DecisionRecord]:
    """A decision with both backlogs empty at that moment."""
    return lambda state: state.decide(reading(second), reading(second), Policy(), at(second))


def told_so_far(log: TrackingLog, ticks: int) -> WatermarkState:
    """A log with a beginning, and a snapshot and a decision a tick, every 20 s."""
    log.begin(Beginning(at(0)))
    for tick in range(ticks):
        log.append(snapshot(100 + 20 * tick))
        log.decide(deciding(100 + 20 * tick + 1))
        log.compact_if_due()
    return log.catch_up()


def folded(log: TrackingLog) -> list[tuple[WatermarkState, int, Entry]]:
    """Each entry with its number and the state before it, from the very first on."""
    found: list[tuple[WatermarkState, int, Entry]] = []
    state = WatermarkState()
    for number in log.numbers():
        entry = log.entry(number)
        found.append((state, number, entry))
        state = state.after(number, entry)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_a_restart_at_any_moment_changes_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    objects = DiskObjects(tmp_path)
    steady, restarted = (TrackingLog(objects, checkpoint_every=rng.choice([2, 5, 9])) for _ in range(2))
    steady.begin(Beginning(at(0)))
    now = 100.0
    for _ in range(40):
        now += rng.choice([0, 0.3, 7, 200])
        if rng.random() < 0.3:
            restarted = TrackingLog(objects, checkpoint_every=3)
        log = rng.choice([steady, restarted])
        match rng.choice(["snapshot", "decide", "compact"]):
            case "snapshot":
                log.append(snapshot(now))
            case "decide":
                log.decide(deciding(now + 0.1))
            case "compact":
                log.compact_if_due()
        assert TrackingLog(objects, checkpoint_every=3).catch_up() == log.catch_up(), f"seed {seed}"
    assert steady.catch_up() == restarted.catch_up()


def test_many_writers_interleave_without_gaps_and_agree(lake_settings: LakeSettings) -> None:
    logs = [log_on(lake_settings, checkpoint_every=9) for _ in range(WRITERS)]
    together = threading.Barrier(WRITERS, timeout=60)

    def work(writer: int) -> None:
        together.wait()
        logs[writer].begin(Beginning(at(writer)))
        for tick in range(ROUNDS):
            now = 100 + 20 * tick + writer
            logs[writer].append(snapshot(now))
            logs[writer].decide(deciding(now + 1))
            logs[writer].compact_if_due()

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(work, range(WRITERS)))

    history = folded(logs[0])
    entries = [entry for _, _, entry in history]
    assert [number for _, number, _ in history] == list(range(len(history)))
    assert sum(isinstance(entry, Beginning) for entry in entries) == 1
    assert sum(isinstance(entry, Snapshot) for entry in entries) == WRITERS * ROUNDS
    states = [log.catch_up() for log in (*logs, log_on(lake_settings))]
    assert all(state == states[0] for state in states)
    for before, number, entry in history:
        if isinstance(entry, DecisionRecord):  # it is the decision on every entry before it, whoever wrote them
            assert before.decide(entry.base, entry.tracking, entry.policy, entry.decision.at) == entry, number
        if isinstance(entry, Compacted):
            assert before.after(number, entry).histogram == before.histogram, number
    marks = [
        entry.decision.watermark for entry in entries if isinstance(entry, DecisionRecord) and entry.decision.watermark
    ]
    assert marks == sorted(marks)
    assert marks


def test_a_writer_that_loses_a_number_folds_the_entry_that_took_it_and_decides_again(tmp_path: Path) -> None:
    store = Watched(tmp_path)
    log, other = (TrackingLog(objects, checkpoint_every=100) for objects in (store, DiskObjects(tmp_path)))
    told_so_far(log, ticks=2)
    seen: list[WatermarkState] = []

    def decide(state: WatermarkState) -> DecisionRecord:
        seen.append(state)
        return state.decide(reading(141), reading(141), Policy(), at(141))

    def take_the_number(name: str) -> None:
        store.before = nothing
        other.append(Snapshot(published([(140, 60)])))

    store.before = take_the_number
    decision = log.decide(decide).decision
    assert [one.number for one in seen] == [4, 5]
    assert seen[1].histogram.messages == seen[0].histogram.messages + 1
    assert log.catch_up() == other.catch_up()
    # What the other wrote happened long before, and is in this decision's evidence.
    assert decision.candidate == at(60)
    store.after = lambda _: bool(log.catch_up())  # the next tick, on the same object: Dagster gave this one up
    log.append(snapshot(150))
    assert log.catch_up() == other.catch_up(), "no entry is taken back"


def test_the_newest_decision_is_found_without_the_histogram(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    log = TrackingLog(objects, checkpoint_every=4)
    decided = told_so_far(log, ticks=2).record
    assert isinstance(log.entry(log.numbers()[-1]), DecisionRecord | Compacted)
    assert TrackingLog(objects, checkpoint_every=4).newest().record == decided
    log.append(Compacted(log.catch_up()))
    assert log.newest().record == decided
    log.append(snapshot(200))
    assert log.newest().record == TrackingLog(objects, checkpoint_every=4).newest().record == decided
    log.append(snapshot(220))
    damaged = tmp_path / entry_name(log.numbers()[-1])
    damaged.chmod(0o644)
    flip(damaged)
    with pytest.raises(CorruptObject):
        log.newest()


# Damage


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def replace_by_text(path: Path) -> None:
    path.write_text("restored from somewhere else")


@pytest.mark.parametrize("damage", [flip, truncate, replace_by_text, Path.unlink])
@pytest.mark.parametrize("number", [0, 3])
def test_a_damaged_entry_is_named_with_what_to_do(tmp_path: Path, number: int, damage: Callable[[Path], None]) -> None:
    told_so_far(TrackingLog(DiskObjects(tmp_path), checkpoint_every=100), ticks=2)
    damage(tmp_path / entry_name(number))
    log = TrackingLog(DiskObjects(tmp_path), checkpoint_every=100)
    said = f"is missing.*`tidemark repair --forget {number}`" if damage is Path.unlink else "cannot be read.*--forget"
    there = log.numbers()
    with pytest.raises(CorruptObject, match=rf"{entry_name(number)} {said}"):
        log.catch_up()
    with pytest.raises(CorruptObject):  # and nothing is written on top of what is not understood
        log.append(snapshot(200))
    assert log.numbers() == there


def test_what_one_log_of_a_process_has_written_or_read_another_does_not_read_again(tmp_path: Path) -> None:
    past, elsewhere = PastEntries(1 << 20), log_on_disk(tmp_path)
    writer, reader = (log_on_disk(tmp_path, past) for _ in range(2))
    told_so_far(writer, ticks=1)
    elsewhere.append(snapshot(200))
    writer.append(snapshot(201))
    expected = folded(elsewhere)
    for path in (tmp_path / FOLDER).iterdir():
        path.write_bytes(b"")
    assert [reader.entry(number) for number in range(len(expected))] == [entry for _, _, entry in expected]


def test_a_damaged_entry_is_read_again_once_a_backup_of_it_is_restored(tmp_path: Path) -> None:
    told_so_far(log_on_disk(tmp_path), ticks=1)
    entry, log = tmp_path / entry_name(1), log_on_disk(tmp_path, PastEntries(1 << 20))
    content = entry.read_bytes()
    truncate(entry)
    with pytest.raises(CorruptObject):
        log.entry(1)
    entry.write_bytes(content)
    assert log.entry(1) == snapshot(100)


def test_after_forgetting_the_watermark_holds_until_base_has_passed_the_loss(lake_settings: LakeSettings) -> None:
    log = log_on(lake_settings)
    before = told_so_far(log, ticks=3).watermark
    log.forget(3, "damaged")
    state = log_on(lake_settings).catch_up()
    assert log.entry(3) == Lost("damaged")
    assert state == log.catch_up()
    assert (state.is_missing_entries, state.watermark) == (True, before)
    # Base still holds what was published before the loss was noticed, at 220: it may be what the entry knew.
    log.append(snapshot(210))
    log.decide(lambda s: s.decide(reading(220, 130, names=False), reading(220), Policy(), at(220)))
    held = log.decide(lambda s: s.decide(reading(240, 219, names=False), reading(240), Policy(), at(240)))
    assert (held.decision.reason, held.decision.watermark) == (Reason.HELD_INCOMPLETE, before)
    passed = log.decide(lambda s: s.decide(reading(260, 221, names=False), reading(260), Policy(), at(260)))
    assert (passed.decision.reason, passed.decision.watermark) == (Reason.ADVANCED, at(209))


def test_the_watermark_stays_at_the_floor_that_is_known_of_a_lost_decision(tmp_path: Path) -> None:
    log = TrackingLog(DiskObjects(tmp_path), checkpoint_every=1000)
    before = told_so_far(log, ticks=3)
    assert isinstance(log.entry(before.number), DecisionRecord)
    assert before.watermark == at(119)
    log.forget(before.number, "damaged")
    assert log.catch_up().watermark == at(99)  # of the decision before: all that the log itself knows
    log.forget(before.number, "damaged", watermark_at_least=at(110))
    again = TrackingLog(DiskObjects(tmp_path), checkpoint_every=2)
    assert again.catch_up() == log.catch_up()
    assert again.catch_up().watermark == at(110)
    for second in (142, 150):
        held = again.decide(lambda s, now=second: s.decide(reading(now, 120), reading(now), Policy(), at(now)))
        assert (held.decision.reason, held.decision.watermark) == (Reason.HELD_INCOMPLETE, at(110))
    again.compact_if_due()
    assert TrackingLog(DiskObjects(tmp_path), checkpoint_every=2).catch_up() == again.catch_up()
    again.append(snapshot(170))
    assert again.decide(deciding(190)).decision.watermark == at(169)


@pytest.mark.parametrize("lost", [1, 7, 100])
def test_a_writer_of_a_log_without_its_end_appends_nothing_until_that_is_accepted(tmp_path: Path, lost: int) -> None:
    objects = DiskObjects(tmp_path)
    running = TrackingLog(objects, checkpoint_every=3)
    state = told_so_far(running, ticks=3)
    first = max(state.number - lost + 1, 0)
    for number in range(first, state.number + 1):
        objects.delete(entry_name(number))
    with pytest.raises(CorruptObject, match=f"its end is lost.*tidemark repair --forget {first}"):
        running.catch_up()
    again = TrackingLog(objects, checkpoint_every=3)
    message = (
        f"had entry {state.number}, when the watermark was at .*: its end is lost.*tidemark repair --forget {first}"
    )
    for append in (
        lambda: again.append(snapshot(500)),
        lambda: again.begin(Beginning(at(0))),
        again.catch_up_to_append,
    ):
        with pytest.raises(CorruptObject, match=message):
            append()
    assert again.numbers() == list(range(first))
    assert again.catch_up().number == first - 1  # a reader goes on
    with pytest.raises(LakeError, match="is empty;" if not first else f"ends with entry {first - 1};"):
        again.forget(first + 1, "a slip of the hand")
    again.forget(first, "an operator accepts it", at(500))
    assert again.catch_up_to_append().watermark == at(500)
    assert again.append(snapshot(500)).number == first + 1
    empty = TrackingLog(DiskObjects(tmp_path / "empty"), checkpoint_every=3)
    for whole, end in ((again, r"ends with entry \d+"), (empty, "is empty")):
        with pytest.raises(LakeError, match=f"has no entry \\d+: it {end}; .* restart the pipeline"):
            whole.forget(whole.catch_up().number + 1, "a slip of the hand")


def test_a_forgetting_that_is_killed_leaves_no_note_of_a_number_that_is_used_again(tmp_path: Path) -> None:
    objects = Watched(tmp_path)
    log = TrackingLog(objects, checkpoint_every=100)
    log.begin(Beginning(at(0)))
    last = log.append(snapshot(100)).number
    for name in ("watermark.json", "signal/sent.json"):
        objects.create(name, b"{}")
    objects.delete(entry_name(last))
    objects.after = raising(LakeUnreachable("killed"))
    with pytest.raises(LakeUnreachable):
        log.forget(last, "a disk broke")
    assert [name for name in objects.names("") if not name.startswith(("tracking/", NOTED.prefix))] == []


def test_an_entry_whose_writer_was_killed_before_it_noted_it_is_an_entry_like_any_other(tmp_path: Path) -> None:
    objects = Watched(tmp_path)
    log = TrackingLog(objects, checkpoint_every=100)
    log.begin(Beginning(at(0)))

    def kill(name: str) -> None:
        if name.startswith(NOTED.prefix):
            raise LakeUnreachable("killed")

    objects.before = kill
    with pytest.raises(LakeUnreachable):
        log.append(snapshot(100))
    objects.before = nothing
    assert TrackingLog(objects, checkpoint_every=100).append(snapshot(110)).number == 2
    assert list(objects.names(NOTED.prefix)) == [NOTED.name(f"{2:012d}")]
    assert log.append(snapshot(120)).number == 3

    def fill(name: str) -> None:
        if name.startswith(NOTED.prefix):
            raise errors.LakeFull

    objects.before = fill
    assert log.append(snapshot(130)).number == 4, "no space is left for its note"


def test_the_notes_of_several_writers_never_go_beyond_the_log_and_do_not_pile_up(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    logs = [TrackingLog(objects, checkpoint_every=100) for _ in range(WRITERS)]
    logs[0].begin(Beginning(at(0)))
    for second in range(ROUNDS):
        number = random.Random(second).choice(logs).append(snapshot(100 + second)).number
        notes = list(objects.names(NOTED.prefix))
        assert notes[-1] == NOTED.name(f"{number:012d}")
        assert len(notes) <= WRITERS
    assert TrackingLog(objects, checkpoint_every=100).catch_up_to_append().number == ROUNDS


# The contract that messages are judged by


def test_once_a_process_begins_with_another_contract_the_old_one_settles_nothing(tmp_path: Path) -> None:
    old, new, lander, other = (TrackingLog(DiskObjects(tmp_path), checkpoint_every=1000) for _ in range(4))
    told_so_far(old, ticks=0)
    old.judge_by("old")
    old.append(snapshot(100), judged_by="old")
    old.decide(deciding(101))
    lander.refuse_other("old")
    new.judge_by("new")
    entries = new.numbers()
    assert isinstance(new.entry(entries[-1]), Lost)
    for settles in (
        lambda: old.append(snapshot(120), judged_by="old"),
        lambda: old.decide(deciding(121)),
        lambda: old.judge_by("old"),
        lambda: lander.refuse_other("old"),
        lambda: other.refuse_other("old"),
    ):
        with pytest.raises(ContractReplaced, match="restart this process"):
            settles()
    assert new.numbers() == entries
    lander.refuse_other("new")
    assert other.newest().contract == "new"


def test_a_contract_that_is_replaced_before_the_first_decision_is_noticed_by_what_it_tracked(tmp_path: Path) -> None:
    old, new, lander = (TrackingLog(DiskObjects(tmp_path), checkpoint_every=1000) for _ in range(3))
    told_so_far(old, ticks=0)
    old.judge_by("old")
    assert old.numbers() == [0], "nothing was judged by another one"
    old.append(snapshot(100), judged_by="old")
    assert lander.newest().contract == "old"
    new.judge_by("new")
    assert isinstance(new.entry(new.numbers()[-1]), Lost)
    with pytest.raises(ContractReplaced):
        old.append(snapshot(101), judged_by="old")


def test_a_process_whose_first_statement_of_its_contract_failed_states_it_again(tmp_path: Path) -> None:
    old = TrackingLog(DiskObjects(tmp_path), checkpoint_every=1000)
    told_so_far(old, ticks=0)
    old.judge_by("old")
    old.decide(deciding(101))
    objects = Watched(tmp_path)
    new = TrackingLog(objects, checkpoint_every=1000)
    objects.before = raising(LakeUnreachable("no answer"))
    with pytest.raises(LakeUnreachable):
        new.judge_by("new")
    objects.before = nothing
    new.judge_by("new")
    assert new.newest().contract == "new"


def test_a_lake_that_does_not_answer_has_lost_no_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = TrackingLog(DiskObjects(tmp_path), checkpoint_every=1000)
    last = told_so_far(log, ticks=1).number

    def read(objects: DiskObjects, name: str) -> bytes:
        raise LakeUnreachable("no answer") if name == entry_name(last) else ObjectMissing(f"{objects.uri}/{name}")

    monkeypatch.setattr(DiskObjects, "read", read)
    for reads in (log.catch_up, lambda: log.append(snapshot(200))):
        with pytest.raises(LakeUnreachable):
            reads()

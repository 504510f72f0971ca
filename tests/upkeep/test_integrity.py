"""A lake that is looked at before a repair: what is wrong is named, what is right is not, and nothing is changed."""

import errno
import os
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.lake.builders import Beat, append_rejected, put
from tests.pubsub.builders import raising
from tests.quality.staleness_history import LENGTH, LOOKBACK, WINDOWING, WINDOWS
from tests.upkeep import house as house_of
from tests.watermark.builders import START, at, published
from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.errors import CorruptObject, LakeFull
from tidemark.pipeline.lake.log.notes import LogWitness, Note
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.lake.store.notes import parquet_bytes
from tidemark.pipeline.upkeep.survey import Fault, Survey, Surveyor, findings, forget_entry
from tidemark.pipeline.watermark.state import Snapshot

CLOSED = 5
"""Windows that have heartbeats and are computed; the watermark is at 600 s, by which five more are closed."""
DAY = timedelta(days=1)


class House(house_of.House):
    """A lake with five windows that are computed by two runs, and whole."""

    def __init__(self, folder: Path, watermark: float = 600) -> None:
        batches = [(60 * minute + 10, 60 * minute + 40) for minute in range(CLOSED)]
        super().__init__(folder, batches, [(0, 1), (2, 4)], 3600, watermark)

    def look(self, first: int = 0, last: int = CLOSED - 1) -> Survey:
        return Surveyor(self.settings(), self.clock).look(WINDOWS[first].start, WINDOWS[last].end)

    def files(self, window: int) -> list[Path]:
        """The data files of a window, as the table lists them."""
        paths = self.lake.diffs().fence([WINDOWS[window].key])[WINDOWS[window].key]
        return sorted(self.folder / "heartbeat_diffs" / path for path in paths)

    def landed_files(self) -> list[Path]:
        return [Path(uri) for uri in self.lake.heartbeats().in_place().file_uris()]

    def run_of(self, window: int) -> str:
        (run,) = self.lake.diffs().runs([WINDOWS[window].key]).values()
        return run

    def manifest(self, window: int) -> Path:
        return self.folder / "diff_runs" / f"{self.run_of(window)}.json"


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def broken(survey: Survey) -> dict[int, Fault]:
    """The broken windows by their number."""
    return {WINDOWS.index(one.window): one.fault for one in survey.broken}


# Damaged windows


def test_all_windows_of_a_run_whose_manifest_is_gone_or_unreadable_are_damaged(house: House) -> None:
    house.manifest(0).unlink()
    manifest = house.manifest(2)
    manifest.chmod(0o644)
    manifest.write_bytes(b"{}")
    survey = house.look()
    assert broken(survey) == dict.fromkeys(range(5), Fault.DAMAGED)
    said = [one.reasons[0] for one in survey.broken]
    assert f"the manifest of its run {house.run_of(0)} is gone, so the window's input is not known" in said[0]
    assert f"the manifest of its run {house.run_of(2)} cannot be read" in said[2]


# Missing and stale windows


def test_a_late_heartbeat_makes_windows_stale_and_a_closed_window_not_computed_is_missing(house: House) -> None:
    house.history.land([Beat("late", 70)])
    house.history.land([Beat("a", 310), Beat("a", 610)])
    survey = Surveyor(house.settings(), house.clock).look(START, at(660))
    assert survey.windows == 11
    centuries = Surveyor(house.settings(), house.clock).look(EPOCH, EPOCH + 2_000_000 * DAY)
    assert centuries.broken == survey.broken
    assert broken(survey) == {1: Fault.STALE, 2: Fault.STALE, **dict.fromkeys(range(5, 10), Fault.MISSING)}
    assert survey.repairable == [WINDOWS[1:3], WINDOWS[5:]]
    assert survey.broken[0].reasons == [
        "computed from version 5 of heartbeats; since then, 1 landed in the window and 0 in its lookback"
    ]


def test_a_table_whose_own_log_is_damaged_says_that_it_can_be_made_again(house: House) -> None:
    shutil.copytree(house.folder / "heartbeat_diffs", house.folder / "tables" / "mine")
    stray = leave(house.folder / "heartbeats/stray.parquet", DAY, house.clock.now())
    leave(house.folder / "tables/mine/stray.parquet", DAY, house.clock.now())
    (house.folder / "tables/mine/_delta_log" / f"{1:020d}.json").write_text("{no json")
    house.lake.streams().save()
    (house.folder / "streams/_delta_log" / f"{1:020d}.json").write_text("{no json")
    survey = house.look()
    assert (orphans(survey), survey.needs_a_hand) == ([stray], True)
    assert "/streams: the next run makes the table again" in "".join(survey.unknown)
    assert "tables/mine away: if [tables] names it, all windows whose heartbeats are kept" in "".join(survey.unknown)
    write_deltalake(house.folder / "tables/foreign", pa.table({"a": [1]}))
    assert "tables/foreign was not created by tidemark" in "".join(house.look().unknown)
    (house.folder / "heartbeat_diffs" / "_delta_log" / f"{1:020d}.json").write_text("{no json")
    for look in (house.look, lambda: Surveyor(house.settings(), house.clock).range_of(None, None)):
        with pytest.raises(CorruptObject, match=r"move .*heartbeat_diffs away and run the repair: .* are kept$"):
            look()


def test_windows_without_stream_status_are_stale_and_without_their_heartbeats_a_hand_is_needed(house: House) -> None:
    shutil.rmtree(house.folder / "stream_status")
    assert (broken(survey := house.look()), survey.unknown) == (dict.fromkeys(range(CLOSED), Fault.STALE), [])
    (house.folder / "heartbeats/_delta_log" / f"{CLOSED:020d}.json").unlink()
    assert "heartbeats is at version 4, but windows were computed from version 5" in str(house.look().unknown)
    shutil.rmtree(house.folder / "heartbeats" / "_delta_log")
    assert "heartbeats has no log, although" in str(house.look().unknown)


def test_a_custom_table_loses_only_damaged_windows_that_a_run_can_compute_again(house: House) -> None:
    for name, keys in (("mine", [WINDOWS[1].key, WINDOWS[3].key]), ("daily", ["2026-11-21T00-00Z"])):
        own = house.lake.own_table(name)
        own.prepare(own.schema, "v", {})
        put(own, name, keys)
        for file in own.table.files():
            (house.folder / "tables" / name / file.path).write_bytes(b"PAR1")
    house.lake.kept_windows(WINDOWING).raise_to(WINDOWS[2])
    for lookbacks, again in (({"mine": LOOKBACK}, [WINDOWS[3].key]), ({"mine": LOOKBACK + 2 * LENGTH}, []), ({}, [])):
        survey = Surveyor(house.settings(), house.clock, lookbacks).look(START, WINDOWS[4].end)
        assert [one.window for one in survey.own] == again
        assert [one.file.count("window=") for one in survey.inputs] == [1] * (3 - len(again))
        assert survey.needs_a_hand


# Damaged input


def test_a_damaged_file_of_heartbeats_is_named_and_windows_that_need_it_are_not_computed(house: House) -> None:
    house.files(1)[0].unlink()
    house.files(4)[0].write_bytes(house.files(4)[0].read_bytes()[:-1])
    (file,) = [path for path in house.landed_files() if pq.ParquetFile(path).read()["event_time"][0].as_py() == at(70)]
    file.unlink()
    append_rejected(house.lake.quarantine(), {})
    (rejected,) = house.folder.glob("quarantine/*/*.parquet")
    rejected.unlink()
    survey = house.look()
    damaged, apart = survey.inputs
    assert (damaged.file, damaged.why) == (str(file), "it is gone")
    assert (apart.file, apart.windows) == (str(rejected), ())
    assert any("gone. Its rows cannot be read" in flaw.text for flaw in findings(survey, house.clock.now()))
    assert damaged.windows == WINDOWS[1:4]  # its own, and those whose lookback of 90 s reaches 70 s to 100 s
    assert broken(survey) == {1: Fault.DAMAGED, 4: Fault.DAMAGED}  # what is computed stands
    assert survey.needs_a_hand
    assert [one.window for one in survey.blocked] == [WINDOWS[1]]
    assert survey.blocked[0].blocked_by == [f"{file} is damaged"]
    assert survey.repairable == [[WINDOWS[4]]]


# Orphans


def orphans(survey: Survey) -> list[str]:
    return sorted(orphan.location for orphan in survey.orphans)


def leave(path: Path, age: timedelta, now: datetime) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"PAR1")
    stamp = (now - age).timestamp()
    os.utime(path, (stamp, stamp))
    return str(path)


def test_files_that_no_version_lists_are_orphans_in_every_table(house: House) -> None:
    now = house.clock.now()
    planted = [
        leave(house.folder / "heartbeat_diffs/runs/dead/window=2026-11-21T05-20Z/part-0.parquet", DAY, now),
        leave(house.folder / "heartbeat_diffs/runs/dead/_temporary/0/part-0.parquet", DAY, now),
        leave(house.folder / "heartbeats/event_hour=2026-11-21T05Z/part-x.parquet", DAY, now),
        leave(house.folder / "heartbeats/stray.parquet", DAY, now),
        leave(house.folder / "diff_runs/never-committed.json", DAY, now),
    ]
    survey = house.look()
    assert orphans(survey) == sorted(planted)
    assert not survey.is_sound
    assert not survey.needs_a_hand
    assert broken(survey) == {}


def test_files_of_older_versions_and_spark_s_marks_are_no_orphans(house: House) -> None:
    house.history.compute(0, 1)  # the first run's files are listed by older versions alone
    run = house.folder / "heartbeat_diffs" / "runs" / house.run_of(0)
    (data,) = house.files(0)
    leave(run / "_SUCCESS", DAY, house.clock.now())
    leave(data.with_name(f".{data.name}.crc"), DAY, house.clock.now())
    house.lake.heartbeats().in_place().optimize.compact()  # type: ignore[union-attr]
    assert house.look().is_sound
    house.history.compute(0, 1)
    assert house.look().is_sound
    data.unlink()  # as a vacuum does, which leaves what is beside it
    assert house.look().is_sound
    heartbeats = DeltaTable(house.folder / "heartbeats")
    heartbeats.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    heartbeats.delete("stream_id = 'a'")
    (changes,) = house.folder.glob("heartbeats/_change_data/*/*.parquet")
    leave(changes, DAY, house.clock.now())
    assert house.look().is_sound


def test_files_of_a_table_whose_log_is_lost_are_no_orphans(house: House) -> None:
    stamp = (house.clock.now() - DAY).timestamp()
    for path in (house.folder / "heartbeats").rglob("*.parquet"):
        os.utime(path, (stamp, stamp))
    shutil.rmtree(house.folder / "heartbeats" / "_delta_log")
    assert not [orphan for orphan in orphans(house.look()) if "/heartbeats/" in orphan]


# The tracking log


def test_a_missing_and_a_damaged_entry_are_named(house: House) -> None:
    for watermark in (610, 620, 630):
        house.decide(watermark)
    (house.folder / entry_name(2)).unlink()
    damaged = house.folder / entry_name(3)
    damaged.chmod(0o644)
    content = bytearray(damaged.read_bytes())
    content[200] ^= 1
    damaged.write_bytes(content)
    survey = house.look()
    assert [lost.entry for lost in survey.log.damaged] == [2, 3]
    assert "is missing" in survey.log.damaged[0].why
    assert "digest does not match" in survey.log.damaged[1].why
    assert survey.needs_a_hand
    shutil.copyfile(damaged, house.folder / entry_name(5))
    unknown = house.look()
    assert ([lost.entry for lost in unknown.log.damaged], unknown.watermark) == ([2, 3, 5], None)


def noted(house: House, entries: int) -> Note:
    """A log of some more entries; the newest note of how far it has come."""
    log = house.lake.tracking_log()
    for number in range(entries):
        log.append(Snapshot(published([(1000 + number, 1000 + number)])))
    return LogWitness(house.lake.objects()).newest()


def cut(house: House, after: int) -> None:
    """Lose every entry after this one."""
    for number in house.lake.tracking_log().numbers():
        if number > after:
            (house.folder / entry_name(number)).unlink()


def test_a_damaged_note_still_tells_its_number(house: House) -> None:
    before = noted(house, 4)
    for note in (house.folder / "log_witness").iterdir():
        note.chmod(0o644)
        note.write_bytes(b"")
    assert LogWitness(house.lake.objects()).newest() == Note(None, before.number)
    cut(house, before.number - 1)
    assert f"it once had entry {before.number}: its end is lost" in house.look().log.lost_end[0]


@pytest.mark.parametrize("has_notes", [True, False])
def test_the_watermark_stays_where_runs_relied_on_a_lost_decision(tmp_path: Path, has_notes: bool) -> None:
    house = House(tmp_path, watermark=200)
    house.decide(600)
    cut(house, 1)
    assert house.lake.tracking_log().catch_up().watermark == at(200)
    if has_notes:
        assert "when the watermark was at 2026-11-21T05:30:00Z" in house.look().log.lost_end[0]
    else:  # both are lost: the computed windows tell
        shutil.rmtree(house.folder / "log_witness")
    floor = at(600) if has_notes else WINDOWS[CLOSED - 1].end
    assert forget_entry(house.lake, house.settings().windowing, 2) == floor
    assert house.lake.tracking_log().catch_up().watermark == floor


def test_a_file_without_a_footer_or_with_another_number_of_rows_is_damaged(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as limited:
        limited.setattr(pq, "read_metadata", raising(OSError(errno.EMFILE, "Too many open files")))
        with pytest.raises(LakeFull, match="`ulimit -n`"):
            house.look()
    (no_parquet,), (file,) = house.files(2), house.files(3)
    no_parquet.write_bytes(no_parquet.read_bytes()[:-8] + bytes(8))
    size = file.stat().st_size
    file.write_bytes(parquet_bytes(pq.ParquetFile(file).read().slice(0, 1), store_schema=False))
    with file.open("rb") as short:
        content = short.read()
    padding = size - len(content)
    file.write_bytes(content[:4] + bytes(padding) + content[4:])  # the offsets are wrong by then, the footer is not
    (first,), (second,) = (one.reasons for one in house.look().broken)
    assert first.startswith(f"{no_parquet}: it cannot be read: ")
    assert second == f"{file}: it has 1 row, but should have 2"
    house.lake.heartbeats().in_place().delete()
    assert Surveyor(house.settings(), house.clock).range_of(None, None) == (START, at(600)), "without heartbeats too"

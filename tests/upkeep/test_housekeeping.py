"""Housekeeping of a lake: fewer files and the same rows, and earlier versions for as long as they are asked for."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.clock import ManualClock
from tests.gcs.apart import fresh_lake, server_apart
from tests.lake.builders import Beat, append_beats, append_rejected, columns_of, lake_of, put
from tests.pubsub.builders import raising
from tests.quality.staleness_history import LENGTH, LOOKBACK, WINDOWING, WINDOWS
from tests.upkeep import house as house_of
from tests.watermark.builders import START, at
from tidemark.pipeline.errors import CorruptObject, LakeFull, TableConflict, WindowExpired
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, QUARANTINE
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.observe.facts import read_waiting
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, TableSettings
from tidemark.pipeline.upkeep import housekeeping, table_chores
from tidemark.pipeline.upkeep.housekeeping import Chore, Housekeeper
from tidemark.pipeline.upkeep.orphans import find_orphans
from tidemark.pipeline.upkeep.survey import Fault, Surveyor
from tidemark.pipeline.upkeep.table_chores import MANY, compact, drop_partitions, trim
from tidemark.pipeline.windows import Window, Windowing

DAY, HOUR, MINUTE, NOTHING = timedelta(days=1), timedelta(hours=1), timedelta(minutes=1), timedelta(0)
MANY_DAYS = 30 * DAY
LONG_AGO = 40 * DAY.total_seconds()

EVERY, NONE = "9", ""
"""The last partition to rewrite: beyond all of them, and before."""


class House(house_of.House):
    """A lake with five computed windows, many small files, and a watermark at 600 s; `clock` is far beyond."""

    def __init__(self, folder: Path, now: float = LONG_AGO) -> None:
        super().__init__(folder, [(second + 5, second + 3) for second in range(0, 300, 20)], [(0, 4)], now)

    def compute_silence(self, first: float, last: float) -> None:
        """A run over windows in which nothing has landed."""
        keys = [window.key for window in WINDOWING.between(at(first), at(last))]
        put(self.lake.diffs(), "silence-1", keys, 15, at(last))

    def tidy(self, *, dry_run: bool = False, **keep: object) -> list[Chore]:
        return list(Housekeeper(self.settings(**keep), self.clock, dry_run=dry_run).chores())

    def rows(self) -> list[dict[str, Any]]:
        table = self.lake.heartbeats().in_place()
        return sorted(table.to_pyarrow_table().to_pylist(), key=lambda row: str(row["message_id"]))

    def files(self, name: str) -> list[str]:
        table = self.lake.table(name).current()
        return [] if table is None else table.file_uris()


def of(chores: Sequence[Chore], name: str, about: str) -> list[Chore]:
    return [chore for chore in chores if (chore.name, chore.about) == (name, about)]


# Compaction


def test_a_damaged_file_fails_last_and_no_disk_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    for number in range(MANY):
        append_beats(house.lake.heartbeats(), columns_of([Beat("b", HOUR.total_seconds() + number)]))
    next(house.folder.glob("heartbeats/event_hour=2026-11-21T06Z/*.parquet")).write_bytes(b"damaged")
    finished = compact(house.lake.table(HEARTBEATS), "2026-11-21T05Z", "event_time", dry_run=True)
    assert [partition for partition, _ in finished] == ["2026-11-21T05Z"]
    done = compact(house.lake.table(HEARTBEATS), EVERY, "event_time")
    assert next(done)[0] == "2026-11-21T05Z"
    with pytest.raises(CorruptObject):
        next(done)
    monkeypatch.setattr(table_chores, "LEFT_BYTES", 1 << 60)
    with pytest.raises(LakeFull, match="MiB are free on the disk"):
        next(compact(house.lake.table(HEARTBEATS), EVERY, "event_time"))
    monkeypatch.setattr(table_chores, "SMALL_BYTES", 1)
    assert not list(compact(house.lake.table(HEARTBEATS), EVERY, "event_time", dry_run=True))


@pytest.mark.parametrize("is_of_many_parts", [False, True])
def test_large_partitions_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_of_many_parts: bool) -> None:
    house = House(tmp_path)
    rows, before = house.rows(), house.files(HEARTBEATS)
    if is_of_many_parts:
        in_memory = sum(pq.read_table(file).nbytes for file in before)
        monkeypatch.setattr(table_chores, "SORTED_FILES", in_memory / 3 / table_chores.TARGET_BYTES)
    else:
        monkeypatch.setattr(table_chores, "TARGET_BYTES", 5 * max(os.stat(file).st_size for file in before))
    ((_, did),) = compact(house.lake.table(HEARTBEATS), EVERY, "event_time")
    after = house.files(HEARTBEATS)
    assert (did["files"], did["files_after"]) == (15, len(after))
    assert 1 < len(after) <= 4
    assert house.rows() == rows
    assert not house.history.staleness().check().stale
    times = [pq.read_table(file, columns=["event_time"])["event_time"].to_pylist() for file in after]
    spans = sorted((min(each), max(each)) for each in times)
    assert all(one[1] < other[0] for one, other in pairwise(spans)), "a run skips files by their times"
    assert times == [sorted(each) for each in times]


def test_two_rewrites_of_a_partition_leave_each_row_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    rows, other = house.rows(), compact(house.lake.table(HEARTBEATS), EVERY, "event_time")

    def room(*_: object) -> None:
        monkeypatch.undo()
        assert next(other)
        append_beats(house.lake.heartbeats(), columns_of([Beat("new", 1)]))

    monkeypatch.setattr(table_chores, "why_unwritable", room)
    with pytest.raises(TableConflict, match="another process has rewritten partition 2026-11-21T05Z"):
        next(compact(house.lake.table(HEARTBEATS), EVERY, "event_time"))
    assert len(house.rows()) == len(rows) + 1


def test_a_rewrite_that_slept_for_too_long_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    rows = house.rows()
    monkeypatch.setattr(table_chores, "_rewritten", lambda *_: [NewFile("gone", "", 1, 1)])
    with pytest.raises(TableConflict, match="may have deleted them as orphans"):
        next(compact(house.lake.table(HEARTBEATS), EVERY, "event_time"))
    assert house.rows() == rows


@pytest.mark.gcs
def test_a_bucket_is_kept_as_a_folder_is() -> None:
    with server_apart() as endpoint:  # the library sets a table's properties without letting another thread run
        keep_in(fresh_lake(endpoint))


def keep_in(bucket: LakeSettings) -> None:
    lake = lake_of(bucket)
    for second in range(MANY):
        append_beats(lake.heartbeats(), columns_of([Beat("a", second), Beat("b", second)]))
    table = lake.table(HEARTBEATS)
    ((_, did),) = compact(table, EVERY, "event_time")
    assert (did["files"], did["files_after"]) == (MANY, 1)
    assert trim(table, NOTHING)["files"] == MANY
    assert lake.table(HEARTBEATS).in_place().to_pyarrow_table().num_rows == 2 * MANY
    assert drop_partitions(table, "2026-11-22T00Z")["rows"] == 2 * MANY
    chores = list(Housekeeper(Settings(lake=bucket), ManualClock(at(LONG_AGO))).chores())
    assert [chore.failed for chore in chores if chore.failed] == []
    kept = lake.kept_windows(WINDOWING)
    kept.raise_to(WINDOWS[1])
    kept.raise_to(WINDOWS[3])
    assert kept.since() == WINDOWS[3].start


# Earlier versions


def test_a_reader_of_an_earlier_version_reads_on_until_that_is_no_longer_kept(tmp_path: Path) -> None:
    house = House(tmp_path)
    reader = house.lake.heartbeats().in_place()
    rows = reader.to_pyarrow_table().num_rows
    assert list(compact(house.lake.table(HEARTBEATS), EVERY, "event_time"))
    trim(house.lake.table(HEARTBEATS), DAY)
    assert reader.to_pyarrow_table().num_rows == rows
    assert trim(house.lake.table(HEARTBEATS), NOTHING)["files"] == 15
    with pytest.raises(FileNotFoundError):
        reader.to_pyarrow_table()
    assert len(house.rows()) == rows
    house.age(2 * DAY)
    again = trim(house.lake.table(HEARTBEATS), NOTHING)
    assert (again["files"], again["commits"] >= 15) == (0, True), "its files are gone already"
    assert len(house.rows()) == rows


def test_a_run_that_has_not_committed_keeps_its_files_and_commits_them(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.clock = ManualClock(datetime.now(tz=START.tzinfo))
    house.history.compute(1, 1)  # so that there is something to be removed
    under_way = house.history.start(2, 2)
    folder = house.folder / f"heartbeat_diffs/runs/{under_way.run.name}/window={WINDOWS[2].key}"
    folder.mkdir(parents=True)
    (folder / "part-written.parquet").write_bytes(b"a file of a run under way")
    assert trim(house.lake.table(HEARTBEAT_DIFFS), NOTHING)["files"] == 1
    house.tidy()
    assert (folder / "part-written.parquet").exists()
    (folder / "part-written.parquet").rename(folder.parent / "_temporary.parquet")  # of a killed task
    house.history.finish(under_way)
    assert house.lake.diffs().versions([WINDOWS[2].key]) == {WINDOWS[2].key: under_way.run.heartbeats_version}


# Retention


def test_windows_are_dropped_by_event_time_and_asked_for_no_more(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.history.compute(5, 9)
    house.decide(DAY.total_seconds() + 190)
    house.history.land([Beat("a", DAY.total_seconds() + 10)])
    first_to_come = WINDOWS[9].end
    before = set(house.files(HEARTBEAT_DIFFS))
    chores = house.tidy(windows="1d")
    assert [chore.failed for chore in chores if chore.failed] == []
    assert not of(chores, "retention", "windows")[0].is_idle
    kept = house.lake.kept_windows(WINDOWING)
    assert kept.since() == at(180)
    assert set(house.lake.diffs().computed()) == {window.key for window in WINDOWS[3:]}
    assert set(house.files(HEARTBEAT_DIFFS)) < before
    watermark = house.lake.tracking_log().newest().watermark
    assert read_waiting(house.lake, WINDOWING, watermark)[0].start == first_to_come
    with pytest.raises(WindowExpired, match="has deleted heartbeats"):
        kept.refuse_expired(WINDOWS[2:4])
    kept.refuse_expired(WINDOWS[3:])


def test_retention_raises_its_boundary_before_it_drops_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    house = House(tmp_path)
    house.history.compute(5, 9)
    house.decide(DAY.total_seconds() + 190)
    monkeypatch.setattr(housekeeping, "drop_partitions", raising(Killed()))
    with pytest.raises(Killed):
        house.tidy(windows="1d")
    assert house.lake.kept_windows(WINDOWING).since() == at(180)
    assert len(house.lake.diffs().computed()) == 10


class Killed(BaseException):
    """The process is gone."""


def test_a_window_of_a_day_is_whole_for_as_long_as_windows_are_kept_and_goes_by_its_end(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.compute_silence(300, 2400)
    daily, whole_days = house.lake.own_table("daily"), Windowing(DAY, START)
    day = whole_days.containing(START)
    daily.prepare(daily.schema.append(pa.field("count", pa.int64())), "version", {day.key: "input"})
    put(daily, "daily-1", [day.key], 15, day.end)
    for is_there in around_a_day(house, day, lambda: house.tidy(windows="1d")):
        assert (daily.computed() == {day.key}) is is_there
        assert (WINDOWS[0].key in house.lake.diffs().computed()) is is_there


def around_a_day(house: House, day: Window, tidy: Callable[[], list[Chore]]) -> Iterator[bool]:
    """Tidy with the watermark a little, almost a day and over a day beyond `day`. Yield whether it must be kept."""
    for after, is_there in ((10 * MINUTE, True), (DAY - MINUTE, True), (DAY + 10 * MINUTE, False)):
        house.decide((day.end + after - START).total_seconds())
        assert not [chore for chore in tidy() if chore.failed]
        assert (house.lake.kept_windows(WINDOWING).since() <= day.start) is is_there
        yield is_there


@pytest.mark.parametrize("tables", [{}, {"daily": TableSettings(file="daily.sql", window=DAY)}])
def test_a_day_can_be_computed_while_heartbeats_are_kept(tmp_path: Path, tables: dict[str, TableSettings]) -> None:
    house = House(tmp_path)
    house.compute_silence(300, 2400)
    day = Windowing(DAY, START).containing(START)
    settings = house.settings(heartbeats="1d").model_copy(update={"tables": tables})

    def tidy() -> list[Chore]:
        return list(Housekeeper(settings, house.clock, has_tables=not tables).chores())

    for is_there in around_a_day(house, day, tidy):
        assert bool(house.rows()) is is_there


def kept_since(house: House, lookback: timedelta) -> Any:
    return house.lake.kept_windows(replace(WINDOWING, lookback=lookback)).since()


def test_heartbeats_are_dropped_by_the_hour_and_windows_that_need_them_are_not_computed_again(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.compute_silence(300, 6000)
    house.decide((DAY + 45 * timedelta(minutes=1)).total_seconds())
    chores = house.tidy(heartbeats="1d", windows="30d")
    (done,) = [chore for chore in of(chores, "retention", "windows") if not chore.is_idle]
    assert done.figures["rows"] == 30
    assert house.lake.heartbeats().extent().rows == 0
    assert {window.key for window in WINDOWS} < house.lake.diffs().computed(), "what was computed stays"
    Path(sorted(house.files(HEARTBEAT_DIFFS))[0]).unlink()
    (damaged,) = Surveyor(house.settings(), house.clock).look(START, START + HOUR).blocked
    assert (damaged.fault, "Restore a copy" in damaged.blocked_by[0]) == (Fault.DAMAGED, True)
    kept = house.lake.kept_windows(WINDOWING).since()
    assert kept - LOOKBACK >= START + 40 * timedelta(minutes=1) > kept - LOOKBACK - LENGTH
    assert kept_since(house, LOOKBACK + HOUR) == kept + HOUR, "a longer lookback needs more"
    checked = house.history.staleness()
    house.history.land([Beat("too late", 30)])
    assert checked.check().total == 1
    house.history.land([Beat("new", 7000)])
    assert checked.check().total == 0, "it is missed once, and no run can compute its window again"
    assert not [chore for chore in house.tidy(windows="1d") if chore.failed]
    assert kept_since(house, LOOKBACK + DAY) == kept + DAY, "the hour is still known"
    assert not house.history.staleness().check().stale


def test_nothing_is_dropped_before_every_window_of_that_time_is_computed(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.decide((DAY + 2 * HOUR).total_seconds())
    rows = house.rows()
    (waits,) = of(house.tidy(heartbeats="1d", windows="1d"), "retention", "windows")
    assert waits.is_idle
    assert "must be computed first" in waits.says
    assert house.rows() == rows
    assert house.lake.kept_windows(WINDOWING).since() is None
    shutil.rmtree(house.folder / "tracking")
    (waits,) = of(house.tidy(windows="1d"), "retention", "windows")
    assert waits.says == "there is no watermark yet"


def test_what_the_next_window_looks_back_to_is_kept_however_old_it_is(tmp_path: Path) -> None:
    house, reached, later = House(tmp_path), DAY + 2 * HOUR, 3 * DAY - 4 * HOUR
    house.compute_silence(300, later.total_seconds())
    house.decide(reached.total_seconds())
    rows, settings = house.rows(), house.settings(heartbeats="1d")
    lookback = reached - LENGTH
    settings = settings.model_copy(update={"windows": settings.windows.model_copy(update={"lookback": lookback})})
    assert not [chore for chore in Housekeeper(settings, house.clock).chores() if chore.failed]
    assert house.rows() == rows
    assert kept_since(house, lookback) <= START + reached, "or no window is ever computed"
    house.decide(later.total_seconds())
    assert not [chore for chore in Housekeeper(settings, house.clock, has_tables=True).chores() if chore.failed]
    assert house.rows() == [], "whole days and one lookback are kept, not two"
    assert kept_since(house, lookback) <= START + later


def test_quarantine_is_dropped_by_the_day_whatever_its_folder_is_called(tmp_path: Path) -> None:
    house = House(tmp_path / "[a]^|", now=3 * DAY.total_seconds())
    for landed in (0, DAY.total_seconds(), 2 * DAY.total_seconds()):
        append_rejected(house.lake.quarantine(), {"landed_at": at(landed)})
    requeued = house.lake.requeued()
    for day in ("2026-11-21", "2026-11-22", "2026-11-23"):
        requeued.note(day, (0, 1), pa.array(["m"]))
    house.decide(600, read=0)
    assert all(chore.is_idle for chore in of(house.tidy(quarantine="1d"), "retention", QUARANTINE))  # a fast clock
    house.decide(600, read=3 * DAY.total_seconds())
    would = of(house.tidy(dry_run=True, quarantine="1d"), "retention", QUARANTINE)
    assert [one.says[:14] for one in would] == ["would remove 2", "would delete 2"]
    dropped, forgotten = of(house.tidy(quarantine="1d"), "retention", QUARANTINE)
    assert (dropped.figures["rows"], forgotten.figures) == (2, {"notes": 2})
    assert [key.partition("/")[0] for key in requeued.between()] == ["2026-11-23"]
    assert house.lake.quarantine().reasons().waiting == {"NO_STREAM_ID": 1}
    assert drop_partitions(house.lake.table(QUARANTINE), "2026-11-01")["rows"] == 0


# What nobody asked for


def test_orphans_go_after_the_grace_time_and_a_streams_landings_never(tmp_path: Path) -> None:
    house = House(tmp_path)
    orphan = house.folder / f"heartbeat_diffs/runs/dead-1/window={WINDOWS[0].key}/part-0.parquet"
    stream = house.folder / "landings/stream-abc/000000000-0001.json"
    begun = house.folder / "tracking/log/.tmp-1234"
    commit = house.folder / "heartbeats/_delta_log/_commit_1234.json.tmp"
    foreign = house.folder / "heartbeats/.keep"
    landed = house.folder / "heartbeats/event_hour=2026-11-21T05Z/part-0.parquet"
    for path in (orphan, stream, begun, commit, foreign, landed):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"left behind")
    now = datetime.now(tz=START.tzinfo)
    house.age(DAY - HOUR)
    for days in (0, 9):  # this machine's clock may be ahead of that of the files
        house.clock = ManualClock(now + days * DAY)
        house.tidy()
        assert all(path.exists() for path in (orphan, stream, begun, commit))
    house.age(2 * HOUR)
    found = find_orphans(house.lake, house.settings().lake, now)
    assert [orphan.name for orphan in found if orphan.name.startswith("tracking/")] == ["tracking/log/.tmp-1234"]
    chores = house.tidy()
    assert not any(path.exists() for path in (orphan, begun, commit))
    assert foreign.exists(), "another tool may need it"
    assert landed.exists(), "its messages are acknowledged, if the table's log was put back from an older copy"
    assert stream.exists(), "its messages are acknowledged, and it may go on with them in a year"
    assert of(chores, "orphans", "lake")[0].figures["files"] == 3


# Tables of one's own


def test_a_table_of_ones_own_is_kept_and_trimmed_as_the_others_are(tmp_path: Path) -> None:
    house = House(tmp_path)
    own, keys = house.lake.own_table("mine"), [window.key for window in WINDOWS[:5]]
    columns = {"stream_id": pa.string(), "without_zone": pa.timestamp("us"), "window": pa.string()}
    own.prepare(pa.schema(columns), "v", dict.fromkeys(keys, "0"))
    for number in range(2):  # the second one replaces the first one's files
        put(own, f"own-{number}", keys, 1, at(600))
    files = house.files("tables/mine")
    assert len(files) == len(keys)
    orphan = house.folder / f"tables/mine/runs/dead-1/v.0/window={keys[0]}/part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(b"left behind")
    house.clock = ManualClock(datetime.now(tz=START.tzinfo) + 2 * DAY)
    house.age(2 * DAY)
    found = find_orphans(house.lake, house.settings().lake, house.clock.now())
    of_table = [one.name for one in found if "mine" in one.name or "own-" in one.name]
    assert of_table == [str(orphan.relative_to(house.folder))], "neither a manifest nor a file of an earlier version"
    assert trim(house.lake.table("tables/mine"), NOTHING)["files"] == len(keys)
    house.tidy(windows=DAY)
    assert not orphan.exists()
    assert house.files("tables/mine") == files, "the watermark is not that far"
    house.compute_silence(300, 6000)
    house.decide(MANY_DAYS.total_seconds())
    dropped = of(house.tidy(windows=DAY), "retention", "windows")
    assert any("from tables/mine: 5 partitions" in chore.says for chore in dropped)
    assert own.made() == {}
    assert DeltaTable(own.table.uri).protocol().reader_features == ["timestampNtz"], "as other readers know it"
    own.table.complete(own.schema).alter.set_table_properties({"delta.appendOnly": "false"})
    assert own.made() == {}, "the library has turned on a feature with it"


# As a whole


def test_small_files_become_one_in_order_as_a_dry_run_says_and_a_second_run_is_idle(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.decide(2 * HOUR.total_seconds())
    house.history.compute(5, 9)
    before, rows = house.everything(), house.rows()
    would = house.tidy(dry_run=True)
    assert house.everything() == before
    did = house.tidy()
    assert [(one.name, one.about, one.is_idle) for one in would] == [(one.name, one.about, one.is_idle) for one in did]
    (done,) = (one for one in did if not one.is_idle)
    assert (done.about, done.figures["files"], done.figures["files_after"]) == (HEARTBEATS, 15, 1)
    (file,) = house.files(HEARTBEATS)
    times = pq.read_table(file, columns=["event_time"])["event_time"].to_pylist()
    assert times == sorted(times)
    assert house.rows() == rows
    assert all(one.is_idle for one in house.tidy())


def test_a_chore_that_fails_is_reported_and_the_others_are_done(tmp_path: Path) -> None:
    house = House(tmp_path)
    house.decide(2 * HOUR.total_seconds())
    (house.folder / entry_name(1)).write_bytes(b"damaged")
    write_deltalake(house.folder / "tables/foreign", pa.table({"a": [1]}))
    (house.folder / "tables/mine").mkdir()
    chores = house.tidy(windows=DAY)
    assert of(chores, "earlier versions", "tables")[0].says.startswith("mine: ")
    assert of(chores, "retention", "windows")[-2].says.startswith("tables/mine has no rows")
    failed = {(chore.name, chore.about): chore.sentence for chore in chores if chore.failed}
    assert entry_name(1) in failed.pop(("packing", "tracking log"))
    assert [about for _, about in failed] == ["windows", "tables"]
    assert all("tables/foreign was not created by tidemark" in sentence for sentence in failed.values())
    assert not of(chores, "compaction", HEARTBEATS)[0].is_idle

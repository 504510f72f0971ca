"""What is remembered of streams: the status of windows, and each stream's first and last heartbeat."""

import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.lake.builders import lake_in, put
from tests.watermark.builders import at
from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.streams import KnownStreams
from tidemark.pipeline.windows import Windowing

LENGTH = timedelta(minutes=5)
FIRST = at(0).replace(hour=0, minute=0, second=0, microsecond=0)
WINDOWING = Windowing(LENGTH, FIRST)
WINDOWS = list(WINDOWING.between(FIRST, FIRST + timedelta(hours=1)))
KEYS = [window.key for window in WINDOWS]


def beats(window: int, *streams: str, after: float = 10) -> list[dict[str, Any]]:
    """Two rows of diffs for each stream."""
    first = WINDOWS[window].start + timedelta(seconds=after)
    return [
        {"stream_id": stream, "event_time": first + n * timedelta(seconds=30)} for stream in streams for n in (0, 1)
    ]


def extents(known: KnownStreams) -> dict[str, tuple[float, float]]:
    """Each stream's first and last heartbeat, in seconds from the first window."""
    return {
        row["stream_id"]: (
            (row["first_event_time"] - FIRST).total_seconds(),
            (row["last_event_time"] - FIRST).total_seconds(),
        )
        for row in known.rows.to_pylist()
    }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return lake_in(tmp_path)


# Each stream's first and last heartbeat


@pytest.mark.parametrize("seed", range(3))
def test_the_known_streams_do_not_depend_on_the_order_of_windows_nor_on_restarts(tmp_path: Path, seed: int) -> None:
    source = random.Random(seed)
    of_window = {key: beats(n, *(f"s{i}" for i in range(20) if source.random() < 0.3)) for n, key in enumerate(KEYS)}
    expected: dict[str, tuple[float, float]] = {}
    for rows in of_window.values():
        for row in rows:
            event = (row["event_time"] - FIRST).total_seconds()
            first, last = expected.get(row["stream_id"], (event, event))
            expected[row["stream_id"]] = (min(first, event), max(last, event))
    lake, order = lake_in(tmp_path), [*KEYS, *source.sample(KEYS, 4)]  # some are computed again
    source.shuffle(order)
    kept_by_one_process = lake.streams()
    for number, key in enumerate(order):
        put(lake.diffs(), f"run{number}", {key: of_window[key]}, version=number)
        if source.random() < 0.4:
            source.choice([kept_by_one_process, lake.streams()]).save()
    assert extents(lake.streams().known()) == expected
    assert extents(lake.streams().save()) == expected
    saved = lake.streams().known().rows
    shutil.rmtree(tmp_path / "lake" / "streams")
    assert lake.streams().known().rows.equals(saved)
    assert lake.streams().save().rows.equals(saved)
    for file in (tmp_path / "lake" / "streams").glob("*.parquet"):
        file.write_bytes(b"damaged")
    assert lake.streams().save().rows.equals(saved)
    DeltaTable(tmp_path / "lake" / "streams").delete()
    assert lake.streams().save().rows.equals(saved), "another tool deleted its rows"
    version = DeltaTable(tmp_path / "lake" / "streams").version()
    assert lake.streams().save().rows.equals(saved)
    assert DeltaTable(tmp_path / "lake" / "streams").version() == version, "there is nothing to save"
    assert lake.streams().known().rows.equals(saved)


def test_a_commit_that_is_damaged_or_gone_has_the_streams_gathered_anew(lake: Lake, tmp_path: Path) -> None:
    put(lake.diffs(), "one", {KEYS[0]: beats(0, "a")})
    lake.streams().save()
    put(lake.diffs(), "two", {KEYS[1]: beats(1, "b")})
    put(lake.diffs(), "three", {KEYS[2]: beats(2, "c")})
    log = tmp_path / "lake" / "heartbeat_diffs" / "_delta_log"
    DeltaTable(tmp_path / "lake" / "heartbeat_diffs").create_checkpoint()
    commit = sorted(log.glob("*.json"))[-2]
    commit.write_text("{no json")
    assert sorted(extents(lake.streams().known())) == ["a", "b", "c"]
    commit.unlink()
    assert sorted(extents(lake.streams().save())) == ["a", "b", "c"]


def test_streams_of_windows_computed_since_the_diffs_were_restored_are_known(lake: Lake, tmp_path: Path) -> None:
    put(lake.diffs(), "one", {KEYS[0]: beats(0, "a")})
    shutil.copytree(tmp_path / "lake/heartbeat_diffs", tmp_path / "copy")
    put(lake.diffs(), "two", {KEYS[1]: beats(1, "b")})
    lake.streams().save()
    shutil.rmtree(tmp_path / "lake/heartbeat_diffs")
    shutil.copytree(tmp_path / "copy", tmp_path / "lake/heartbeat_diffs")
    assert extents(lake.streams().save()).keys() == {"a"}
    put(lake.diffs(), "three", {KEYS[1]: beats(1, "c")})
    assert extents(lake.streams().known()).keys() == {"a", "c"}


def test_streams_whose_newest_commit_is_gone_can_be_deleted_and_are_gathered_anew(lake: Lake, tmp_path: Path) -> None:
    put(lake.diffs(), "one", {KEYS[0]: beats(0, "a")})
    lake.streams().save()
    folder = tmp_path / "lake" / "streams"
    DeltaTable(folder).create_checkpoint()
    (folder / "_delta_log" / f"{1:020d}.json").unlink()
    with pytest.raises(CorruptObject, match=r"or delete .*/streams: the next run makes the table again"):
        lake.streams().save()
    shutil.rmtree(folder)
    assert sorted(extents(lake.streams().save())) == ["a"]


def test_processes_that_save_at_once_lose_nothing(lake: Lake) -> None:
    def work(number: int) -> None:
        for step in range(3):
            key = KEYS[number * 3 + step]
            put(lake.diffs(), f"run{number}-{step}", {key: beats(number * 3 + step, f"s{number}-{step}", "all")})
            lake.streams().save()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    streams = lake.streams()
    DeltaTable(streams.table.uri).vacuum(0, dry_run=False, enforce_retention_duration=False)
    known = extents(streams._kept(streams.table.current()))  # what was kept, without looking for what is missing
    assert known["all"] == (10, 11 * 300 + 40)
    assert len(known) == 13


# Status


def test_a_status_that_is_missing_or_of_older_input_than_the_diffs_is_named(lake: Lake) -> None:
    diffs, status = lake.diffs(), lake.stream_status()
    put(diffs, "none", {KEYS[0]: []}, version=1)
    put(status, "older", {KEYS[1]: []}, version=1)
    put(diffs, "newer", {KEYS[1]: []}, version=2)
    put(diffs, "both", {KEYS[2]: []}, version=3)
    put(status, "both", {KEYS[2]: []}, version=3)
    put(diffs, "of-the-same", {KEYS[3]: []}, version=4)
    put(status, "another-of-the-same", {KEYS[3]: []}, version=4)
    assert status.behind(diffs, KEYS) == KEYS[:2]

"""Landed messages and rejected ones: whole, found again by their event times, and errors that say what to do."""

import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from tests.lake.builders import Beat, append_beats, columns_of, lake_in, lake_of, version_of
from tests.watermark.builders import at
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import CorruptObject, LakeError, LakeFull, LakeUnreachable, TableConflict
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats, LandedExtent, heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.settings_sections import LakeSettings


def table_of(lake: Lake) -> DeltaTable:
    found = lake.heartbeats().current()
    assert found is not None
    return found


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    return table_of(lake).to_pyarrow_table().sort_by("message_id").to_pylist()


# Landed messages


def event_times_in(path: str) -> list[int]:
    column = pq.ParquetFile(path).read(columns=["event_time"])["event_time"]
    found: list[int] = column.cast(pa.int64()).to_pylist()
    return found


def test_a_file_that_another_tool_wrote_without_statistics_is_read(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 0)]))
    table_of(lake).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    append_beats(lake_in(tmp_path).heartbeats(), columns_of([Beat("a", 7000)]))
    assert lake_in(tmp_path).heartbeats().files_between(at(6900), at(7100)).rows >= 1
    assert lake_in(tmp_path).heartbeats().extent().rows == 2


def land(heartbeats: Heartbeats, load: object, meanwhile: Callable[[], None] = lambda: None) -> None:
    """One message, as the pipeline lands it. `meanwhile` is called when its file is written, and not yet added."""
    rows = heartbeat_rows(columns_of([Beat("a", 1, values={"load": load})], ["load"]), heartbeats._fields)
    files = NewFiles(heartbeats, heartbeats.schema, SystemClock())
    written = files.write(rows)
    meanwhile()
    files.add(written, {})


def test_a_field_of_another_kind_than_its_column_is_refused_and_nothing_lands(lake_settings: LakeSettings) -> None:
    land(lake_of(lake_settings, {"load": FieldKind.NUMBER}).heartbeats(), 1.0)
    changed = lake_of(lake_settings, {"load": FieldKind.TEXT})
    for _ in range(2):  # and again, when it has been looked at once
        with pytest.raises(LakeError, match=r"message\.fields\.load = 'text'.*double.*another name, or restore"):
            land(changed.heartbeats(), "high")
    assert len(rows_of(changed)) == 1


def test_a_file_that_was_written_before_the_table_had_another_kind_is_not_added(tmp_path: Path) -> None:
    early, late = lake_in(tmp_path, {"load": FieldKind.NUMBER}), lake_in(tmp_path, {"load": FieldKind.TEXT})
    with pytest.raises(LakeError, match=r"message\.fields\.load"):
        land(late.heartbeats(), "high", meanwhile=lambda: land(early.heartbeats(), 1.0))
    assert len(rows_of(early)) == 1


# What goes wrong


FAULTS = [
    (
        OSError(122, "Disk quota exceeded (os error 122)"),
        LakeFull,
        "no space is left.*continues from the durable state",
    ),
    (DeltaError("Generic GCS error: error sending request for url"), LakeUnreachable, "the next tick retries"),
    (CommitFailedError("a concurrent transaction"), TableConflict, "other writers committed"),
]


@pytest.mark.parametrize(("fault", "expected", "told"), FAULTS, ids=[str(fault)[:60] for fault, _, _ in FAULTS])
def test_a_fault_of_the_store_says_what_to_do_and_the_next_append_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, expected: type[LakeError], told: str
) -> None:
    """The texts are the library's own, as it gave them on a disk without space and on the others."""
    lake = lake_in(tmp_path)
    heartbeats = lake.heartbeats()
    append_beats(heartbeats, columns_of([Beat("a", 0)]))

    def fail(*_: Any, **__: Any) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", fail)
        with pytest.raises(expected, match=told) as caught:
            append_beats(heartbeats, columns_of([Beat("a", 1)]))
    assert type(caught.value) is expected
    assert len(rows_of(lake)) == 1
    append_beats(heartbeats, columns_of([Beat("a", 1)]))
    assert len(rows_of(lake)) == 2


def commits(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "lake" / "heartbeats" / "_delta_log").glob("*.json"))


@pytest.mark.parametrize("content", [b"not JSON", None])
def test_a_damaged_commit_is_reported_to_readers_and_writers(tmp_path: Path, content: bytes | None) -> None:
    lake = lake_in(tmp_path)
    for second in range(3):
        append_beats(lake.heartbeats(), columns_of([Beat("a", second)]))
    damaged = commits(tmp_path)[1]
    whole = damaged.read_bytes()
    damaged.unlink()
    if content is not None:
        damaged.write_bytes(content)
    uses = (
        lambda: lake.heartbeats().files_between(at(0), at(9)),
        lambda: append_beats(lake.heartbeats(), columns_of([Beat("a", 9)])),
    )
    for use in uses:
        with pytest.raises(CorruptObject, match=r"heartbeats has a damaged file.*restore its earlier version"):
            use()
    damaged.write_bytes(whole)
    assert len(rows_of(lake)) == 3


READERS, APPENDS = 6, 3


def test_first_appends_of_many_readers_at_once_all_land(tmp_path: Path) -> None:
    """There is no table yet: one of them creates it, and the others go on with that one."""
    together = threading.Barrier(READERS, timeout=60)

    def land(reader: int) -> None:
        heartbeats = lake_in(tmp_path).heartbeats()
        together.wait()
        for number in range(APPENDS):
            append_beats(heartbeats, columns_of([Beat(f"reader {reader}", number)]))

    for rounds in (1, 2):
        with ThreadPoolExecutor(READERS) as threads:
            list(threads.map(land, range(READERS)))
        assert len(rows_of(lake_in(tmp_path))) == rounds * READERS * APPENDS
    created = [path.name for path in commits(tmp_path) if '"metaData"' in path.read_text()]
    assert created == [f"{0:020d}.json"]


# Tables that are lost while somebody holds them


def lose(settings: LakeSettings, table: str) -> None:
    """Delete a table's folder, with whatever is in it."""
    if settings.folder is not None:
        shutil.rmtree(settings.folder / table)
        return
    objects = open_objects(settings)
    for name in list(objects.names(f"{table}/")):
        objects.delete(name)


@pytest.mark.parametrize("versions", [1, 3])
def test_an_open_table_notices_that_it_was_deleted_and_begun_anew(lake_settings: LakeSettings, versions: int) -> None:
    held = lake_of(lake_settings).heartbeats()
    for second in range(3):
        append_beats(held, columns_of([Beat("a", second)]))
    assert version_of(held) == 3
    lose(lake_settings, "heartbeats")
    for second in range(versions):
        append_beats(lake_of(lake_settings).heartbeats(), columns_of([Beat("another", 7200 + second)]))
    assert version_of(held) == versions
    assert held.extent() == LandedExtent(versions, at(7200), at(7200 + versions - 1))
    append_beats(held, columns_of([Beat("another", 7300)]))
    assert (version_of(held), held.extent().rows) == (versions + 1, versions + 1)

"""Landed messages and rejected ones: whole, found again by their event times, and errors that say what to do; and files
that are written apart from their transaction, whose statistics are right."""

import shutil
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableAlterer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.ingest.fakes import CONTRACT, to_written
from tests.lake.builders import Beat, append_beats, append_rejected, columns_of, lake_in, lake_of, version_of
from tests.pubsub.builders import raising
from tests.watermark.builders import START_US, at
from tidemark.pipeline.clock import SystemClock, from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.errors import CorruptObject, InvalidSettings, LakeError, LakeFull, LakeUnreachable, TableConflict
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.tables import quarantine as module
from tidemark.pipeline.lake.tables.delta_log import metadata_of_round
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles, Heartbeats, LandedExtent, heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.quarantine import (
    JUDGED_BY,
    UNREADABLE,
    RejectedPayload,
    by_stream,
    rejected_payloads,
)
from tidemark.pipeline.lake.tables.table import DataFile, LakeTable
from tidemark.pipeline.settings_sections import LakeSettings


def table_of(lake: Lake) -> DeltaTable:
    return lake.heartbeats().in_place()


def rows_of(lake: Lake) -> list[dict[str, Any]]:
    return table_of(lake).to_pyarrow_table().sort_by("message_id").to_pylist()


# Landed messages


def event_times_in(path: str) -> list[int]:
    return pq.ParquetFile(path).read(columns=["event_time"])["event_time"].cast(pa.int64()).to_pylist()


def test_files_without_statistics_are_read_beside_an_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = lake_in(tmp_path)
    append_beats(lake.heartbeats(), columns_of([Beat("a", 0)]))
    append_beats(lake.heartbeats(), columns_of([Beat("a", 20_000, publish_time=1)]))
    found = lake.heartbeats()
    found.rows = lambda *given: pa.table({"hour": given[3]})  # type: ignore[method-assign]
    assert [len(found.published_between(at(second), at(second + 2)) or ()) for second in (0, 20_000)] == [2, 0]
    table_of(lake).alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "0"})
    append_beats(lake_in(tmp_path).heartbeats(), columns_of([Beat("a", 7000)]))
    assert lake_in(tmp_path).heartbeats().files_between(at(6900), at(7100)).rows >= 1
    assert lake_in(tmp_path).heartbeats().extent().rows == 3
    found = lake_in(tmp_path).heartbeats()
    assert len(found.published_between(at(7000), at(7002)) or ()) == 1
    for part, name in ((found.log, "update"), (found, "listed")):  # a tick that overlaps opens the table again
        monkeypatch.setattr(part, name, partial(reopening, found, getattr(part, name)))
    assert len(found.published_between(at(7000), at(7002)) or ()) == 1


def reopening(table: LakeTable, then: Callable[..., object], *given: object) -> object:
    """Call, and then forget the open table, as `current` of another thread does before it opens the table again."""
    found = then(*given)
    table._table = None
    return found


def land(heartbeats: Heartbeats, load: object, meanwhile: Callable[[], None] = lambda: None) -> None:
    """One message, as the pipeline lands it. `meanwhile` is called when its file is written, and not yet added."""
    rows = heartbeat_rows(columns_of([Beat("a", 1, values={"load": load})], ["load"]), heartbeats.fields)
    files = NewFiles(heartbeats, SystemClock())
    written = files.write(rows)
    meanwhile()
    files.add(written, {})


def test_a_field_of_another_kind_than_its_column_is_refused_and_nothing_lands(lake_settings: LakeSettings) -> None:
    land(lake_of(lake_settings, {"load": FieldKind.NUMBER}).heartbeats(), 1.0)
    changed = lake_of(lake_settings, {"load": FieldKind.TEXT})
    for _ in range(2):  # and again, when it has been looked at once
        with pytest.raises(InvalidSettings, match=r"message\.fields\.load = 'text'.*double.*another name, or restore"):
            land(changed.heartbeats(), "high")
    alike = lake_of(lake_settings, {"Load": FieldKind.NUMBER}).heartbeats()
    with pytest.raises(LakeError, match="has the column load and cannot have Load, which differs only in case"):
        append_beats(alike, columns_of([Beat("a", 1, values={"Load": 1.0})], ["Load"]))
    assert len(rows_of(changed)) == 1


@pytest.mark.parametrize("is_old", [False, True])
def test_a_file_that_was_written_before_the_column_had_another_kind_is_not_added(tmp_path: Path, is_old: bool) -> None:
    early, late = lake_in(tmp_path, {"load": FieldKind.NUMBER}), lake_in(tmp_path, {"load": FieldKind.TEXT})
    if is_old:
        (before := lake_in(tmp_path, {}).heartbeats()).complete(before.schema)
    with pytest.raises(InvalidSettings, match=r"message\.fields\.load"):
        land(late.heartbeats(), "high", meanwhile=lambda: land(early.heartbeats(), 1.0))
    assert len(rows_of(early)) == 1


def test_files_that_may_be_gone_as_orphans_are_not_added(tmp_path: Path) -> None:
    lake, clock = lake_in(tmp_path), ManualClock(at(0))
    files, _ = new_files(lake, clock)
    written = files.write(heartbeat_rows(columns_of([Beat("a", 1.0)]), {}))
    clock.advance(timedelta(hours=13))
    with pytest.raises(TableConflict, match="13 h"):
        files.add(written, {})
    assert lake.heartbeats().extent().rows == 0


# Faults of the store


FAULTS = [
    (OSError(122, "Disk quota exceeded (os error 122)"), LakeFull, "no space is left.*continue from the durable"),
    (OSError(27, "Unable to copy data to file: File too large (os error 27)"), LakeFull, "`ulimit -f`.*continue"),
    (DeltaError("Generic GCS error: error sending request for url"), LakeUnreachable, "ticks retry"),
    (FileNotFoundError("gone\n  \x1b[31m↳\x1b[0m 404 Not Found\n"), CorruptObject, "lacks a file: gone 404 Not Found;"),
    (CommitFailedError("a concurrent transaction"), TableConflict, "other writers committed"),
    (CommitFailedError("Unsupported table features required: [RowTracking]"), CorruptObject, "another tool has turned"),
]


@pytest.mark.parametrize(("fault", "expected", "told"), FAULTS, ids=[str(fault)[:60] for fault, _, _ in FAULTS])
def test_a_fault_of_the_store_says_what_to_do_and_the_next_append_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception, expected: type[LakeError], told: str
) -> None:
    """The texts are the library's own, as it gave them on a disk without space and on the others."""
    lake = lake_in(tmp_path)
    heartbeats = lake.heartbeats()
    append_beats(heartbeats, columns_of([Beat("a", 0)]))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", raising(fault))
        with pytest.raises(expected, match=told) as caught:
            append_beats(heartbeats, columns_of([Beat("a", 1)]))
    assert type(caught.value) is expected
    assert len(rows_of(lake)) == 1
    append_beats(heartbeats, columns_of([Beat("a", 1)]))
    assert len(rows_of(lake)) == 2
    others = DeltaTable(heartbeats.uri)
    others.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    with pytest.raises(LakeError, match=r"another tool has turned on .*deletionVectors"):
        append_beats(heartbeats, columns_of([Beat("a", 2)]))


def test_a_change_whose_answer_was_lost_is_not_said_to_be_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changed, heartbeats = TableAlterer.set_table_properties, lake_in(tmp_path).heartbeats()
    heartbeats.complete(heartbeats.schema)
    heartbeats.properties = {**heartbeats.properties, "delta.appendOnly": "false"}

    def losing_the_answer(*given: Any, **more: Any) -> None:
        changed(*given, **more)
        raise CommitFailedError("Metadata changed since last commit")

    monkeypatch.setattr(TableAlterer, "set_table_properties", losing_the_answer)
    with pytest.raises(TableConflict, match=r"or the answer to this commit was lost: Metadata .*\. Try again$"):
        heartbeats.complete(heartbeats.schema)
    assert heartbeats.complete(heartbeats.schema).version() == 1


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


@pytest.mark.parametrize("left", [0, 7, 100])
def test_a_cut_checkpoint_is_reported_as_damage(tmp_path: Path, left: int) -> None:
    append_beats(lake_in(tmp_path).heartbeats(), columns_of([Beat("a", 1)]))
    folder = tmp_path / "lake" / "heartbeats"
    DeltaTable(folder).create_checkpoint()
    (checkpoint,) = (folder / "_delta_log").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:left])
    with pytest.raises(CorruptObject, match=r"heartbeats has a damaged file.*restore its earlier version"):
        rows_of(lake_in(tmp_path))


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


SECOND_US = 1_000_000


def test_rejected_payloads_with_readable_times_count_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quarantine = lake_in(tmp_path).quarantine()
    assert rejected_payloads(quarantine, CONTRACT, at(0), at(100)) == []
    messages = [("a", 20, 10), ("fast", 30, 35), ("a", 20, 10), ("before", -1, -2), ("other reason", 40, 39)]
    append_rejected(
        quarantine,
        *(
            {
                "reason": "TOO_OLD" if stream == "other reason" else "UNREADABLE_PAYLOAD",
                "message_id": stream,
                "publish_time": at(publish),
                "attributes": [("stream_id", stream), ("event_time", to_written(event))],
            }
            for stream, publish, event in messages
        ),
    )
    found = rejected_payloads(quarantine, CONTRACT, at(0), at(100))
    first = RejectedPayload("a", START_US + 20 * SECOND_US, START_US + 10 * SECOND_US)
    assert found == [first, RejectedPayload("fast", START_US + 30 * SECOND_US, START_US + 30 * SECOND_US)]
    assert (first.lag_us, by_stream(found)) == (10 * SECOND_US, {"a": 1, "fast": 1})
    assert rejected_payloads(quarantine, CONTRACT, at(0), at(100), pa.array(["fast"])) == [first], "requeued"
    assert rejected_payloads(quarantine, replace(CONTRACT, event_time=Place.of("payload:t")), at(0), at(100)) == []
    monkeypatch.setattr(module, "MOST_PAYLOADS", 1)
    assert rejected_payloads(quarantine, CONTRACT, at(0), at(100)) == [first]


def test_the_note_of_the_contract_is_replaced_and_a_damaged_one_is_no_contract(lake_settings: LakeSettings) -> None:
    lake = lake_of(lake_settings)
    judged_by, other = lake.judged_by(), lake.judged_by()
    assert judged_by.digest() is None
    for digest in ("a", "a", "b"):
        judged_by.note(digest, at(0))
        assert (judged_by.digest(), other.digest()) == (digest, digest)
    objects = lake.objects()
    name = JUDGED_BY.name(JUDGED_BY.key)
    objects.replace(name, b"{", objects.read_generation(name)[1])
    assert judged_by.digest() == UNREADABLE
    judged_by.note("c", at(0))
    assert (judged_by.digest(), lake.requeued().between()) == ("c", [])


HOUR_US, MILLISECOND_US = 3_600_000_000, 1000
BEFORE_1970_US = to_us(from_us(0)) - 40 * HOUR_US
SAYS = metadata_of_round("run", 0)


def files_of(lake: Lake) -> tuple[NewFiles, NewFiles]:
    return new_files(lake, ManualClock(at(0)))


def beats_at(event_us: Sequence[int]) -> pa.Table:
    """One heartbeat for each of these times, to the microsecond."""
    moments = [from_us(us) for us in event_us]
    columns = columns_of([Beat("a", 0.0, message_id=f"{n}") for n in range(len(moments))])
    return heartbeat_rows({**columns, "event_time": moments, "publish_time": moments}, {})


edges = st.builds(
    lambda base, edge, off: base + edge + off,
    st.sampled_from([START_US, BEFORE_1970_US, -HOUR_US, 0]),
    st.sampled_from([0, 1, -1, MILLISECOND_US, HOUR_US, 3 * HOUR_US, -MILLISECOND_US, -HOUR_US]),
    st.one_of(st.sampled_from([0, 1, 999, -1, -999]), st.integers(-HOUR_US, HOUR_US)),
)
"""Times beside the edges of an hour, of a millisecond, and of 1970, from which a text of seconds may be cut wrongly."""


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.lists(edges, min_size=1, max_size=6), min_size=1, max_size=3), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    spans=st.lists(st.tuples(edges, st.integers(0, 2 * HOUR_US)), max_size=4),
)
def test_every_row_of_a_span_is_in_a_file_that_is_chosen(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[tuple[list[list[int]], bool]], spans: list[tuple[int, int]]
) -> None:
    """Each round has some writers, and the table is compacted after some."""
    lake = lake_in(tmp_path_factory.mktemp("lake"))
    good, _ = files_of(lake)
    every: list[int] = []
    for writers, is_compacted in rounds:
        written = [file for event_us in writers for file in good.write(beats_at(event_us))]
        assert lake.heartbeats().extent().rows == len(every), "a file that no version lists was seen"
        good.add(written, SAYS)
        every += [us for event_us in writers for us in event_us]
        if is_compacted:
            table_of(lake).optimize.compact()
    table = lake.heartbeats()
    found = table.extent()
    # The library's own statistics are cut to the millisecond; those of new files are exact.
    assert found.rows == len(every)
    assert 0 <= min(every) - to_us(found.oldest_event_time) < MILLISECOND_US
    assert 0 <= max(every) - to_us(found.newest_event_time) < MILLISECOND_US
    for low, high in [*((us, us) for us in every), *((low, low + length) for low, length in spans)]:
        chosen = table.files_between(from_us(low), from_us(high))
        there = [us for path in chosen.paths for us in event_times_in(path)]
        held = sorted(us for us in every if low <= us <= high)
        assert sorted(us for us in there if low <= us <= high) == held
        assert len(there) == chosen.rows
        assert len(table.published_between(from_us(low), from_us(high + 1)) or ()) == len(held)


def test_the_rows_before_many_windows_in_many_files_are_told_in_little_memory() -> None:
    files = [DataFile("f", 1, 1, "h", at(n), at(n), at(n + 1)) for n in range(1000)]
    tracemalloc.start()
    before = HeartbeatFiles(0, files, "").rows_before([at(n) for n in range(1001)])
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert before.tolist() == list(range(1001))


texts = st.text(st.sampled_from("a\u00fcZ\U0010ffff"), min_size=1, max_size=3) | st.builds(
    lambda char, count, end: char * count + end,
    st.sampled_from("a\U0010ffff"),
    st.integers(30, 40),
    st.sampled_from(["", "b", "\U0010ffff"]),
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "stream_id": texts,
    "publisher_id": st.none() | texts,
    "late": st.booleans(),
    "load": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "status": st.none() | texts,
    "is_on": st.none() | st.booleans(),
}
FIELDS = {"load": FieldKind.NUMBER, "status": FieldKind.TEXT, "is_on": FieldKind.BOOLEAN}


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=st.lists(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=4), min_size=1, max_size=3))
def test_a_filter_finds_every_row(tmp_path_factory: pytest.TempPathFactory, files: list[list[dict[str, Any]]]) -> None:
    """As a program of somebody else may: Arrow passes files over by what the statistics say of any column."""
    lake = lake_in(tmp_path_factory.mktemp("lake"), FIELDS)
    good, _ = files_of(lake)
    rows = [row for each in files for row in each]
    for each in files:
        given = {name: [row[name] for row in each] for name in VALUES}
        good.add(good.write(heartbeat_rows({**columns_of([Beat("", 0.0)] * len(each)), **given}, FIELDS)), SAYS)
    found = table_of(lake).to_pyarrow_dataset()
    for name in VALUES:
        for value in {row[name] for row in rows} - {None}:
            expected = sum(row[name] == value for row in rows)
            assert found.count_rows(filter=pc.field(name) == value) == expected, (name, value)
        assert found.count_rows(filter=pc.field(name).is_null()) == sum(row[name] is None for row in rows), name

"""Files that are written apart from their transaction: their statistics are right, and readers see each row once."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.lake.builders import Beat, append, append_beats, append_rejected, columns_of, lake_in, version_of
from tests.lake.test_tables import event_times_in, rejected, rows_of, table_of
from tests.watermark.builders import START_US, at
from tidemark.pipeline.clock import SystemClock, from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, RejectionReason
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.delta_log import last_round, says_of
from tidemark.pipeline.lake.tables.heartbeats import LandedExtent, heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.quarantine import Rejected, quarantine_rows

HOUR_US, MILLISECOND_US = 3_600_000_000, 1000
BEFORE_1970_US = to_us(from_us(0)) - 40 * HOUR_US
SAYS = says_of("run", 0)


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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.lists(edges, min_size=1, max_size=6), min_size=1, max_size=3), st.booleans()),
        min_size=1,
        max_size=3,
    ),
    spans=st.lists(st.tuples(edges, st.integers(0, 2 * HOUR_US)), max_size=4),
)
def test_every_row_of_a_span_is_in_a_file_that_is_chosen(
    tmp_path_factory: pytest.TempPathFactory,
    rounds: list[tuple[list[list[int]], bool]],
    spans: list[tuple[int, int]],
) -> None:
    """Each round has some writers, and some rounds have an `append` beside them."""
    lake = lake_in(tmp_path_factory.mktemp("lake"))
    good, _ = files_of(lake)
    every: list[int] = []
    for writers, is_appended_to in rounds:
        written = [file for event_us in writers for file in good.write(beats_at(event_us))]
        assert lake.heartbeats().extent().rows == len(every), "a file that no version lists was seen"
        good.add(written, SAYS)
        every += [us for event_us in writers for us in event_us]
        if is_appended_to:
            append(lake.heartbeats(), beats_at(writers[0]))
            every += writers[0]
    table = lake.heartbeats()
    oldest, newest = (from_us(bound) for bound in (min(every), max(every)))
    found = table.extent()
    # The library's own statistics are cut to the millisecond; those of new files are exact.
    assert found.rows == len(every)
    assert found.oldest_event_time is not None
    assert found.newest_event_time is not None
    assert 0 <= to_us(oldest) - to_us(found.oldest_event_time) < MILLISECOND_US
    assert 0 <= to_us(newest) - to_us(found.newest_event_time) < MILLISECOND_US
    for low, high in [*((us, us) for us in every), *((low, low + length) for low, length in spans)]:
        chosen = table.files_between(from_us(low), from_us(high))
        there = [us for path in chosen.paths for us in event_times_in(path)]
        assert sorted(us for us in there if low <= us <= high) == sorted(us for us in every if low <= us <= high)
        assert len(there) == chosen.rows


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(event_us=st.lists(edges, min_size=1, max_size=12))
def test_statistics_are_the_bounds_of_what_a_file_holds_to_the_microsecond(
    tmp_path_factory: pytest.TempPathFactory, event_us: list[int]
) -> None:
    lake = lake_in(tmp_path_factory.mktemp("lake"))
    good, _ = files_of(lake)
    written = good.write(beats_at(event_us))
    good.add(written, SAYS)
    table = table_of(lake)
    folder = lake.heartbeats().folder
    actions = pa.table(table.get_add_actions(flatten=True))
    said = {
        path: (rows, size, partition, to_us(least), to_us(most))
        for path, rows, size, partition, least, most in zip(
            *(
                actions[name].to_pylist()
                for name in (
                    "path",
                    "num_records",
                    "size_bytes",
                    "partition.event_hour",
                    "min.event_time",
                    "max.event_time",
                )
            ),
            strict=True,
        )
    }
    assert len(said) == len({us // HOUR_US for us in event_us}), "one file for each hour"
    for file in written:
        held = event_times_in(lake.heartbeats().file_location(file.path))
        hour = pc.strftime(pa.array([held[0]]).cast(pa.timestamp("us", tz="UTC")), format="%Y-%m-%dT%HZ")[0].as_py()
        assert {us // HOUR_US for us in held} == {held[0] // HOUR_US}
        size = folder.get_file_info(file.path).size
        assert said[file.path] == (len(held), size, hour, min(held), max(held))


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


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(files=st.lists(st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=4), min_size=1, max_size=3))
def test_whoever_filters_by_the_values_of_a_column_finds_every_row_that_has_them(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[dict[str, Any]]]
) -> None:
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


def test_what_landed_and_what_was_rejected_is_found_in_files_of_which_the_times_alone_are_said(tmp_path: Path) -> None:
    """As version 0.1 wrote them."""
    lake = lake_in(tmp_path)
    beats = heartbeat_rows(columns_of([Beat("a", 0.0, "m1"), Beat("a", 1.0, "m2")]), {})
    refused = quarantine_rows(rejected(["m3"]))
    for files, rows in zip(files_of(lake), (beats, refused), strict=True):
        times = [column.name for column in rows.schema if pa.types.is_timestamp(column.type)]
        (file,) = files.write(rows)
        files.add([replace(file, bounds={name: file.bounds[name] for name in times}, nulls={})], SAYS)
    assert lake.heartbeats().landed_of(pa.array(["m2", "m3"]), at(0), at(10)).to_pylist() == ["m2"]
    (day,) = lake.quarantine().days()
    for reason, found in ((RejectionReason.NO_STREAM_ID, ["m3"]), (RejectionReason.TOO_OLD, [])):
        of_reason = lake.quarantine().rejected(["message_id"], Rejected(reason), day)
        assert [one for rows in of_reason for one in rows["message_id"].to_pylist()] == found


def test_rows_equal_those_of_an_append_in_every_column(tmp_path: Path) -> None:
    ours, theirs = lake_in(tmp_path / "ours"), lake_in(tmp_path / "theirs")
    good, bad = files_of(ours)
    beats = columns_of([Beat("ünï=", 0.123456, publisher_id="p"), Beat("b", 7200.5, late=True), Beat("b", -5e9)])
    good.add(good.write(heartbeat_rows(beats, {})), SAYS)
    append_beats(theirs.heartbeats(), beats)
    assert rows_of(ours) == rows_of(theirs)
    refused = rejected(["m1", "m2"], payload=b"\xff\x00")
    bad.add(bad.write(quarantine_rows(refused)), SAYS)
    append_rejected(theirs.quarantine(), refused)
    assert rows_of(ours, "quarantine") == rows_of(theirs, "quarantine")
    assert table_of(ours).schema() == table_of(theirs).schema()


def test_files_that_are_added_twice_are_there_once(tmp_path: Path) -> None:
    """A commit whose answer was lost may be repeated: a table lists a path once."""
    lake = lake_in(tmp_path)
    good, _ = files_of(lake)
    written = good.write(beats_at([START_US, START_US + HOUR_US]))
    good.add(written, SAYS)
    good.add(written, SAYS)
    assert lake.heartbeats().extent() == LandedExtent(2, from_us(START_US), from_us(START_US + HOUR_US))
    assert len(rows_of(lake)) == 2
    assert version_of(lake.heartbeats()) == 2


def test_a_round_without_files_makes_no_version(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    good, bad = files_of(lake)
    assert good.write(beats_at([])) == []
    for files in (good, bad):
        files.add([], SAYS)
    assert version_of(lake.heartbeats()) is None


def test_the_newest_round_is_told_although_ticks_land_after_it(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    assert last_round(lake.heartbeats()) is None
    append_beats(lake.heartbeats(), columns_of([Beat("a", 1.0)]))
    assert last_round(lake.heartbeats()) is None
    heartbeats, _ = files_of(lake)
    for number in (6, 7):
        heartbeats.add(heartbeats.write(beats_at([START_US])), says_of("run", number))
    append_beats(lake.heartbeats(), columns_of([Beat("a", 2.0)]))
    newest = last_round(lake.heartbeats())
    assert newest is not None
    assert (newest.run, newest.number) == ("run", 7)
    assert abs(newest.at - SystemClock().now()) < timedelta(minutes=5)

"""Files that are written apart from their transaction: their statistics are right, and readers see each row once."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.lake.builders import Beat, columns_of, lake_in
from tests.lake.test_tables import event_times_in, table_of
from tests.watermark.builders import START_US, at
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.delta_log import says_of
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFiles

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

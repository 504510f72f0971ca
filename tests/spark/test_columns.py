"""Computing in columns gives the rows that plain Python gives, on dirty data."""

import random
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clock import ManualClock
from tests.lake.builders import append_beats
from tests.spark.beats import (
    FIELDS,
    LENGTH,
    LOOKBACK,
    PLAN,
    T0,
    Beat,
    at,
    by_kind,
    by_message,
    columns_of,
    expected,
    expected_status,
    in_columns,
    naive,
    table,
)
from tidemark.pipeline.compute import slices
from tidemark.pipeline.compute.columns import DiffPlan, heartbeat_diffs
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.diffs import STATUS, diff_schema
from tidemark.pipeline.lake.tables.heartbeats import columns_read
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.windows import Windowing

BACK = LOOKBACK.total_seconds()
EDGES = [-BACK - 0.000001, -BACK, -1, 0, 0.000001, 30, 299.999999, 300, 599.999999, 600, 600.000001, 899.999999, 900]
WINDOWS = list(Windowing(LENGTH, T0 - timedelta(days=1)).between(at(0), at(900)))
NUMBERS = [None, 0.0, -0.0, 1.5, 1e308, -1e308, 5e-324]

VALUES = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from(NUMBERS),
        "status": st.sampled_from([None, "", "ok", "ö"]),
        "on": st.sampled_from([None, True, False]),
        "place": st.sampled_from([None, "[1]"]),
    }
)


@st.composite
def traffic(draw: st.DrawFn) -> list[Beat]:
    """Few streams and moments, so that much is equal; ids that look alike; redeliveries and retried publications."""
    beats: list[Beat] = []
    for number in range(draw(st.integers(0, 12))):
        event = draw(st.sampled_from(EDGES) | st.integers(-700, 1000).map(float))
        beat = Beat(
            stream=draw(st.sampled_from(["a", "b", "aa", "é"])),
            event=event,
            message_id=str(number),
            publisher_id=draw(st.sampled_from([None, "", "1", "x"])),
            published=event + draw(st.sampled_from([0, 1, 60])),
            late=draw(st.booleans()),
            values=draw(VALUES),
        )
        beats.append(beat)
        if draw(st.booleans()):
            values = draw(st.sampled_from([beat.values, {}]))  # none: it landed before the fields were added
            beats.append(Beat(**{**vars(beat), "late": draw(st.booleans()), "values": values}))
    return draw(st.permutations(beats))


@settings(max_examples=60)
@given(traffic())
def test_every_row_equals_the_one_that_plain_python_computes(beats: list[Beat]) -> None:
    made, status = in_columns(beats, 0, 900)
    assert made == expected(beats, 0, 900)
    assert status == expected_status(beats, 0, 900)


def test_a_field_may_be_named_as_a_column_of_the_computation_without_its_underscore() -> None:
    computed = []
    for name in ("load", "is_copy", "in_time_before", "has_previous", "gap_us", "window_number", "was_event_time"):
        plan = DiffPlan({name: FieldKind.NUMBER}, LOOKBACK, timedelta(seconds=30), LENGTH)
        columns = columns_of([("a", 0), ("a", 30), ("a", 70)], **{name: [1.0, 4.0, 9.0]})
        schema = columns_read(plan.fields)
        rows = pa.table({one: columns[one] for one in schema.names}, schema)
        diffs = heartbeat_diffs(pl.DataFrame(rows), plan, at(0), at(300))
        computed.append(diffs.select(name, f"previous_{name}", f"{name}_delta").rows())
    assert computed == [computed[0]] * len(computed)


def dirty(seed: int) -> list[Beat]:
    """Many streams, each with few moments; every kind of copy."""
    source = random.Random(seed)
    beats: list[Beat] = []
    for stream in range(80):
        for _ in range(source.randrange(1, 9)):
            event = source.choice([*EDGES, float(source.randrange(-700, 1000))])
            values = {
                "temperature": source.choice(NUMBERS),
                "status": source.choice([None, "", "ok"]),
                "on": source.choice([None, True, False]),
                "place": source.choice([None, "[1]"]),
            }
            identity = source.choice([None, "", str(len(beats) + 1), "x"])
            lag = source.choice([0, 1, 60])
            beat = Beat(f"s{stream}", event, str(len(beats)), identity, event + lag, source.random() < 0.3, values)
            beats += [beat] * source.choice([1, 1, 2])
    source.shuffle(beats)
    return beats


@settings(max_examples=15)
@given(traffic(), st.integers(1, 5), st.integers(1, 4), st.integers(1, 20))
def test_however_a_range_is_cut_the_files_hold_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, beats: list[Beat], cores: int, batches: int, most: int
) -> None:
    folder = tmp_path_factory.mktemp("lake")
    lake = Lake(LakeSettings(uri=f"file:{folder}"), FIELDS, ManualClock(at(2000)))
    for first in range(batches):
        if beats[first::batches]:
            append_beats(lake.heartbeats(), landed(beats[first::batches]))
    files = lake.heartbeats().files_between(at(-BACK), at(900))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(slices, "ROWS_OF_A_SLICE", most)
        patched.setattr(slices, "MOST_ROWS", most)
        cut = slices.cut(WINDOWS, files, LOOKBACK, cores)
    assert sorted({window for one in cut for window in one.windows}) == WINDOWS
    work = slices.Work("run", PLAN, cut, {}, lake.diffs().files, lake.stream_status().files)
    answers = [answer for one in cut for answer in work.answers(one)]
    made, status = in_columns(beats, 0, 900)
    assert sorted(written(folder, "diffs", answers), key=by_message) == made
    assert sorted(written(folder, "status", answers), key=by_kind) == status


def landed(beats: Sequence[Beat]) -> dict[str, list[Any]]:
    """The columns of a landing."""
    rows: dict[str, list[Any]] = {name: table(beats)[name].to_list() for name in columns_read(FIELDS).names}
    whole = {"ordering_key": None, "attributes": [], "payload": b"{}", "landed_at": at(2000)}
    return rows | {name: [value] * len(beats) for name, value in whole.items()}


def written(folder: Path, name: str, answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of the files that were answered, each of which is as large as was told, with the table's schema."""
    place = folder / {"diffs": "heartbeat_diffs", "status": "stream_status"}[name]
    schema = diff_schema(FIELDS) if name == "diffs" else STATUS
    found: list[dict[str, Any]] = []
    for answer in answers:
        if answer["table"] == name:
            file = place / answer["path"]
            rows = ds.dataset(file, format="parquet").to_table()
            assert rows.schema == pa.schema([column for column in schema if column.name != PARTITION])
            assert (answer["rows"], answer["size"]) == (rows.num_rows, file.stat().st_size)
            rows = rows.append_column(PARTITION, pa.repeat(answer["window"], rows.num_rows))
            found += [{key: naive(value) for key, value in row.items()} for row in rows.to_pylist()]
    assert {answer["window"] for answer in answers if answer["table"] == name} == {
        at(start).strftime("%Y-%m-%dT%H-%MZ") for start in (0, 300, 600)
    }
    return found

"""What changed between two computations of a window, against a plain loop over the rows."""

import base64
import json
import math
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.pipeline.quality.corrected import row_changes

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SCHEMA = {"stream": pl.String(), "at": pl.Datetime("us", "UTC"), "value": pl.Float64(), "note": pl.String()}

Row = tuple[Any, ...]

ROWS = st.lists(
    st.tuples(
        st.sampled_from(["a", "b", None]),
        st.sampled_from([NOON, NOON + timedelta(microseconds=1)]),
        st.sampled_from([0.0, 0.5, None, math.nan, math.inf]),
        st.sampled_from([None, 'say "x"\n', "é\u2028"]),
    ),
    max_size=7,
)


def frame(rows: Sequence[Row]) -> pl.DataFrame:
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def as_json(row: Row) -> str:
    """A row as the corrections have it, by the standard library."""
    stream, at, value, note = row
    moment = at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    plain = value if value is not None and math.isfinite(value) else None
    facts = {"stream": stream, "at": moment, "value": plain, "note": note}
    return json.dumps(facts, sort_keys=True)


def in_order(text: str) -> str:
    return json.dumps(json.loads(text), sort_keys=True)


def key_of(row: str, key: Sequence[str]) -> str | None:
    facts = {name: json.loads(row)[name] for name in {*key} - {"window"}}
    return json.dumps(facts, sort_keys=True) if key else None


def changes(old: Sequence[Row], new: Sequence[Row], key: Sequence[str]) -> list[tuple[str, Any, Any, Any]]:
    rows = row_changes(frame(old), frame(new), key).rows()
    return [(change, *(None if text is None else in_order(text) for text in texts)) for change, *texts in rows]


def expected(old: Sequence[Row], new: Sequence[Row], key: Sequence[str]) -> Counter[tuple[str, Any, Any, Any]]:
    """The same by counting."""
    before, after = Counter(map(as_json, old)), Counter(map(as_json, new))
    counts = [Counter(key_of(row, key) for row in side.elements()) for side in (before, after)]
    gone, come = (before - after), (after - before)
    found = Counter[tuple[str, Any, Any, Any]]()
    for row, count in gone.items():
        of_key = key_of(row, key)
        partners = [other for other in come if key_of(other, key) == of_key]
        if key and max(side[of_key] for side in counts) == 1 and partners:
            found["changed", of_key, row, partners[0]] += 1
            del come[partners[0]]
        else:
            found["removed", of_key, row, None] += count
    for row, count in come.items():
        found["added", key_of(row, key), None, row] += count
    return found


@pytest.mark.parametrize("key", [(), ("stream",), ("window", "stream", "at"), ("window",)])
@given(old=ROWS, new=ROWS)
def test_changes_are_a_loop_s_and_make_new_rows_of_old(old: list[Row], new: list[Row], key: tuple[str, ...]) -> None:
    found = changes(old, new, key)
    assert Counter(found) == expected(old, new, key)
    rows = Counter(map(as_json, old))
    for _, _, before, after in found:
        if before is not None:
            assert rows[before] > 0
            rows[before] -= 1
        if after is not None:
            rows[after] += 1
    assert +rows == Counter(map(as_json, new))


def test_values_of_every_kind_are_written_as_json_has_them() -> None:
    east = timezone(timedelta(hours=2))
    row = {
        "moment": datetime(2026, 11, 21, 14, tzinfo=east),
        "local": datetime(2026, 11, 21, 12),  # noqa: DTZ001 (a time without a zone is what is tested)
        "day": date(2026, 11, 21),
        "price": Decimal("1.10"),
        "blob": b"\xff\x00",
        "list": [{"at": NOON, "x": math.inf}],
        "by_text": {"a": b"\xff"},
        "by_number": {1: {"b": math.nan}},
        "large": 2**62,
        "yes": True,
    }
    maps = {"by_text": pl.Map(pl.String, pl.Binary), "by_number": pl.Map(pl.Int32, pl.Map(pl.String, pl.Float64))}
    new = pl.DataFrame([row], schema_overrides={"moment": pl.Datetime("us", "Europe/Athens"), **maps})
    ((_, _, _, text),) = row_changes(new.clear(), new, []).rows()
    assert json.loads(text) == {
        "moment": "2026-11-21T12:00:00.000000Z",
        "local": "2026-11-21T12:00:00.000000",
        "day": "2026-11-21",
        "price": "1.10",
        "blob": base64.b64encode(b"\xff\x00").decode(),
        "list": [{"at": "2026-11-21T12:00:00.000000Z", "x": None}],
        "by_text": {"a": "/w=="},
        "by_number": [{"key": 1, "value": {"b": None}}],
        "large": 2**62,
        "yes": True,
    }

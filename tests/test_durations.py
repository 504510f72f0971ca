"""Durations as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from tests.watermark.builders import bounded
from tidemark.pipeline.clock import LONGEST, format_duration, parse_duration
from tidemark.pipeline.settings_sections import Duration

MILLISECOND = timedelta(milliseconds=1)


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("0", timedelta(0)),
        ("0s", timedelta(0)),
        ("250ms", timedelta(milliseconds=250)),
        ("10s", timedelta(seconds=10)),
        ("0.5s", timedelta(milliseconds=500)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("1.5h", timedelta(minutes=90)),
        ("7d", timedelta(days=7)),
        ("1d2h3m4s5ms", timedelta(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)),
        (" 10s\n", timedelta(seconds=10)),
    ],
)
def test_a_duration_is_read_with_its_unit(text: str, duration: timedelta) -> None:
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "10",
        "1.5",
        "s",
        "10 s",
        "10s5",
        "5 m 3 s",
        "-5s",
        "+5s",
        "1e3s",
        "10S",
        "10sec",
        ".5s",
        "5.s",
        "nan",
        "x10s",
    ],
)
def test_anything_else_is_refused_with_an_example_that_is_right(text: str) -> None:
    with pytest.raises(ValueError, match="with its unit, such as 500ms, 10s, 5m, 1h30m or 7d"):
        parse_duration(text)


@pytest.mark.parametrize("text", ["999999999999d", "999999999d999999999d", "36500d1ms"])
def test_a_duration_beyond_all_bounds_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 36500d, the longest that can be handled"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("duration", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=10), "10s"),
        (timedelta(seconds=60), "1m"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(days=1), "1d"),
        (timedelta(days=7, seconds=1), "7d1s"),
        (timedelta(milliseconds=250), "0.25s"),
        (timedelta(seconds=59, microseconds=999_600), "1m"),
        (timedelta(seconds=-90), "-1m30s"),
        (timedelta(microseconds=400), "0s"),
        (timedelta(microseconds=-400), "0s"),
    ],
)
def test_a_duration_is_written_short(duration: timedelta, text: str) -> None:
    assert format_duration(duration) == text


@bounded
@given(st.integers(0, LONGEST // MILLISECOND).map(lambda count: count * MILLISECOND))
def test_whole_milliseconds_are_read_back_exactly(duration: timedelta) -> None:
    assert parse_duration(format_duration(duration)) == duration


@bounded
@given(st.text(alphabet="0123456789.smhd -+eE", max_size=12) | st.text(max_size=8))
def test_every_text_is_either_read_or_refused(text: str) -> None:
    try:
        duration = parse_duration(text)
    except ValueError as error:
        assert "duration" in str(error)  # noqa: PT017 (either outcome is right, and each is checked)
    else:
        assert duration >= timedelta(0)


class Tempo(BaseModel):
    every: Duration


def test_a_model_reads_and_writes_durations_as_text() -> None:
    assert Tempo.model_validate({"every": "1h30m"}).every == timedelta(minutes=90)
    assert Tempo(every=timedelta(minutes=90)).model_dump() == {"every": "1h30m"}


@pytest.mark.parametrize("value", [90, 1.5, True, None, "90"])
def test_a_model_refuses_a_number_without_its_unit(value: object) -> None:
    with pytest.raises(ValidationError, match="with its unit"):
        Tempo.model_validate({"every": value})

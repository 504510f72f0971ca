"""Event-time windows: they cover the line, they are named by their start, and only some are due."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.settings_sections import LENGTHS
from pipeline.windows import DAY, Window, Windowing, due, runs_of_neighbours
from tests.watermark.builders import bounded

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
FIVE_MINUTES = timedelta(minutes=5)
HOUR = timedelta(hours=1)

windowings = st.sampled_from(LENGTHS).map(lambda length: Windowing(length, FIRST))
moments = st.datetimes(datetime(2020, 1, 1), datetime(2040, 1, 1)).map(lambda naive: naive.replace(tzinfo=UTC))  # noqa: DTZ001
spans = st.timedeltas(timedelta(0), timedelta(days=3))


def window(number: int) -> Window:
    """The window so many windows after the first one."""
    return Window(FIRST + number * FIVE_MINUTES, FIRST + (number + 1) * FIVE_MINUTES)


# ------------------------------------------------------------------------------------------ covering the line


@bounded
@given(windowings, moments)
def test_every_moment_is_in_exactly_the_window_that_contains_it(windowing: Windowing, moment: datetime) -> None:
    found = windowing.containing(moment)
    assert found.start <= moment < found.end
    assert found.end - found.start == windowing.length
    assert windowing.containing(found.start) == found
    assert windowing.containing(found.end - timedelta(microseconds=1)) == found
    assert windowing.containing(found.end).start == found.end


@bounded
@given(windowings, moments)
def test_windows_begin_at_midnight_in_utc(windowing: Windowing, moment: datetime) -> None:
    midnight = moment.replace(hour=0, minute=0, second=0, microsecond=0)
    assert windowing.containing(midnight).start == midnight


@bounded
@given(windowings, moments, spans)
def test_windows_between_two_moments_have_no_gap_and_no_overlap(
    windowing: Windowing, start: datetime, span: timedelta
) -> None:
    end = start + span
    windows = list(windowing.between(start, end))
    assert all(one.end == following.start for one, following in itertools.pairwise(windows))
    assert all(windowing.containing(each.start) == each for each in windows)
    if windows:
        assert start <= windows[0].start < start + windowing.length
        assert end - windowing.length < windows[-1].end <= end
    else:
        assert span < 2 * windowing.length


def test_between_takes_only_windows_that_lie_wholly_inside() -> None:
    windowing = Windowing(FIVE_MINUTES, FIRST)
    second = timedelta(seconds=1)
    assert list(windowing.between(FIRST, FIRST + FIVE_MINUTES)) == [window(0)]
    assert list(windowing.between(FIRST + second, FIRST + 2 * FIVE_MINUTES)) == [window(1)]
    assert list(windowing.between(FIRST, FIRST + FIVE_MINUTES - second)) == []
    assert list(windowing.between(FIRST + FIVE_MINUTES, FIRST)) == []


# --------------------------------------------------------------------------------------------------- the names


@bounded
@given(windowings, moments)
def test_a_window_is_found_again_by_its_key(windowing: Windowing, moment: datetime) -> None:
    found = windowing.containing(moment)
    assert windowing.named(found.key) == found


@bounded
@given(windowings, st.lists(moments, min_size=2, max_size=6))
def test_keys_stand_in_the_order_of_time(windowing: Windowing, some: list[datetime]) -> None:
    windows = sorted(windowing.containing(moment) for moment in some)
    assert [each.key for each in windows] == sorted(each.key for each in windows)
    assert len({each.key for each in windows}) == len(set(windows))


def test_a_key_is_the_start_without_colons() -> None:
    assert window(64).key == "2026-01-01T05-20Z"
    assert str(window(64)) == "[2026-01-01T05:20:00Z, 2026-01-01T05:25:00Z)"


@pytest.mark.parametrize(
    "key",
    [
        "2026-01-01T05-21Z",  # inside a window
        "2026-01-01T05:20Z",
        "2026-01-01T05-20",
        "2026-1-1T5-20Z",  # the same moment, but not the key
        "2026-13-01T05-20Z",
        "2026-01-01T05-20Z ",
        "",
        "latest",
    ],
)
def test_a_text_that_is_no_window_s_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match=r"window|does not match|unconverted"):
        Windowing(FIVE_MINUTES, FIRST).named(key)


# ----------------------------------------------------------------------------------------------------- closing


def test_a_window_is_closed_when_the_watermark_has_reached_its_end() -> None:
    assert not window(0).is_closed_at(None)
    assert not window(0).is_closed_at(window(0).end - timedelta(microseconds=1))
    assert window(0).is_closed_at(window(0).end)


@bounded
@given(windowings, moments, spans)
def test_closed_windows_agrees_with_each_window_s_is_closed_at(
    windowing: Windowing, since: datetime, span: timedelta
) -> None:
    watermark = since + span
    closed = windowing.closed_at(watermark, since)
    assert all(each.is_closed_at(watermark) for each in closed)
    assert not windowing.containing(watermark).is_closed_at(watermark)
    covered = sum((each.end - each.start for each in closed), timedelta(0))
    assert windowing.containing(since).start + covered == windowing.containing(watermark).start


def test_without_a_watermark_nothing_is_closed() -> None:
    windowing = Windowing(FIVE_MINUTES, FIRST)
    assert windowing.closed_at(None, FIRST) == []
    assert windowing.closed_at(FIRST - DAY, FIRST) == []


# ------------------------------------------------------------------------------------------------- neighbours


def test_windows_are_cut_into_stretches_without_a_gap() -> None:
    assert runs_of_neighbours([]) == []
    assert runs_of_neighbours([window(4), window(2), window(1), window(7)]) == [
        [window(1), window(2)],
        [window(4)],
        [window(7)],
    ]


@bounded
@given(st.sets(st.integers(0, 40)))
def test_stretches_keep_every_window_once_and_never_touch(numbers: set[int]) -> None:
    stretches = runs_of_neighbours(window(number) for number in numbers)
    assert [each for stretch in stretches for each in stretch] == [window(number) for number in sorted(numbers)]
    assert all(one.end == two.start for stretch in stretches for one, two in itertools.pairwise(stretch))
    assert all(one[-1].end < two[0].start for one, two in itertools.pairwise(stretches))


# --------------------------------------------------------------------------------------------------------- due


def closed_over(hours: float) -> list[Window]:
    return list(Windowing(FIVE_MINUTES, FIRST).between(FIRST, FIRST + hours * HOUR))


def test_a_window_that_was_computed_is_not_due() -> None:
    closed = closed_over(1)
    assert due(closed, set(), [FIRST]) == closed
    assert due(closed, {closed[3].key, closed[5].key}, [FIRST]) == [*closed[:3], closed[4], *closed[6:]]
    assert due(closed, {each.key for each in closed}, [FIRST]) == []


def test_without_any_data_nothing_is_due() -> None:
    assert due(closed_over(2), set(), []) == []


def test_nothing_is_due_before_the_first_data() -> None:
    assert due(closed_over(4), set(), [FIRST + 2 * HOUR]) == closed_over(4)[24:]


def test_an_empty_window_in_a_short_silence_is_due() -> None:
    hours = [FIRST, FIRST + 6 * HOUR]
    assert due(closed_over(7), set(), hours, longest_silence=5 * HOUR) == closed_over(7)


def test_an_empty_window_in_a_silence_longer_than_the_longest_is_not_due() -> None:
    hours = [FIRST + 6 * HOUR, FIRST]  # in any order
    found = due(closed_over(7), set(), hours, longest_silence=5 * HOUR - timedelta(microseconds=1))
    assert found == [*closed_over(1), *closed_over(7)[72:]]


def test_after_the_newest_data_empty_windows_are_due_for_as_long_as_a_silence_may_last() -> None:
    found = due(closed_over(72), set(), [FIRST])
    assert found == closed_over(25)


def test_one_message_with_a_clock_months_off_does_not_ask_for_every_window_since() -> None:
    windowing = Windowing(FIVE_MINUTES, FIRST)
    today = FIRST + timedelta(days=120)
    closed = windowing.closed_at(today + HOUR, FIRST)
    found = due(closed, set(), [FIRST, today])
    assert found == [*closed_over(1), *windowing.between(today, today + HOUR)]


def test_windows_longer_than_an_hour_are_due_when_any_of_their_hours_has_data() -> None:
    windowing = Windowing(DAY, FIRST)
    closed = windowing.closed_at(FIRST + 5 * DAY, FIRST)
    hours = [FIRST + DAY + 23 * HOUR]
    assert due(closed, set(), hours, longest_silence=HOUR) == [closed[1], closed[2]]


@bounded
@given(st.sets(st.integers(0, 60), max_size=6), st.sets(st.integers(0, 700), max_size=20), st.integers(0, 30))
def test_every_closed_window_with_data_is_due_until_computed(hours: set[int], computed: set[int], silence: int) -> None:
    closed = closed_over(60)
    starts = [FIRST + hour * HOUR for hour in hours]
    done = {window(number).key for number in computed}
    found = due(closed, done, starts, longest_silence=silence * HOUR)
    assert found == sorted(set(found))
    assert not {each.key for each in found} & done
    with_data = [each for each in closed if any(start <= each.start < start + HOUR for start in starts)]
    assert {each for each in with_data if each.key not in done} <= set(found)
    longest = silence * HOUR
    for each in found:  # within the longest silence after some data
        assert any(start < each.end and each.start < start + HOUR + longest for start in starts)

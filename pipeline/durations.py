"""Reads and formats durations as in settings and on the command line: `10s`, `5m`, `1h30m`, `250ms`."""

import re
from datetime import timedelta
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

_UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
LONGEST = timedelta(days=36_500)
"""The longest duration accepted. Subtracted from now, it still gives a date that Python can represent."""

_PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Parse `10s`, `5m`, `1h30m` or `0.5s`; a bare `0` is zero.

    Raises ValueError, which says what to write, if the duration has no unit, is negative or exceeds `LONGEST`.
    """
    written = text.strip()
    if written == "0":
        return timedelta(0)
    parts = _PART.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        negative = "a duration is not negative; " if written.startswith("-") else ""
        raise ValueError(f"{negative}write a duration with its unit, such as 500ms, 10s, 5m, 1h30m or 7d")
    seconds = sum(float(number) * _UNITS[unit].total_seconds() for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        raise ValueError(f"this duration is longer than {LONGEST.days}d, the longest that can be handled")
    return timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Return the shortest text that `parse_duration` reads back, to the millisecond. Negative durations begin with
    `-`."""
    sign, left = ("-", -duration) if duration < timedelta(0) else ("", duration)
    if left and left % timedelta(seconds=1):
        left = timedelta(seconds=round(left.total_seconds(), 3))
    text = ""
    for unit in ("d", "h", "m"):
        count, left = divmod(left, _UNITS[unit])
        text += f"{count}{unit}" if count else ""
    seconds = left.total_seconds()
    text += f"{seconds:g}s" if seconds else ""
    return sign + text if text else "0s"


def rough(duration: timedelta) -> str:
    """Format a duration, rounded to the second."""
    return format_duration(timedelta(seconds=round(duration.total_seconds())))


def _read(value: Any) -> timedelta:
    return value if isinstance(value, timedelta) else parse_duration(str(value))


Duration = Annotated[timedelta, BeforeValidator(_read), PlainSerializer(format_duration)]
"""A `timedelta` that is written as text in a settings file."""

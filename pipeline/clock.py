"""The only module that reads the clock. Converts times to integers, exactly, and durations to text such as `1h30m`."""

import re
import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)
HOUR_US = 3_600_000_000


class Clock(Protocol):
    """A source of time. `now` may go back when the clock is set. `monotonic` is assumed never to go back."""

    def now(self) -> datetime:
        """Return the wall clock time, aware and in UTC."""

    def monotonic(self) -> float:
        """Return the seconds since an arbitrary moment, for budgets and waits."""

    def sleep(self, seconds: float) -> None:
        """Wait for this number of seconds."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def to_us(moment: datetime) -> int:
    """Return the microseconds since the epoch, exactly. `moment` must be aware."""
    return (moment - EPOCH) // MICROSECOND


def from_us(microseconds: int) -> datetime:
    """Return the time in UTC, exactly: the inverse of `to_us`."""
    return EPOCH + timedelta(microseconds=int(microseconds))


def duration_us(duration: timedelta) -> int:
    """Return a duration in microseconds, exactly."""
    return duration // MICROSECOND


def is_recent(moment: datetime, now: datetime, within: timedelta) -> bool:
    """Return True if `moment` and `now` differ by less than `within`. `moment` may be in the future, if the clock was
    set back."""
    return abs(now - moment) < within


def iso(moment: datetime, *, exact: bool = False) -> str:
    """Format a time in UTC, such as `2026-11-21T05:20:00Z`. A fraction of a second is shown in milliseconds, or in
    microseconds with `exact`."""
    fraction = "microseconds" if exact else "milliseconds"
    text = moment.astimezone(UTC).isoformat(timespec=fraction if moment.microsecond else "seconds")
    return text.replace("+00:00", "Z")


UNITS = {
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "m": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
LONGEST = timedelta(days=36_500)
"""The longest accepted duration. A time this far in the past is still a date that Python can represent."""


class TooLong(ValueError):
    """A duration is longer than LONGEST."""


PART = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)(ms|s|m|h|d)")


def parse_duration(text: str) -> timedelta:
    """Parse `10s`, `5m`, `1h30m` or `0.5s`; a bare `0` is zero.

    Raises ValueError if the text is not such a duration, and TooLong if it exceeds LONGEST. Both say what to write.
    """
    written = str(text).strip()  # Python code may pass a number
    if written == "0":
        return timedelta(0)
    parts = PART.findall(written)
    if not parts or "".join(number + unit for number, unit in parts) != written:
        negative = "a duration must not be negative; " if written.startswith("-") else ""
        raise ValueError(f"{negative}write a duration with its unit, such as 500ms, 10s, 5m, 1h30m or 7d")
    seconds = sum(float(number) * UNITS[unit].total_seconds() for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        raise TooLong(
            f"this duration is longer than {LONGEST.days}d, the longest that can be handled; write a shorter one"
        )
    return timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Format a duration, rounded to the millisecond, as `parse_duration` reads it: in the largest units, such as
    `1m30s`. A negative duration begins with `-`, which `parse_duration` refuses."""
    sign, left = ("-", -duration) if duration < timedelta(0) else ("", duration)
    if left and left % timedelta(seconds=1):
        left = timedelta(seconds=round(left.total_seconds(), 3))
    text = ""
    for unit in ("d", "h", "m"):
        count, left = divmod(left, UNITS[unit])
        text += f"{count}{unit}" if count else ""
    seconds = left.total_seconds()
    text += f"{seconds:g}s" if seconds else ""
    return sign + text if text else "0s"


def rough(duration: timedelta) -> str:
    """Format a duration, rounded to the second."""
    return format_duration(timedelta(seconds=round(duration.total_seconds())))

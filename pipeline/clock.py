"""The only module that reads the clock, and exact conversions between times and integers."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """A source of time. Assumption: `monotonic` never goes back; `now` may."""

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


def iso(moment: datetime) -> str:
    """Format a time in UTC: `2026-11-21T05:20:00Z`, with milliseconds if it has a fraction."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
    return text.replace("+00:00", "Z")

"""The only module that asks for the time, and exact conversions between times and integers."""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


class Clock(Protocol):
    """The source of a tick's time. Assumption: `monotonic` never goes back; `now` may."""

    def now(self) -> datetime:
        """The wall clock, aware, in UTC."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary moment, for budgets and waits."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The machine's clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


def to_us(moment: datetime) -> int:
    """Microseconds since the epoch, exact. `moment` must be aware."""
    return (moment - EPOCH) // MICROSECOND


def from_us(microseconds: int) -> datetime:
    """The inverse of `to_us`, exact, in UTC."""
    return EPOCH + timedelta(microseconds=int(microseconds))


def duration_us(duration: timedelta) -> int:
    """A duration in microseconds, exact."""
    return duration // MICROSECOND


def iso(moment: datetime) -> str:
    """A moment as people read it: `2026-11-21T05:20:00Z`, with milliseconds if it has a fraction."""
    text = moment.astimezone(UTC).isoformat(timespec="milliseconds" if moment.microsecond else "seconds")
    return text.replace("+00:00", "Z")

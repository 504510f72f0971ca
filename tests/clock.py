"""A clock of the tests' own."""

from datetime import datetime, timedelta

from tidemark.pipeline.clock import EPOCH


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, start: datetime) -> None:
        self._now = start

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return (self._now - EPOCH).total_seconds()

    def sleep(self, seconds: float) -> None:
        self.advance(timedelta(seconds=seconds))

    def advance(self, by: timedelta) -> None:
        self._now += by

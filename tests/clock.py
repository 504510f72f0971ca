"""A clock of the tests' own, and waiting by the machine's."""

import time
from collections.abc import Callable
from datetime import datetime, timedelta

from tidemark.pipeline.clock import EPOCH

WITHIN_SECONDS = 240


def until(what: str, reached: Callable[[], bool], seconds: float = WITHIN_SECONDS) -> None:
    """Return once it is so. Raises AssertionError where it does not become so."""
    limit = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < limit, f"not within {seconds:g} s: {what}"
        time.sleep(0.05)


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

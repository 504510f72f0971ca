"""The observer that sensors report their ticks to, which ignores them if no monitoring is configured."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.ingest.outcome import Ingested
from tidemark.pipeline.ingest.ticks import Tracked
from tidemark.pipeline.lake.failures import FailedTick

RESULTS = SUCCESS, FAILURE, CANCELED = "success", "failure", "canceled"
"""The ends of a run."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """A run that has ended: its job, one of RESULTS, and how long it took."""

    job: str
    result: str
    took: timedelta


class Observer:
    """Ignores what ticks return: for pipelines without monitoring."""

    is_on = False

    def begin(self, sensor: str) -> None:
        """A sensor's evaluation begins."""

    def ticked(self, sensor: str, seconds: float, failed: FailedTick | None = None) -> None:
        """A sensor's evaluation has ended, or has `failed`."""

    def tracked(self, tracked: Tracked) -> None:
        """A tick of tracking has decided."""

    def landed(self, landed: Ingested) -> None:
        """A tick of landing has landed."""

    def by_runs(self, look: Callable[[], tuple[Ingested, int]]) -> None:
        """Look what runs have landed since the last look, and how many messages they have tracked."""

    def missed(self, heartbeats: int) -> None:
        """A whole check counted the heartbeats that are missed and not repaired."""

    def lost(self, at_least: int) -> None:
        """An audit counted what was certainly lost outside of the pipeline."""

    def runs(self, look: Callable[[], tuple[Iterable[EndedRun], Mapping[str, datetime]]]) -> None:
        """Look which runs have ended since the last look, and since when the oldest unfinished run of each job is
        there."""


OFF = Observer()

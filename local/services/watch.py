"""The warnings that a running `tidemark up` prints, once when a failure begins and once when it ends."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from threading import Thread

from tidemark.pipeline.clock import Clock, rough
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.failing import (
    TRACKING,
    Running,
    SensorTicks,
    read_failing,
    read_failing_tables,
    read_running,
    ticks_now,
)
from tidemark.pipeline.settings import Settings

BEGINS_WITHIN = timedelta(minutes=1)
"""Time after the start during which a missing decision is not reported."""

LAKE_EVERY = timedelta(minutes=1)
"""Interval for reading the records of failed runs from the lake. In a bucket, each read takes two calls."""


class Watch:
    """Reads the records that a pipeline's process writes about its failures, and passes new warnings to `say`. It never
    waits for the lake."""

    def __init__(self, settings: Settings, clock: Clock, say: Callable[[str], None]) -> None:
        self._settings, self._clock, self._say = settings, clock, say
        self._mine = Running.this_process(settings)
        self._began = self._looked_at = clock.now()
        self._reported: dict[str, datetime] = {}
        self._runs: Mapping[str, str] = {}
        self._ticks: Mapping[str, str] = {}
        self._thread: Thread | None = None

    def look(self) -> None:
        """Report new failures, and failures that have ended."""
        now, running = self._clock.now(), read_running(self._settings)
        self._began, self._looked_at = min(self._began, now), min(self._looked_at, now)  # the clock was set back
        if running is not None and not running.process.runs():
            running = None  # it is from an earlier start, or it has ended and `up` restarts it
        self._begin_to_look_at_lake(now, stands_in=running is None)
        ticks = self._ticks
        if running is not None:
            ticks = self._ticks = self._failing_ticks(now, running, running.sensors.get(TRACKING, SensorTicks()).good)
        found = {**ticks, **self._runs}
        if stale := self._mine.stale_settings or (running and running.stale_settings):
            found["the settings file had changed"] = stale
        for about, said in found.items():
            if about not in self._reported:
                self._reported[about] = now
                self._say(said)
        for about in sorted(self._reported.keys() - found.keys()):
            self._say(f"resolved after {rough(now - self._reported.pop(about))}: {about}")

    def _failing_ticks(
        self, now: datetime, running: Running | None, decided_at: datetime | None, noted: Sequence[FailedTick] = ()
    ) -> Mapping[str, str]:
        """Return one sentence per sensor whose ticks fail, plus one if decisions are missing, keyed by subject."""
        due = max(decided_at or self._began, self._began) if now >= self._began + BEGINS_WITHIN else None
        ticks = ticks_now(self._settings, due, running, noted, now)
        said = (("waited" if one.waits else "failed", one) for one in ticks.failing)
        return {
            **{f"ticks of the sensor {one.sensor} {verb}": one.sentence() for verb, one in said},
            **({"no decision": ticks.standing} if ticks.standing else {}),
        }

    def _begin_to_look_at_lake(self, now: datetime, *, stands_in: bool) -> None:
        """Start a thread that reads the lake, unless a read is in progress or the last one is recent."""
        if now - self._looked_at >= LAKE_EVERY and (self._thread is None or not self._thread.is_alive()):
            self._looked_at = now
            self._thread = Thread(target=self._look_at_lake, args=(now, stands_in), name="watch", daemon=True)
            self._thread.start()

    def _look_at_lake(self, now: datetime, stands_in: bool) -> None:
        """Read the failed runs from the lake. If `stands_in`, no process of the pipeline keeps a local record of failed
        ticks, so read these from the lake too. If the lake is unreachable, keep the earlier results."""
        settings, runs = self._settings, dict[str, str]()
        lake = Lake(settings.lake, settings.message.kinds, self._clock)
        with suppress(TidemarkError):
            if not settings.pubsub.attach:
                tables = read_failing_tables(lake, now)
                runs = {f"runs of the table {one.table} failed": one.sentence() for one in tables}
                if (failed := read_failing(lake, settings.windowing, now)) is not None:
                    runs["runs failed"] = failed.sentence()
            if stands_in:
                decided, noted = lake.tracking_log().newest().record, lake.failed_ticks().newest()
                self._ticks = self._failing_ticks(now, None, None if decided is None else decided.decision.at, noted)
            self._runs = runs

"""The recorder, to which ticks report. It converts reports to measurements, which a `ProcessOutlet` exports."""

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from tidemark.pipeline.clock import Clock, is_recent, iso, rough, to_us
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.ticks import Tracked
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.observe import instruments
from tidemark.pipeline.observe.instruments import PIPELINE, Instrument
from tidemark.pipeline.observe.outlet import ProcessOutlet, outlet_of
from tidemark.pipeline.quality.failing import TRACKING, SensorTicks, is_overdue
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.histogram import bucket_of
from tidemark.pipeline.watermark.state import WatermarkState

if TYPE_CHECKING:
    from tidemark.pipeline.observe.page import Page

logger = logging.getLogger(__name__)

OPEN_AGAIN_AFTER = timedelta(minutes=1)
"""Pause between two attempts to serve metrics and the page, if the port is taken or a library is missing."""

GRACE = timedelta(seconds=60)
"""Additional time for which a sensor may report nothing: during a tick, which may take a minute, or just after the
sensor's process has started."""

NO_TICKS = SensorTicks()

CHECKED = {"missed": instruments.MISSED, "lost_at_least": instruments.LOST}
"""The instruments for the figures that checks report, keyed by the name of the figure."""

RESULTS = ("success", "failure", "canceled")


@dataclass(frozen=True, slots=True)
class EndedRun:
    job: str
    result: str
    took: timedelta


class Measured(NamedTuple):
    """A current value of an instrument, or an increment of a sum."""

    instrument: Instrument
    value: float
    attributes: Mapping[str, str]


@contextmanager
def never_failing() -> Iterator[None]:
    """Within this block, log errors instead of raising them, so that a failed report does not fail the tick."""
    try:
        yield
    except Exception:
        logger.exception("a measurement could not be recorded")


class Recorder:
    """Records the measurements of one pipeline. `every` maps the names of its sensors to the intervals of their ticks.
    `jobs` are the names of its jobs.

    Guarantee: no report raises an error, and a process forked from this one records nothing. Thread-safe, because each
    value has one writer. Opens no outlet if metrics, health and the page are off.
    """

    def __init__(self, settings: Settings, every: Mapping[str, timedelta], jobs: Sequence[str], clock: Clock) -> None:
        self._settings, self._clock = settings, clock
        self._pipeline = {PIPELINE: settings.pipeline_name}
        self._every, self._jobs = dict(every), tuple(jobs)
        self._began = clock.now()
        self._ticks: dict[str, SensorTicks] = {}
        self._at_work = set[str]()
        self._state: WatermarkState | None = None  # after the newest tick of tracking
        self._counted: dict[Instrument, int] = {}  # the figures of the last checks
        self._under_way: Mapping[str, datetime] = {}
        self._outlet: ProcessOutlet | None = None
        self._outlet_tried_at: datetime | None = None
        self._is_served = False
        self._process = os.getpid()
        self.page: Page | None = None
        if settings.metrics.listens and settings.metrics.has_page:
            from tidemark.pipeline.observe import page  # only now: it imports templates and the lake's readers

            self.page = page.Page(settings, clock)

    @property
    def is_on(self) -> bool:
        """True if measurements are exported, or health is served."""
        return self._settings.metrics.is_on

    # Reports of ticks

    @never_failing()
    def begin(self, sensor: str) -> None:
        """Report the beginning of a sensor's evaluation."""
        self._at_work.add(sensor)
        if not self.is_on or self._is_served or os.getpid() != self._process:
            return
        now, tried = self._clock.now(), self._outlet_tried_at
        if tried is not None and is_recent(tried, now, OPEN_AGAIN_AFTER):
            return
        self._outlet_tried_at = now
        try:
            if self._outlet is None:
                self._outlet = outlet_of(self._settings.metrics, self._settings.dagster.allowed_hosts)
                self._outlet.join(self)
                self._begin_at_zero()
            self._outlet.listen()
        except (OSError, ImportError) as error:
            if tried is None:
                logger.warning("metrics, health and the page cannot be served: %s. Retrying every minute", error)
            return
        self._is_served = True

    @never_failing()
    def ticked(self, sensor: str, seconds: float, failed: FailedTick | None = None) -> None:
        """Report the end of a sensor's evaluation, its duration in seconds, and its failure, if it failed."""
        self._at_work.discard(sensor)
        good = self._clock.now() if failed is None else self._ticks.get(sensor, NO_TICKS).good
        self._ticks[sensor] = SensorTicks(good, failed)
        self._add(instruments.TICK_DURATION, seconds, sensor=sensor, result="ok" if failed is None else "error")

    @never_failing()
    def tracked(self, tracked: Tracked) -> None:
        """Report a tick of tracking, with its decision."""
        self._state = tracked.state
        if self.page is not None:
            self.page.decided(tracked.decision)
        self._add(instruments.DECISIONS, 1, reason=str(tracked.decision.reason))
        self._pulled(tracked.persisted.messages, Side.TRACKING)

    @never_failing()
    def landed(self, landed: Ingested) -> None:
        """Report the result of a landing tick."""
        self._pulled(landed.messages, Side.BASE)
        self._add(instruments.LANDED, landed.heartbeats)
        self._add(instruments.LATE, landed.late)
        for reason, count in landed.rejected.items():
            self._add(instruments.QUARANTINED, count, reason=str(reason))

    @never_failing()
    def by_runs(self, look: Callable[[], tuple[Ingested, int]]) -> None:
        """Report the work of runs since the last call. `look` returns what they have landed, and the number of messages
        that they have tracked."""
        landed, tracked = look()
        self.landed(landed)
        self._pulled(tracked, Side.TRACKING)

    @never_failing()
    def counted(self, figure: str, number: int) -> None:
        """Report a figure of a check. `figure` is a key of CHECKED."""
        self._counted[CHECKED[figure]] = number

    @never_failing()
    def runs(self, look: Callable[[], tuple[Iterable[EndedRun], Mapping[str, datetime]]]) -> None:
        """Report the runs of jobs. `look` returns the runs that have ended since the last call, and the start of each
        job's oldest unfinished run."""
        ended, under_way = look()
        self._under_way = dict(under_way)
        for run in ended:
            self._add(instruments.RUNS, 1, job_name=run.job, result=run.result)
            self._add(instruments.RUN_DURATION, run.took.total_seconds(), job_name=run.job, result=run.result)

    def _pulled(self, messages: int, subscription: Side) -> None:
        pubsub = self._settings.pubsub
        name = pubsub.base_subscription if subscription is Side.BASE else pubsub.tracking_subscription
        of_messaging = dict(zip(instruments.OF_MESSAGING, ("gcp_pubsub", "receive", pubsub.topic, name), strict=True))
        self._add(instruments.PULLED, messages, subscription=subscription, **of_messaging)

    def _begin_at_zero(self) -> None:
        """Start each sum at zero. Monitoring systems see an increase only between two values, so without the zero they
        would not see the first failure."""
        for one in (instruments.LANDED, instruments.LATE):
            self._add(one, 0)
        for subscription in Side:
            self._pulled(0, subscription)
        for reason in Reason:
            self._add(instruments.DECISIONS, 0, reason=str(reason))
        for rejection in RejectionReason:
            self._add(instruments.QUARANTINED, 0, reason=str(rejection))
        for job in self._jobs:
            for result in RESULTS:
                self._add(instruments.RUNS, 0, job_name=job, result=result)

    def close(self) -> None:
        """Send the newest values over OTLP, and close the outlet."""
        if self._outlet is not None:
            self._outlet.close()

    # Values for the outlet

    def problems(self) -> list[str]:
        """List the pipeline's problems: sensors without a recent successful tick, and a watermark that is too old.
        Empty if the pipeline is healthy. The sentences contain no content of messages."""
        now, max_age = self._clock.now(), self._settings.checks.max_watermark_age
        found = [silence for sensor in self._every if (silence := self._silence(sensor, now)) is not None]
        if (age := self._behind(now)) is not None and age > max_age:
            found.append(f"the watermark is {rough(age)} old; checks.max_watermark_age is {rough(max_age)}")
        return [f"{self._pipeline[PIPELINE]}: {problem}" for problem in found]

    def values(self) -> Iterator[Measured]:
        """Yield the current values of the gauges."""
        now = self._clock.now()
        for sensor, every in self._every.items():
            yield self._now(instruments.SENSOR_SILENCE, self._silent_for(sensor, now).total_seconds(), sensor=sensor)
            yield self._now(instruments.SENSOR_INTERVAL, every.total_seconds(), sensor=sensor)
        for sensor, ticks in self._ticks.copy().items():
            if (failed := ticks.failed) is not None:
                seconds = max((now - failed.since).total_seconds(), 0.0)
                yield self._now(instruments.SENSOR_FAILING, seconds, sensor=sensor, error=failed.kind)
        yield self._now(instruments.WATERMARK_MAX_AGE, self._settings.checks.max_watermark_age.total_seconds())
        if (age := self._behind(now)) is not None:
            yield self._now(instruments.WATERMARK_AGE, age.total_seconds())
        for check, count in self._counted.copy().items():
            yield self._now(check, count)
        for job, since in self._under_way.items():
            yield self._now(instruments.RUN_AGE, max((now - since).total_seconds(), 0.0), job_name=job)
        if (budget := self._settings.pubsub.snapshot_bytes_a_day) is not None:
            yield self._now(instruments.SNAPSHOT_BUDGET, budget)
        if self._state is not None:
            yield self._now(instruments.READING_VIOLATIONS, self._state.reading_violations)
            yield self._now(instruments.SNAPSHOT_SIZE, self._state.account.last_day(now).snapshot_bytes)
            for instrument, subscription, value in backlogs(self._state, now):
                yield self._now(instrument, value, subscription=subscription)

    def _behind(self, now: datetime) -> timedelta | None:
        return None if self._state is None else self._state.behind(now)

    def _silent_for(self, sensor: str, now: datetime) -> timedelta:
        """Return the time since the sensor's last successful tick ended. Without a successful tick, return the time
        since the process started."""
        return max(now - (self._ticks.get(sensor, NO_TICKS).good or self._began), timedelta(0))

    def _silence(self, sensor: str, now: datetime) -> str | None:
        ticks, every = self._ticks.get(sensor, NO_TICKS), self._every[sensor]
        is_waiting = ticks.failed is None and (sensor in self._at_work or ticks.good is None)
        since = (ticks.good or self._began) + (GRACE if is_waiting else timedelta(0))
        if not is_overdue(since, every, now):
            return None
        decides = "; no decision is made meanwhile" if sensor == TRACKING else ""
        failed = ticks.failed
        why = f", and its ticks have failed since {iso(failed.since)}: {failed.kind}" if failed else ""
        return (
            f"sensor {sensor}: no successful tick for {rough(self._silent_for(sensor, now))}; its interval is "
            f"{rough(every)}{why}{decides}"
        )

    def _now(self, instrument: Instrument, value: float, **attributes: str) -> Measured:
        return Measured(instrument, value, self._pipeline | attributes)

    def _add(self, instrument: Instrument, value: float, **attributes: str) -> None:
        if self._outlet is not None and os.getpid() == self._process:
            self._outlet.add(self._now(instrument, value, **attributes))


def backlogs(state: WatermarkState, now: datetime) -> Iterator[tuple[Instrument, str, float]]:
    """Yield three figures for each subscription's backlog: the age of the oldest message, the number of messages, and
    their bytes. Unknown figures are left out.

    The age is that at the newest reading, plus the time since then. A backlog that was empty at the reading counts as
    empty. The number of messages on base is an upper bound. The number on tracking and all bytes are estimates.
    """
    decision, used = state.decision, state.account.known
    if decision is None:
        return
    for name, reading in decision.readings.items():
        was_empty = reading.newest.age <= timedelta(0)
        age = timedelta(0) if was_empty else reading.newest.age + max(now - reading.newest.observed_at, timedelta(0))
        messages: int | None = 0 if was_empty else None
        if not was_empty and name == Side.BASE:
            messages = state.histogram.messages_at(state.histogram.since(to_us(reading.oldest_unacked), bucket_of(now)))
        elif not was_empty and used.seconds > 0:
            messages = round(used.tracked / used.seconds * age.total_seconds())
        pulled, size = (used.landed, used.landed_bytes) if name == Side.BASE else (used.tracked, used.tracked_bytes)
        yield instruments.BACKLOG_AGE, name, age.total_seconds()
        if messages is not None:
            yield instruments.BACKLOG_MESSAGES, name, messages
            if pulled or not messages:
                yield instruments.BACKLOG_SIZE, name, round(messages * size / max(pulled, 1))

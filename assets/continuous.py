"""The run that lands and tracks without an end, and the sensor that keeps one at work."""

import math
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import dagster as dg

from tidemark.assets.catalog import ticking_sensor
from tidemark.assets.events import histogram_events, landing_events
from tidemark.assets.landed_by_runs import tell_landed
from tidemark.assets.reading_runs import readers_at_work, reading_run, unable_pause
from tidemark.assets.requests import pause_of
from tidemark.assets.runs import Runs, tags_of
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.ingest.continuous import ContinuousLanding, RoundDone
from tidemark.pipeline.ingest.rounds import Settled
from tidemark.pipeline.services.dagster_names import LAND_CONTINUOUSLY, READS, name_of
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, PUBSUB, SPARK, keys_of, lake_of, pubsub_of, spark_of

SLOW = 1.5
"""A round that takes so many times what it should is told as slow. The first one also waits for Spark's workers."""


@dataclass(slots=True)
class Report:
    """What a run has settled, in all and since it was last told: every tick, however short rounds are."""

    clock: Clock
    settings: Settings
    total: Settled = field(default_factory=Settled)
    _untold: list[RoundDone] = field(default_factory=list)
    _told_at: float = -math.inf

    def add(self, done: RoundDone) -> bool:
        """Add a round; whether it is time to tell."""
        self.total += done.settled
        self._untold.append(done)
        return self.clock.monotonic() - self._told_at >= self.settings.watermark.tick.total_seconds()

    def sentence(self) -> str:
        """The rounds that were not told yet; there is one."""
        first, last, settled, landing = self._untold[0], self._untold[-1], self._settled(), self.settings.landing
        landed, readers = settled.landed, last.readers_seconds
        says = (
            f"{f'round {last.number}' if first is last else f'rounds {first.number} to {last.number}'}: landed "
            f"{landed.heartbeats} heartbeats ({landed.late} late), quarantined {landed.rejected.total()}, tracked "
            f"{settled.persisted.messages} messages; the readers of the last took {readers:.1f} s, settling "
            f"{max(one.settle_seconds for one in self._untold):.1f} s at most"
        )
        if readers < SLOW * landing.round.total_seconds() or first.number == 0:
            return says
        return (
            f"{says}. That is longer than landing.round, {format_duration(landing.round)}: Spark needs a place for "
            f"each of the {landing.readers} readers, and for windows"
        )

    def events(self) -> list[dg.AssetMaterialization]:
        """Materializations of what was not told yet."""
        settled, self._untold, self._told_at = self._settled(), [], self.clock.monotonic()
        return [*landing_events(self.settings, settled.landed), *histogram_events(self.settings, settled.persisted)]

    def _settled(self) -> Settled:
        """Of the rounds that were not told yet."""
        return sum((one.settled for one in self._untold), Settled())


def continuous_job(settings: Settings, clock: Clock) -> dg.JobDefinition:
    """The job: rounds of a Spark job until `landing.run_for` is over."""

    @dg.op(
        name=name_of(settings, "land_rounds"),
        out=dg.Out(dg.Nothing),
        required_resource_keys=keys_of(settings, PUBSUB, LAKE, SPARK),
    )
    def land_rounds(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Lands and tracks in rounds: one transaction and one entry of the log each, then it acknowledges."""
        pubsub, lake, spark = pubsub_of(context, settings), lake_of(context, settings), spark_of(context, settings)
        with (
            readers_at_work(context, lake, clock),
            closing(pubsub.base()) as base,
            closing(pubsub.tracking()) as tracking,
        ):
            landing = ContinuousLanding(
                spark=spark.session(),
                settings=settings,
                run=context.run_id,
                log=lake.tracking_log("settling"),
                heartbeats=lake.heartbeats("settling"),
                quarantine=lake.quarantine("settling"),
                base=base,
                tracking=tracking,
                tracking_backlog=pubsub.tracking_backlog(LAND_CONTINUOUSLY),
                clock=clock,
                newest_watermark=lake.tracking_log("run").newest_watermark,
                interrupt=spark.interrupt,
            )
            report = Report(clock, settings)
            for done in landing.rounds(settings.landing.run_for):
                if done.number == 0:
                    context.instance.add_run_tags(context.run_id, {READS: "true"})
                    lake.whole().failed_runs().mended(context.job_name)
                if report.add(done):
                    context.log.info(report.sentence())
                    yield from report.events()
            yield from report.events()
        total = report.total
        metadata: dict[str, Any] = {
            "tracked": total.persisted.messages,
            "heartbeats": total.landed.heartbeats,
            "quarantined": total.landed.rejected.total(),
            "late": total.landed.late,
        }
        yield dg.Output(None, metadata=metadata)

    @dg.job(
        name=name_of(settings, LAND_CONTINUOUSLY),
        executor_def=dg.in_process_executor,
        tags=tags_of(settings),
        description=(
            f"Lands and tracks with {settings.landing.landers} and {settings.landing.trackers} readers on Spark for "
            f"{format_duration(settings.landing.run_for)}. It is safe to start at any time, to kill, and to start "
            "twice: it acknowledges only what is visible."
        ),
    )
    def land_continuously() -> None:
        land_rounds()

    return land_continuously


def continuous_sensors(settings: Settings, clock: Clock) -> Sequence[dg.SensorDefinition]:
    """The sensor that keeps a run at work, where the settings ask for it."""
    if not settings.landing.is_continuous:
        return []

    @ticking_sensor(
        settings,
        LAND_CONTINUOUSLY,
        job_name=name_of(settings, LAND_CONTINUOUSLY),
        required_resource_keys=keys_of(settings, LAKE),
        description=(
            f"Keeps a run of the job {name_of(settings, LAND_CONTINUOUSLY)} at work. While none is, the sensors "
            f"{name_of(settings, 'landing')} and {name_of(settings, 'tracking')} pull themselves."
        ),
    )
    def land_continuously(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        runs, now = Runs(context.instance, settings), clock.now()
        tell_landed(lake_of(context, settings), runs)
        pause = unable_pause(runs, LAND_CONTINUOUSLY, now) or pause_of(runs, LAND_CONTINUOUSLY, now, "lands and tracks")
        if pause is not None:
            return dg.SensorResult(skip_reason=dg.SkipReason(pause))
        return dg.SensorResult(run_requests=[dg.RunRequest()])

    return [land_continuously]


def landing_run(runs: Runs, now: datetime, settings: Settings) -> str | None:
    """The id of a run that lands and tracks now, instead of the ticks."""
    if not settings.landing.is_continuous:
        return None
    return reading_run(runs, LAND_CONTINUOUSLY, now, settings.landing.run_for, READS)

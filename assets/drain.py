"""The run that drains an outage's backlog, and the sensor that starts it."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from tidemark.assets.attempts import ended_at
from tidemark.assets.catalog import ticking_sensor
from tidemark.assets.events import histogram_events, landing_events
from tidemark.assets.landed_by_runs import tell_landed
from tidemark.assets.lost_runs import report_dead
from tidemark.assets.reading_runs import readers_at_work, reading_run, unable_pause
from tidemark.assets.requests import pause_of
from tidemark.assets.runs import Runs, tags_of
from tidemark.pipeline.clock import Clock, to_us
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.ingest.drain import Drain, Ended, Round, Side
from tidemark.pipeline.services.dagster_names import DRAIN, DRAINED, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DrainSettings
from tidemark.pipeline.watermark.histogram import bucket_of
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import LAKE, PUBSUB, SPARK, keys_of, lake_of, pubsub_of, spark_of


def drain_job(settings: Settings, clock: Clock) -> dg.JobDefinition:
    """The job: rounds of a Spark job, each reported when it is done."""

    @dg.op(
        name=name_of(settings, "drain_backlog"),
        out=dg.Out(dg.Nothing),
        required_resource_keys=keys_of(settings, PUBSUB, LAKE, SPARK),
    )
    def drain_backlog(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Reads tracking, then base, until their backlog is gone, and lands as ticks do."""
        pubsub, lake = pubsub_of(context, settings), lake_of(context, settings)
        began = clock.monotonic()
        with readers_at_work(context, lake, clock):
            drain = Drain(
                spark=spark_of(context, settings).session(),
                settings=settings,
                run=context.run_id,
                log=lake.tracking_log("run"),
                backlogs={Side.TRACKING: pubsub.tracking_backlog(DRAIN), Side.BASE: pubsub.base_backlog(DRAIN)},
                clock=clock,
                spending=pubsub.spending(),
            )
            for done in drain.rounds():
                context.log.info(done.sentence())
                yield from round_events(settings, done)
        context.instance.add_run_tags(context.run_id, {DRAINED: str(drain.ended)})
        lake.whole().failed_runs().mended(context.job_name)
        context.log.info(f"{drain.ended} after {drain.rounds_done} rounds")
        metadata: dict[str, Any] = {
            "ended": str(drain.ended),
            "rounds": drain.rounds_done,
            "tracked": drain.persisted.messages,
            "heartbeats": drain.landed.heartbeats,
            "quarantined": drain.landed.rejected.total(),
            "late": drain.landed.late,
            "seconds": round(clock.monotonic() - began, 1),
        }
        yield dg.Output(None, metadata=metadata)

    @dg.job(
        name=name_of(settings, DRAIN),
        executor_def=dg.in_process_executor,
        tags=tags_of(settings),
        description=(
            f"Drains a backlog with {settings.drain.readers} readers, tracking first, then base. It is safe to start "
            "at any time, to kill, and to start twice: it acknowledges only what is durable."
        ),
    )
    def drain() -> None:
        drain_backlog()

    return drain


def drain_sensors(settings: Settings, clock: Clock) -> list[dg.SensorDefinition]:
    """The sensor that requests a run when a backlog is larger than ticks can land; none where a run lands anyway."""
    chosen = settings.drain
    if settings.landing.is_continuous:
        return []

    @ticking_sensor(
        settings,
        DRAIN,
        job_name=name_of(settings, DRAIN),
        required_resource_keys=keys_of(settings, LAKE),
        description=(
            f"Requests a run of the job {name_of(settings, DRAIN)} when base or tracking holds a message older than "
            f"{format_duration(chosen.start_after)}, or {chosen.start_size} messages were published since the oldest "
            f"that base holds. During the run the sensor {name_of(settings, 'landing')} pauses."
        ),
    )
    def drain(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now, runs, lake = clock.now(), Runs(context.instance, settings), lake_of(context, settings)
        tell_landed(lake, runs)
        report_dead(runs, DRAIN, now)
        state = lake.state(DRAIN)
        reason = why_drain(state, now, chosen, max_reading_age=settings.watermark.max_reading_age)
        if reason is None:
            return dg.SensorResult(skip_reason=dg.SkipReason("ticks can land the backlog"))
        pause = why_no_run(runs, now, chosen)
        if pause is not None:
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{reason}; {pause}"))
        context.log.info(f"draining: {reason}")
        return dg.SensorResult(run_requests=[dg.RunRequest(tags={"tidemark/why": reason})])

    return [drain]


def why_drain(state: WatermarkState, now: datetime, chosen: DrainSettings, *, max_reading_age: timedelta) -> str | None:
    """Why the backlog needs a run, in a sentence. None if ticks can land it, or no recent reading tells."""
    decision = state.decision
    if decision is None:
        return None
    readings = {Side.BASE: decision.base, Side.TRACKING: decision.tracking}
    recent = {
        side: reading
        for side, reading in readings.items()
        if reading is not None and now - reading.newest.observed_at <= max_reading_age
    }
    for side, reading in recent.items():
        if reading.newest.age >= chosen.start_after:
            age = format_duration(timedelta(seconds=int(reading.newest.age.total_seconds())))
            return f"{side} holds a message that is {age} old"
    if (base := recent.get(Side.BASE)) is not None:
        size = state.histogram.messages_at(state.histogram.since(to_us(base.oldest_unacked), bucket_of(now)))
        if size >= chosen.start_size:
            return f"{size} messages were published since the oldest that base holds"
    return None


def draining(runs: Runs, now: datetime, chosen: DrainSettings) -> str | None:
    """The id of a run that drains now, whose readers land instead of the ticks."""
    return reading_run(runs, DRAIN, now, chosen.max_seconds)


def round_events(settings: Settings, done: Round) -> list[dg.AssetMaterialization]:
    """Materializations of what a round added to the tables or the histogram, with the progress of the drain."""
    progress: dict[str, Any] = {
        "drain_round": done.number,
        "readers": done.readers,
        "readers_at_once": done.at_once,
        "messages_per_second": round(done.messages_per_second, 1),
    }
    if done.backlog_age is not None:
        progress[f"{done.side}_backlog_age_seconds"] = done.backlog_age.total_seconds()
    events = [*landing_events(settings, done.landed), *histogram_events(settings, done.persisted)]
    return [event.with_metadata({**event.metadata, **progress}) for event in events]


def why_no_run(runs: Runs, now: datetime, chosen: DrainSettings) -> str | None:
    """Why no run is requested now: one is under way, the last ones failed, or the last one found nothing to pull."""
    newest = runs.newest(DRAIN, 1)
    tags = newest[0].dagster_run.tags if newest else {}
    pause = unable_pause(runs, DRAIN, now) or pause_of(runs, DRAIN, now, "drains it")
    if pause is not None:
        return pause
    if tags.get(DRAINED) == Ended.RAN_DRY and now - ended_at(newest[0]) < chosen.start_after:
        return f"run {newest[0].dagster_run.run_id[:8]} found hardly anything to pull: another consumer holds it"
    return None

"""The sensor that starts the run whose readers on Spark pull instead of the ticks: to catch up, or always."""

from datetime import datetime, timedelta

import dagster as dg

from tidemark.assets.jobs.ingest import WHY_NOT
from tidemark.assets.scheduler.lost_runs import report_dead, why_dead
from tidemark.assets.scheduler.requests import pause_of
from tidemark.assets.scheduler.runs import Runs, ended_at
from tidemark.assets.sensors.landed_by_runs import tell_landed
from tidemark.assets.sensors.watching import ticking_sensor
from tidemark.pipeline.clock import Clock, format_duration, rough, to_us
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.progress import BacklogWatch, readings_of
from tidemark.pipeline.ingest.rounds import PLAN, Ended, RunPlan
from tidemark.pipeline.orchestrator.names import ENDED, INGEST, READS, STAYS, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.histogram import bucket_of
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import LAKE, keys_of, lake_of

UNABLE_PAUSE = timedelta(minutes=10)
"""Pause after a run whose executors could not run tidemark, while only ticks pull: an operator has to install
something."""

OVERTIME = timedelta(minutes=5)
"""Ticks pull again once a run exceeds its time by this much: it may hang."""

AGAIN_WITHIN = timedelta(minutes=10)
"""A run that has to start this soon after one that had caught up stays for its full time: ticks cannot keep up."""


def ingest_sensor(settings: Settings, clock: Clock, plan: RunPlan = PLAN) -> dg.SensorDefinition:
    """Define the sensor that keeps a run at work, or requests one when ticks do not catch up with a backlog."""
    is_continuous = settings.ingest.is_continuous
    if is_continuous:
        when = "Keeps a run at work."
    else:
        when = (
            f"Requests a run when base or tracking holds a message older than {format_duration(plan.start_after)}, "
            f"when {plan.start_size} messages were published since the oldest that base holds, or when ticks do not "
            "catch up."
        )

    @ticking_sensor(
        settings,
        INGEST,
        job_name=name_of(settings, INGEST),
        required_resource_keys=keys_of(settings, LAKE),
        description=(
            f"{when} Its readers on Spark pull instead of the sensors {name_of(settings, 'landing')} and "
            f"{name_of(settings, 'tracking')}."
        ),
    )
    def ingest(context: dg.SensorEvaluationContext) -> dg.SensorResult:
        now, runs, lake = clock.now(), Runs(context.instance, settings), lake_of(context, settings)
        tell_landed(lake, runs)
        report_dead(runs, INGEST, now)
        state, watch = lake.state(INGEST), lake.watch()
        watch.look(state)
        progress = "".join(f"; {one.sentence()}" for one in watch.progress()[:1])
        reason = "" if is_continuous else why_readers(state, now, settings, watch, plan)
        if reason is None:
            run = run_at_work(runs, now, plan)
            reads = "ticks can land the backlog" if run is None else f"run {run[:8]} reads"
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{reads}{progress}"))
        if (pause := why_no_run(runs, now, settings, plan)) is not None:
            why = f"{reason}; {pause}" if reason else pause
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{why}{progress}"))
        tags = {STAYS: "true"} if caught_up_lately(runs, now) else {}
        if reason:
            context.log.info(f"readers on Spark help: {reason}")
            tags |= {"tidemark/why": reason}
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)])

    return ingest


def why_readers(
    state: WatermarkState, now: datetime, settings: Settings, watch: BacklogWatch, plan: RunPlan = PLAN
) -> str | None:
    """Return why the backlog needs readers on Spark, in a sentence. None if ticks can land it, or there is no recent
    reading."""
    decision, longest = state.decision, settings.policy.max_reading_age
    if decision is None:
        return None
    recent = {side: one for side, one in readings_of(decision).items() if now - one.newest.observed_at <= longest}
    for side in sorted(recent):  # base first
        if (age := recent[side].newest.age) >= plan.start_after:
            whole = format_duration(timedelta(seconds=int(age.total_seconds())))
            return f"{side} holds a message that is {whole} old"
    if (base := recent.get(Side.BASE)) is not None:
        size = state.histogram.messages_at(state.histogram.since(to_us(base.oldest_unacked), bucket_of(now)))
        if size >= plan.start_size:
            return f"{size} messages were published since the oldest that base holds"
    slow = watch.too_slow()
    return None if slow is None else f"ticks do not catch up: {slow.sentence()}"


def run_at_work(runs: Runs, now: datetime, plan: RunPlan = PLAN) -> str | None:
    """Return the id of the run whose readers pull now: it has settled a round, and exceeds its time by less than
    OVERTIME. None if there is none."""
    for record in runs.newest(INGEST, 1, [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]):
        began = record.start_time or record.create_timestamp.timestamp()
        is_on_time = now.timestamp() - began < (plan.run_for + OVERTIME).total_seconds()
        if is_on_time and READS in record.dagster_run.tags and why_dead(runs.instance, record, now) is None:
            return record.dagster_run.run_id
    return None


def why_no_run(runs: Runs, now: datetime, settings: Settings, plan: RunPlan = PLAN) -> str | None:
    """Return why no run is requested now: one is under way, the last ones failed, executors could not run the last one,
    or it found nothing to pull."""
    newest = runs.newest(INGEST, 1)
    tags = newest[0].dagster_run.tags if newest else {}
    if WHY_NOT in tags and now - ended_at(newest[0]) < UNABLE_PAUSE:
        return (
            f"ticks pull, since {tags[WHY_NOT]}; another run looks {format_duration(UNABLE_PAUSE)} after the last; "
            "start one by hand to try at once"
        )
    if (pause := pause_of(runs, INGEST, now, "lands and tracks")) is not None:
        return pause
    rests = plan.start_after
    if tags.get(ENDED) == Ended.RAN_DRY and not settings.ingest.is_continuous and now - ended_at(newest[0]) < rests:
        return (
            f"run {newest[0].dagster_run.run_id[:8]} found hardly anything to pull: another consumer holds it; the "
            f"next run looks {rough(rests)} later"
        )
    return None


def caught_up_lately(runs: Runs, now: datetime) -> bool:
    """True if the last successful run had caught up, less than AGAIN_WITHIN ago."""
    done = runs.newest(INGEST, 1, [dg.DagsterRunStatus.SUCCESS])
    return (
        bool(done) and done[0].dagster_run.tags.get(ENDED) == Ended.CAUGHT_UP and now - ended_at(done[0]) < AGAIN_WITHIN
    )

"""The job `ingest`, and the sensor that requests it. Its readers on Spark pull messages in place of the landing and
tracking ticks: all the time, or only while ticks cannot keep up."""

import math
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from typing import Any

import dagster as dg

from tidemark.assets.events import histogram_events, landing_events
from tidemark.assets.jobs.job import job_of
from tidemark.assets.scheduler.requests import pause_of
from tidemark.assets.scheduler.runs import Runs, ended_at, is_heard, report_dead
from tidemark.assets.sensors.watching import ticking_sensor
from tidemark.pipeline.clock import Clock, format_duration, is_recent, rough, to_us
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.ingest.outcome import Settled, Side
from tidemark.pipeline.ingest.progress import BacklogWatch, progress_of
from tidemark.pipeline.ingest.rounds import PLAN, Ended, RoundDone, Rounds, RunPlan, read_on_spark, sentence_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.orchestrator.names import ENDED, INGEST, READS, STAYS, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.executors import require_able
from tidemark.pipeline.spark.session import slots_of
from tidemark.pipeline.watermark.histogram import bucket_of
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import LAKE, PUBSUB, SPARK, lake_of, pubsub_of, spark_of
from tidemark.resources.lake import LakeResource

WHY_NOT = "tidemark/why_not"
"""The tag of a run that pulled nothing because the executors cannot run tidemark. Its value is the error, which says
what to do."""

MOST_OF_A_TAG = 1000
"""Maximum number of characters of an error in a tag."""

UNABLE_PAUSE = timedelta(minutes=10)
"""The pause after a run whose executors could not run tidemark. Until an operator installs what is missing, only ticks
pull."""

OVERTIME = timedelta(minutes=5)
"""A run may take this much longer than planned. After that, ticks pull again, because the run may hang."""

AGAIN_WITHIN = timedelta(minutes=10)
"""If a run caught up and another one is needed within this time, ticks cannot keep up. The new run then keeps reading
for its full time, even after it has caught up."""


def _reported(
    context: dg.OpExecutionContext, lake: Lake, settings: Settings, clock: Clock, rounds: Iterable[RoundDone]
) -> Generator[dg.AssetMaterialization, None, Settled]:
    """Report to Dagster the rounds that a run has committed and acknowledged, and return the sum of their results.
    Several short rounds are reported together, at most once per `watermark.tick`."""
    total, untold, told_at = Settled(), list[RoundDone](), -math.inf
    for done in chain(rounds, (None,)):
        if done is not None:
            untold.append(done)
            if done.number == 0:
                context.instance.add_run_tags(context.run_id, {READS: context.run_id})
                lake.failed_runs().settled(context.job_name)
        if untold and (done is None or clock.monotonic() - told_at >= settings.watermark.tick.total_seconds()):
            context.log.info(sentence_of(untold))
            settled = sum((one.settled for one in untold), Settled())
            total, untold, told_at = total + settled, [], clock.monotonic()
            yield from landing_events(settings, settled.landed)
            yield from histogram_events(settings, settled.persisted)
    return total


def ingest_job(settings: Settings, clock: Clock, plan: RunPlan = PLAN) -> dg.JobDefinition:
    """Define the job `ingest`. A run reads in rounds, each a Spark job, until its time is up. Outside continuous mode,
    a run without the tag STAYS also ends once the oldest message of the backlog is recent, or once the readers find
    hardly any messages."""

    @job_of(settings, INGEST, "read_rounds", PUBSUB, LAKE, SPARK, lasting=(ExecutorsUnable,))
    def ingest(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Lands and tracks messages in rounds, with up to `ingest.readers` readers on Spark. Each round commits a log
        entry and one transaction per table, and then acknowledges its messages. The job is safe to start at any time,
        to kill, and to start twice, because it acknowledges a message only after the message is visible in the lake."""
        pubsub, lake, spark = pubsub_of(context, settings), lake_of(context, settings), spark_of(context, settings)
        began = clock.monotonic()
        with (
            lake.of("run").failed_runs().noting(context.run_id, (), clock, context.job_name),
            closing(pubsub.base()) as base,
            closing(pubsub.tracking()) as tracking,
        ):
            try:
                session = spark.session()
                require_able(session)
            except ExecutorsUnable as error:  # Dagster's retries do not fix it
                context.instance.add_run_tags(context.run_id, {WHY_NOT: str(error)[:MOST_OF_A_TAG]})
                raise
            log = lake.tracking_log("settling")
            pubsub.spending().learn(log.catch_up())  # the usage and the readings in the log count too
            rounds = Rounds(
                settings=settings,
                run=context.run_id,
                readers=min(settings.ingest.readers, max(1, slots_of(session) - 1)),  # one slot is left for windows
                settling=Settling(log, clock, {Side.TRACKING: tracking, Side.BASE: base}, lake.new_files("settling")),
                read=partial(read_on_spark, session, spark.interrupt),
                newest=lake.tracking_log("run").newest,
                backlogs={Side.TRACKING: pubsub.tracking_backlog(INGEST), Side.BASE: pubsub.base_backlog(INGEST)},
                plan=plan,
            )
            stays = settings.ingest.is_continuous or STAYS in context.run.tags

            done = rounds.rounds(plan.run_for, until_young=not stays)
            total = yield from _reported(context, lake.of("run"), settings, clock, done)
        context.instance.add_run_tags(context.run_id, {ENDED: str(rounds.ended)})
        metadata: dict[str, Any] = {
            "ended": str(rounds.ended),
            "tracked": total.persisted.messages,
            "heartbeats": total.landed.heartbeats,
            "quarantined": total.landed.rejected.total(),
            "late": total.landed.late,
            "seconds": round(clock.monotonic() - began, 1),
        }
        yield dg.Output(None, metadata=metadata)

    return ingest


def ingest_sensor(settings: Settings, clock: Clock, plan: RunPlan = PLAN) -> dg.SensorDefinition:
    """Define the sensor that requests runs of `ingest`. In continuous mode, one run follows another. Otherwise, a run
    is requested only for a backlog that ticks cannot catch up with."""
    if is_continuous := settings.ingest.is_continuous:
        when = "Keeps a run of the job going."
    else:
        when = (
            f"Requests a run when base or tracking holds a message older than {format_duration(plan.start_after)}, "
            f"when {plan.start_size} messages were published since the oldest one that base holds, or when ticks do "
            "not catch up."
        )

    @ticking_sensor(
        settings,
        INGEST,
        job_name=name_of(settings, INGEST),
        description=(
            f"{when} Its readers on Spark pull instead of the sensors {name_of(settings, 'landing')} and "
            f"{name_of(settings, 'tracking')}."
        ),
    )
    def ingest(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | str:
        now, runs = clock.now(), Runs(context.instance, settings)
        report_dead(runs, INGEST, now)
        state, watch = lake.state(INGEST), lake.watch()
        watch.look(state)
        reason = "" if is_continuous else why_readers(state, now, settings, watch, plan)
        said = [one.sentence() for one in progress_of(watch.looks)[:1]]
        progress = "".join(f"; {one}" for one in said if one not in (reason or ""))
        if reason is None:
            run = run_at_work(runs, now, plan)
            reads = "ticks can land the backlog" if run is None else f"run {run[:8]} is reading"
            return f"{reads}{progress}"
        if (pause := why_no_run(runs, now, settings, plan)) is not None:
            return f"{reason}; {pause}{progress}" if reason else f"{pause}{progress}"
        tags = {STAYS: "true"} if caught_up_lately(runs, now) else {}
        if reason:
            context.log.info(f"requesting readers on Spark: {reason}")
            tags |= {"tidemark/why": reason}
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)])

    return ingest


def why_readers(
    state: WatermarkState, now: datetime, settings: Settings, watch: BacklogWatch, plan: RunPlan = PLAN
) -> str | None:
    """Return why the backlog needs readers on Spark, as a sentence. Return None if no recent figure shows a need for
    them."""
    decision, longest = state.decision, settings.policy.max_reading_age
    if decision is None:
        return None
    readings = decision.readings.items()
    recent = {side: one for side, one in readings if is_recent(one.newest.observed_at, now, longest)}
    for side, reading in recent.items():
        if (age := reading.newest.age) >= plan.start_after:
            whole = format_duration(timedelta(seconds=int(age.total_seconds())))
            return f"{side} holds a message that is {whole} old"
    if (base := recent.get(Side.BASE)) is not None:
        size = state.histogram.messages_at(state.histogram.since(to_us(base.oldest_unacked), bucket_of(now)))
        if size >= plan.start_size:
            return f"{size} messages were published since the oldest one that base holds"
    slow = watch.too_slow()
    return None if slow is None else f"ticks do not catch up: {slow.sentence()}"


def run_at_work(runs: Runs, now: datetime, plan: RunPlan = PLAN) -> str | None:
    """Return the id of the run whose readers are pulling, or None if there is no such run. A run counts once it
    has completed a round, as long as it shows signs of life and has not exceeded its planned time by OVERTIME."""
    for record in runs.newest(INGEST, 1, [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]):
        run = record.dagster_run
        began = record.start_time or record.create_timestamp.timestamp()
        is_on_time = now.timestamp() - began < (plan.run_for + OVERTIME).total_seconds()
        if is_on_time and run.tags.get(READS) == run.run_id and is_heard(runs.instance, record, now):
            return run.run_id
    return None


def why_no_run(runs: Runs, now: datetime, settings: Settings, plan: RunPlan = PLAN) -> str | None:
    """Return why no run may be requested now, or None if one may be. Reasons: a run is under way, the last runs failed,
    the executors could not run the last run, or the last run found hardly anything to pull."""
    newest = runs.newest(INGEST, 1)
    tags = newest[0].dagster_run.tags if newest else {}
    has_failed = bool(newest) and newest[0].dagster_run.status is dg.DagsterRunStatus.FAILURE  # a retry inherits tags
    if has_failed and WHY_NOT in tags and is_recent(ended_at(newest[0]), now, UNABLE_PAUSE):
        return (
            f"only ticks pull, because {tags[WHY_NOT]}. The next run is requested {format_duration(UNABLE_PAUSE)} "
            "after the last one; to try at once, start a run by hand"
        )
    if (pause := pause_of(runs, INGEST, now, "lands and tracks")) is not None:
        return pause
    ran_dry = tags.get(ENDED) == Ended.RAN_DRY and not settings.ingest.is_continuous
    if ran_dry and is_recent(ended_at(newest[0]), now, plan.start_after):
        return (
            f"run {newest[0].dagster_run.run_id[:8]} found hardly anything to pull, because another consumer holds the "
            f"messages; the next run is requested {rough(plan.start_after)} later"
        )
    return None


def caught_up_lately(runs: Runs, now: datetime) -> bool:
    """Return True if the last successful run caught up and ended less than AGAIN_WITHIN ago."""
    done = runs.newest(INGEST, 1, [dg.DagsterRunStatus.SUCCESS])
    if not done or not is_recent(ended_at(done[0]), now, AGAIN_WITHIN):
        return False
    return done[0].dagster_run.tags.get(ENDED) == Ended.CAUGHT_UP

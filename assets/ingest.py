"""The run whose readers on Spark pull instead of the ticks, and the sensor that starts it: to catch up, or always."""

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import dagster as dg

from tidemark.assets.catalog import ticking_sensor
from tidemark.assets.events import failing_run, histogram_events, landing_events
from tidemark.assets.landed_by_runs import tell_landed
from tidemark.assets.lost_runs import beating, report_dead, why_dead
from tidemark.assets.requests import pause_of
from tidemark.assets.runs import Runs, ended_at, tags_of
from tidemark.pipeline.clock import Clock, to_us
from tidemark.pipeline.durations import format_duration, rough
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.ingest.on_spark import SparkReaders, readers_for
from tidemark.pipeline.ingest.outcome import Settled, Side
from tidemark.pipeline.ingest.progress import Watch, readings_of
from tidemark.pipeline.ingest.rounds import Ended, RoundDone, Rounds, sentence_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.orchestrator.names import ENDED, INGEST, READS, STAYS, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.micro_batch import cores_of
from tidemark.pipeline.watermark.histogram import bucket_of
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.resources.keys import LAKE, PUBSUB, SPARK, keys_of, lake_of, pubsub_of, spark_of
from tidemark.resources.lake import LakeResource

WHY_NOT = "tidemark/why_not"
"""The tag of a run that pulled nothing, since executors lack tidemark: what to do."""

UNABLE_PAUSE = timedelta(minutes=10)
"""How long ticks alone pull after such a run, before another one looks: somebody has to install something."""

MOST_OF_A_TAG = 1000
"""Characters of an error in a tag."""

OVERTIME = timedelta(minutes=5)
"""Ticks pull again when a run has gone on for this much longer than it may: it may hang."""

AGAIN_WITHIN = timedelta(minutes=10)
"""A run that has to start so soon after one that had caught up stays for its whole time: ticks cannot keep up."""

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
        last, expected = self._untold[-1], self.settings.ingest.round
        says = sentence_of(self._untold)
        if last.readers_seconds < SLOW * expected.total_seconds() or self._untold[0].number == 0:
            return says
        return (
            f"{says}. That is longer than ingest.round, {format_duration(expected)}: Spark needs a place for each of "
            f"the {last.share.readers} readers, and for windows"
        )

    def told(self, context: dg.OpExecutionContext) -> list[dg.AssetMaterialization]:
        """Log the rounds that were not told yet. Their materializations."""
        if self._untold:
            context.log.info(self.sentence())
        return self.events()

    def events(self) -> list[dg.AssetMaterialization]:
        """Materializations of what was not told yet."""
        settled = sum((one.settled for one in self._untold), Settled())
        self._untold, self._told_at = [], self.clock.monotonic()
        return [*landing_events(self.settings, settled.landed), *histogram_events(self.settings, settled.persisted)]


def ingest_job(settings: Settings, clock: Clock) -> dg.JobDefinition:
    """The job: rounds of a Spark job, until the backlog is young or `ingest.run_for` is over."""

    @dg.op(
        name=name_of(settings, "read_rounds"),
        out=dg.Out(dg.Nothing),
        required_resource_keys=keys_of(settings, PUBSUB, LAKE, SPARK),
    )
    def read_rounds(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Lands and tracks in rounds: one transaction and one entry of the log each, then it acknowledges."""
        pubsub, lake, spark = pubsub_of(context, settings), lake_of(context, settings), spark_of(context, settings)
        report, began = Report(clock, settings), clock.monotonic()
        with (
            _readers_at_work(context, lake, clock),
            closing(pubsub.base()) as base,
            closing(pubsub.tracking()) as tracking,
        ):
            session = spark.session()
            readers = SparkReaders(session, spark.interrupt)
            readers.require_able()
            rounds = Rounds(
                settings=settings,
                run=context.run_id,
                readers=readers_for(settings, cores_of(session)),
                settling=Settling(lake.tracking_log("settling"), clock, tracking, base, *lake.new_files("settling")),
                read=readers,
                newest=lake.tracking_log("run").newest,
                backlogs={
                    Side.TRACKING: pubsub.tracking_backlog(INGEST),
                    Side.BASE: pubsub.base_backlog(INGEST),
                },
                clock=clock,
            )
            stays = settings.ingest.is_continuous or STAYS in context.run.tags
            for done in rounds.rounds(settings.ingest.run_for, until_young=not stays):
                if done.number == 0:
                    context.instance.add_run_tags(context.run_id, {READS: "true"})
                    lake.whole().failed_runs().settled(context.job_name)
                if report.add(done):
                    yield from report.told(context)
            yield from report.told(context)
        context.instance.add_run_tags(context.run_id, {ENDED: str(rounds.ended)})
        total = report.total
        metadata: dict[str, Any] = {
            "ended": str(rounds.ended),
            "tracked": total.persisted.messages,
            "heartbeats": total.landed.heartbeats,
            "quarantined": total.landed.rejected.total(),
            "late": total.landed.late,
            "seconds": round(clock.monotonic() - began, 1),
        }
        yield dg.Output(None, metadata=metadata)

    @dg.job(
        name=name_of(settings, INGEST),
        executor_def=dg.in_process_executor,
        tags=tags_of(settings),
        description=(
            f"Lands and tracks with up to {settings.ingest.readers} readers on Spark. It is safe to start at any time, "
            "to kill, and to start twice: it acknowledges only what is visible."
        ),
    )
    def ingest() -> None:
        read_rounds()

    return ingest


@contextmanager
def _readers_at_work(context: dg.OpExecutionContext, lake: LakeResource, clock: Clock) -> Iterator[None]:
    """What surrounds the readers of a run: it says that it is at work. A failure is noted in the lake, and the run has
    a tag if executors cannot run tidemark, which Dagster's retries do not fix."""
    noting = lake.whole().failed_runs().noting(context.run_id, (), clock, context.job_name)
    with failing_run(ExecutorsUnable), beating(context), noting:
        try:
            yield
        except ExecutorsUnable as error:
            context.instance.add_run_tags(context.run_id, {WHY_NOT: str(error)[:MOST_OF_A_TAG]})
            raise


def ingest_sensor(settings: Settings, clock: Clock) -> dg.SensorDefinition:
    """The sensor that requests a run: always one, or one when ticks do not catch up with a backlog."""
    chosen = settings.ingest
    if chosen.is_continuous:
        when = "Keeps a run at work."
    else:
        when = (
            f"Requests a run when base or tracking holds a message older than {format_duration(chosen.start_after)}, "
            f"when {chosen.start_size} messages were published since the oldest that base holds, or when ticks do not "
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
        state, watch = lake.state(INGEST), watch_of(lake)
        watch.look(state)
        progress = "".join(f"; {one.sentence()}" for one in watch.progress()[:1])
        reason = "" if chosen.is_continuous else why_readers(state, now, settings, watch)
        if reason is None:
            run = run_at_work(runs, now, settings)
            reads = "ticks can land the backlog" if run is None else f"run {run[:8]} reads"
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{reads}{progress}"))
        if (pause := why_no_run(runs, now, settings)) is not None:
            why = f"{reason}; {pause}" if reason else pause
            return dg.SensorResult(skip_reason=dg.SkipReason(f"{why}{progress}"))
        tags = {STAYS: "true"} if caught_up_lately(runs, now) else {}
        if reason:
            context.log.info(f"readers on Spark help: {reason}")
            tags |= {"tidemark/why": reason}
        return dg.SensorResult(run_requests=[dg.RunRequest(tags=tags)])

    return ingest


def watch_of(lake: LakeResource) -> Watch:
    """What this process has seen of the backlogs."""
    return lake.kept.get("watch", Watch)


def why_readers(state: WatermarkState, now: datetime, settings: Settings, watch: Watch) -> str | None:
    """Why the backlog needs readers on Spark, in a sentence. None if ticks can land it, or no recent reading tells."""
    decision, chosen = state.decision, settings.ingest
    if decision is None:
        return None
    longest = settings.watermark.max_reading_age
    recent = {side: one for side, one in readings_of(decision).items() if now - one.newest.observed_at <= longest}
    for side in sorted(recent):  # base first
        if (age := recent[side].newest.age) >= chosen.start_after:
            whole = format_duration(timedelta(seconds=int(age.total_seconds())))
            return f"{side} holds a message that is {whole} old"
    if (base := recent.get(Side.BASE)) is not None:
        size = state.histogram.messages_at(state.histogram.since(to_us(base.oldest_unacked), bucket_of(now)))
        if size >= chosen.start_size:
            return f"{size} messages were published since the oldest that base holds"
    slow = watch.too_slow()
    return None if slow is None else f"ticks do not catch up: {slow.sentence()}"


def run_at_work(runs: Runs, now: datetime, settings: Settings) -> str | None:
    """The id of a run whose readers pull now: it has settled a round, and is at work for no longer than its time and
    OVERTIME."""
    for record in runs.newest(INGEST, 1, [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]):
        began = record.start_time or record.create_timestamp.timestamp()
        is_on_time = now.timestamp() - began < (settings.ingest.run_for + OVERTIME).total_seconds()
        if is_on_time and READS in record.dagster_run.tags and why_dead(runs.instance, record, now) is None:
            return record.dagster_run.run_id
    return None


def why_no_run(runs: Runs, now: datetime, settings: Settings) -> str | None:
    """Why no run is requested now: one is under way, the last ones failed, executors could not run the last one, or it
    found nothing to pull."""
    newest = runs.newest(INGEST, 1)
    tags = newest[0].dagster_run.tags if newest else {}
    if WHY_NOT in tags and now - ended_at(newest[0]) < UNABLE_PAUSE:
        return (
            f"ticks pull, since {tags[WHY_NOT]}; another run looks {format_duration(UNABLE_PAUSE)} after the last; "
            "start one by hand to try at once"
        )
    if (pause := pause_of(runs, INGEST, now, "lands and tracks")) is not None:
        return pause
    rests = settings.ingest.start_after
    if tags.get(ENDED) == Ended.RAN_DRY and not settings.ingest.is_continuous and now - ended_at(newest[0]) < rests:
        return (
            f"run {newest[0].dagster_run.run_id[:8]} found hardly anything to pull: another consumer holds it; the "
            f"next run looks {rough(rests)} later"
        )
    return None


def caught_up_lately(runs: Runs, now: datetime) -> bool:
    """Whether the last run had caught up, a short time ago."""
    done = runs.newest(INGEST, 1, [dg.DagsterRunStatus.SUCCESS])
    return (
        bool(done) and done[0].dagster_run.tags.get(ENDED) == Ended.CAUGHT_UP and now - ended_at(done[0]) < AGAIN_WITHIN
    )

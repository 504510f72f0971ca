"""The job whose readers on Spark pull instead of the ticks."""

import logging
import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import dagster as dg

from tidemark.assets.events import histogram_events, landing_events
from tidemark.assets.jobs.job import job_of
from tidemark.pipeline.clock import Clock, format_duration
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.ingest.on_spark import SparkReaders, readers_for
from tidemark.pipeline.ingest.outcome import Settled, Side
from tidemark.pipeline.ingest.rounds import PLAN, RoundDone, Rounds, RunPlan, sentence_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.orchestrator.names import ENDED, INGEST, READS, STAYS
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.session import cores_of
from tidemark.resources.keys import LAKE, PUBSUB, SPARK, lake_of, pubsub_of, spark_of

WHY_NOT = "tidemark/why_not"
"""The tag of a run that pulled nothing because executors lack tidemark. Its value is the error, which says what to
do."""

MOST_OF_A_TAG = 1000
"""Characters of an error that a tag holds at most."""

SLOW = 1.5
"""A round that takes this many times its planned duration is reported as slow, except the first, which also waits for
Spark's workers."""


@dataclass(slots=True)
class Report:
    """The rounds that a run has settled, in total and since its last report. It reports once per tick, however short
    rounds are."""

    clock: Clock
    settings: Settings
    round: timedelta
    total: Settled = field(default_factory=Settled)
    _untold: list[RoundDone] = field(default_factory=list)
    _told_at: float = -math.inf

    def add(self, done: RoundDone) -> bool:
        """Add a round. True if a report is due."""
        self.total += done.settled
        self._untold.append(done)
        return self.clock.monotonic() - self._told_at >= self.settings.watermark.tick.total_seconds()

    def sentence(self) -> str:
        """Describe the unreported rounds, of which there is at least one."""
        last, says = self._untold[-1], sentence_of(self._untold)
        if last.readers_seconds < SLOW * self.round.total_seconds() or self._untold[0].number == 0:
            return says
        return (
            f"{says}. A round should take {format_duration(self.round)}: Spark needs a task slot for each of the "
            f"{last.share.readers} readers, and for windows"
        )

    def told(self, log: logging.Logger) -> list[dg.AssetMaterialization]:
        """Log the unreported rounds, and return their materializations."""
        if self._untold:
            log.info(self.sentence())
        settled = sum((one.settled for one in self._untold), Settled())
        self._untold, self._told_at = [], self.clock.monotonic()
        return [*landing_events(self.settings, settled.landed), *histogram_events(self.settings, settled.persisted)]


def ingest_job(settings: Settings, clock: Clock, plan: RunPlan = PLAN) -> dg.JobDefinition:
    """Define the job: rounds of a Spark job, until the backlog is young or the run's time is up."""
    about = (
        f"Lands and tracks with up to {settings.ingest.readers} readers on Spark. It is safe to start at any time, "
        "to kill, and to start twice: it acknowledges only what is visible."
    )

    @job_of(settings, INGEST, "read_rounds", about, PUBSUB, LAKE, SPARK, lasting=(ExecutorsUnable,))
    def ingest(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Lands and tracks in rounds. Each commits one transaction and one log entry, and then acknowledges."""
        pubsub, lake, spark = pubsub_of(context, settings), lake_of(context, settings), spark_of(context, settings)
        report, began = Report(clock, settings, plan.round), clock.monotonic()
        with (
            lake.whole().failed_runs().noting(context.run_id, (), clock, context.job_name),
            _tagging_why_not(context),
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
                backlogs={Side.TRACKING: pubsub.tracking_backlog(INGEST), Side.BASE: pubsub.base_backlog(INGEST)},
                clock=clock,
                plan=plan,
            )
            stays = settings.ingest.is_continuous or STAYS in context.run.tags
            for done in rounds.rounds(plan.run_for, until_young=not stays):
                if done.number == 0:
                    context.instance.add_run_tags(context.run_id, {READS: "true"})
                    lake.whole().failed_runs().settled(context.job_name)
                if report.add(done):
                    yield from report.told(context.log)
            yield from report.told(context.log)
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

    return ingest


@contextmanager
def _tagging_why_not(context: dg.OpExecutionContext) -> Iterator[None]:
    """Tag the run with the error if executors cannot run tidemark, which Dagster's retries do not fix."""
    try:
        yield
    except ExecutorsUnable as error:
        context.instance.add_run_tags(context.run_id, {WHY_NOT: str(error)[:MOST_OF_A_TAG]})
        raise

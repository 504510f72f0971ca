"""The job that judges quarantined messages again, and the sensor that requests it when the message contract changes."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, key_of
from tidemark.assets.jobs.job import job_of
from tidemark.assets.scheduler.requests import pause_of
from tidemark.assets.scheduler.runs import Runs
from tidemark.assets.sensors.staleness import CHECK_EVERY
from tidemark.assets.sensors.watching import ticking_sensor
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.ingest.requeue import Requeuer
from tidemark.pipeline.ingest.settle import judge_of
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.quarantine import UNREADABLE
from tidemark.pipeline.orchestrator.names import CONTRACT, REQUEUE, name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import BY_HAND
from tidemark.resources.keys import LAKE, lake_of
from tidemark.resources.lake import LakeResource

MOST_REQUESTS = 3
"""Maximum number of runs that a code server requests for one contract. After a failed run, the code server pauses, and
then requests the next one. If all runs fail, an operator has to read their logs."""


def requeue_job(settings: Settings, clock: Clock) -> dg.JobDefinition:
    """Define the job that does in Dagster what the command `tidemark quarantine --requeue` does."""

    @job_of(settings, REQUEUE, "judge_again", LAKE)
    def requeue(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Judges quarantined messages again by the current message contract, and lands those that pass. It is safe to
        run at any time, to kill, and to repeat."""
        lake = lake_of(context, settings).of(REQUEUE)
        done = Requeuer(lake, judge_of(settings, lake), clock).run()
        lake.judged_by().note(settings.judged_by, clock.now())
        metadata: dict[str, Any] = {
            "landed": done.heartbeats,
            "late": done.late,
            "landed_before": done.there,
            **{f"still_rejected/{reason}": count for reason, count in done.rejected.items()},
            **{f"of_another_kind/{name}": count for name, count in done.of_another_kind.items()},
        }
        context.log.info(f"heartbeats landed: {done.heartbeats}; rejected again: {done.rejected.total()}")
        if done.heartbeats:
            landed = {"rows": done.heartbeats, "late": done.late}
            yield dg.AssetMaterialization(key_of(settings, HEARTBEATS), metadata=landed)
        yield dg.Output(None, metadata=metadata)

    return requeue


def requeue_sensor(settings: Settings, clock: Clock, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Define the sensor that requests a run if quarantine was last judged by a contract other than the current one."""
    # The contract cannot change while a code server runs: once quarantine was judged by it, nothing is checked again.
    is_done, process = False, uuid4().hex

    @ticking_sensor(
        settings,
        REQUEUE,
        at_least=CHECK_EVERY,
        job=job,
        description=(
            f"Requests a run of the job {name_of(settings, REQUEUE)} when the message contract has changed since "
            f'quarantined messages were last judged. With quarantine.requeue = "{BY_HAND}" there is no such sensor.'
        ),
    )
    def requeue(context: dg.SensorEvaluationContext, lake: LakeResource) -> dg.SensorResult | str:
        nonlocal is_done
        if is_done := is_done or is_judged(lake.of(REQUEUE), settings, clock):
            return "all quarantined messages have been judged by the current message contract"
        if pause := pause_of(Runs(context.instance, settings), REQUEUE, clock.now(), "is judging quarantined messages"):
            return pause
        by, _, count = (context.cursor or "").partition(" ")  # a request that Dagster never got does not count
        requested = int(count) if by == process else 0
        if requested == MOST_REQUESTS:
            return (
                f"{MOST_REQUESTS} runs were requested for this message contract, and none succeeded: look at their "
                "logs, then run `tidemark quarantine --requeue`"
            )
        context.log.info("the message contract has changed since messages in quarantine were judged: requesting a run")
        request = dg.RunRequest(tags={CONTRACT: settings.judged_by[:12]})
        return dg.SensorResult(run_requests=[request], cursor=f"{process} {requested + 1}")

    return requeue


def is_judged(lake: Lake, settings: Settings, clock: Clock) -> bool:
    """Return True if quarantined messages need not be judged again: they were last judged by the current contract, or
    there are none. On the lake's first check, it is unknown by which contract they were judged, so they are judged
    again."""
    judged_by, digest = lake.judged_by(), settings.judged_by
    if judged_by.digest() != digest and lake.quarantine().days():
        judged_by.note(UNREADABLE, clock.now())  # the former contract may return before a run ends
        return False
    judged_by.note(digest, clock.now())
    return True

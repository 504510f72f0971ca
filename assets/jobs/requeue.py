"""The job that judges quarantined messages again."""

from collections.abc import Iterator
from typing import Any

import dagster as dg

from tidemark.assets.catalog import HEARTBEATS, key_of
from tidemark.assets.jobs.job import job_of
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.ingest.requeue import Requeuer
from tidemark.pipeline.orchestrator.names import REQUEUE
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.settings import Settings
from tidemark.resources.keys import LAKE, lake_of

ABOUT = (
    "Judges quarantined messages again by the current settings, and lands those that pass. It is safe to run at any "
    "time, to kill, and to repeat."
)


def requeue_job(settings: Settings, clock: Clock) -> dg.JobDefinition:
    """Define the job that does `tidemark quarantine --requeue` in a run."""

    @job_of(settings, REQUEUE, "judge_again", ABOUT, LAKE)
    def requeue(context: dg.OpExecutionContext) -> Iterator[dg.AssetMaterialization | dg.Output[None]]:
        """Judges quarantined messages by the current message contract, and lands those that pass."""
        lake = lake_of(context, settings).whole()
        accepted = lake.accepted_schemas(settings.message.schema_names)
        done = Requeuer.of(lake, reader_of(settings.contract, settings.pubsub, accepted), clock).run()
        lake.judged_by().note(settings.contract_digest, clock.now())
        metadata: dict[str, Any] = {
            "landed": done.landed,
            "late": done.late,
            "landed_before": done.there,
            **{f"still_rejected/{reason}": count for reason, count in done.rejected.items()},
            **{f"of_another_kind/{name}": count for name, count in done.of_another_kind.items()},
        }
        context.log.info(f"landed {done.landed} messages of quarantine; {done.rejected.total()} are rejected as before")
        if done.landed:
            landed = {"rows": done.landed, "late": done.late}
            yield dg.AssetMaterialization(key_of(settings, HEARTBEATS), metadata=landed)
        yield dg.Output(None, metadata=metadata)

    return requeue

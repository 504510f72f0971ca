"""Names shared by Dagster's definitions and the commands that request runs."""

import hashlib
import re

from tidemark.pipeline.settings import Settings

COMPUTE_WINDOWS = "compute_windows"
"""The job that computes windows of `heartbeat_diffs` and `stream_status`."""

INGEST = "ingest"
"""The job that pulls messages with readers on Spark, in place of the sensors' ticks. The sensor that requests this job
has the same name."""

READS = "tidemark/reads"
"""The tag of an ingest run that has finished its first round of reading. While such a run is at work, the sensors'
ticks need not pull. The tag's value is the run's id. A retry inherits the tag but has a different id, so an
inherited tag can be recognized."""

STAYS = "tidemark/stays"
"""The tag of an ingest run that keeps running after it has caught up, because ticks fell behind soon after the previous
run."""

ENDED = "tidemark/ended"
"""The tag that says why an ingest run ended."""

REQUEUE = "requeue"
"""The job that judges quarantined messages again. The sensor that requests this job has the same name."""

CONTRACT = "tidemark/contract"
"""The tag of a requeue run. Its value is the start of the digest of the message contract that the run applies."""

PIPELINE = "tidemark/pipeline"
"""The tag that identifies a run's pipeline. Its value is the `pipeline_tag` of the pipeline's lake."""

TICK = "tidemark/tick"

WINDOWS = "tidemark/windows"
"""The tag that names the windows of a run, such as `2026-11-21T05-20Z..06-10Z (11)`: the first window, the last window
and the number of windows. A run whose config names no windows computes the windows in this tag."""

TO = ".."
"""Separator of the first and the last window's key in a range of windows."""

BACKLOG = "tidemark/backlog"
"""The tag of a run of COMPUTE_WINDOWS over older or stale windows instead of live ones."""

REPORTED = "tidemark/reported"
"""The tag of a failed or canceled run whose complete partitions have been reported to Dagster. Its value is the run's
id, because a retry inherits the tag."""

DEFINITION = "tidemark/definition"
"""The tag with two digests of a custom table's file: one of the file that Dagster loaded, one of the file that the run
read."""


def pipeline_tag(lake: str) -> str:
    """Return the value of the tag PIPELINE for a lake: the end of the lake's address, and a digest of the whole
    address. The value is short enough for a row of Dagster's UI."""
    named = re.sub(r"[^A-Za-z0-9_]+", "-", lake.rstrip("/").rpartition("/")[2])
    return f"{named[-20:].strip('-') or 'lake'}-{hashlib.sha256(lake.encode()).hexdigest()[:8]}"


def compute_job(table: str) -> str:
    """Return the name of the job that computes windows of a custom table."""
    return f"compute_{table}"


def op_of(job: str) -> str:
    """Return the name of the op within a job that computes windows."""
    return f"{job}_by_name"


def name_of(settings: Settings, name: str) -> str:
    """Prefix the name of a job, op, sensor, schedule or resource with `dagster.name`, if that is set. The prefix avoids
    clashes with other definitions in Dagster."""
    return f"{settings.dagster.name}_{name}" if settings.dagster.name else name

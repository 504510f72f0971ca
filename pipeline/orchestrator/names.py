"""Names shared by Dagster's definitions and the commands that ask it for runs."""

import hashlib
import re

from tidemark.pipeline.settings import Settings

COMPUTE_WINDOWS = "compute_windows"
"""The job that computes windows, wherever they lie."""

INGEST = "ingest"
"""The job whose readers on Spark pull instead of the ticks, and the sensor that requests it."""

READS = "tidemark/reads"
"""The tag of such a run that has settled its first round: ticks need not pull."""

STAYS = "tidemark/stays"
"""The tag of such a run that goes on although it has caught up: ticks could not keep up before."""

ENDED = "tidemark/ended"
"""The tag that says why such a run ended."""

REQUEUE = "requeue"
"""The job that judges quarantine again, and the sensor that requests it."""

CONTRACT = "tidemark/contract"
"""The tag with the beginning of the digest of the message contract for which such a run was requested."""

PIPELINE = "tidemark/pipeline"
"""The tag that says which pipeline's run it is: `pipeline_tag` of its lake."""

TICK = "tidemark/tick"
"""The tag with the id of the tick that requested a run."""

WINDOWS = "tidemark/windows"
"""The tag that says which windows a run computes: `first..last`, by their keys, and how many. It asks for them where
the run's config names none."""

TO = ".."
"""Stands between the first and the last key of a stretch of windows."""

BACKLOG = "tidemark/backlog"
"""The tag of a run of COMPUTE_WINDOWS over older and stale windows."""

DEFINITION = "tidemark/definition"
"""The tag that says by which text of its file, and loaded with which, a run computes a table of one's own."""


def pipeline_tag(lake: str) -> str:
    """The tag value of the pipeline with this lake, short enough for a row of the UI: the end of the lake's address,
    and a digest of all of it."""
    named = re.sub(r"[^A-Za-z0-9_]+", "-", lake.rstrip("/").rpartition("/")[2])
    return f"{named[-20:].strip('-') or 'lake'}-{hashlib.sha256(lake.encode()).hexdigest()[:8]}"


def pipeline_tags(lake: str) -> list[str]:
    """Every value of the tag PIPELINE that runs of this pipeline have: an earlier version wrote the lake's address."""
    return [pipeline_tag(lake), lake]


def compute_job(table: str) -> str:
    """The job that computes windows of a table of one's own."""
    return f"compute_{table}"


def op_of(job: str) -> str:
    """The op of a job that computes windows."""
    return f"{job}_by_name"


def name_of(settings: Settings, name: str) -> str:
    """A job's, an op's, a sensor's, a schedule's or a resource's name in Dagster. With `dagster.name` it has that name
    as its prefix, so that it stands beside those of other pipelines and of other people."""
    return f"{settings.dagster.name}_{name}" if settings.dagster.name else name

"""The job `repair`, which does in Dagster's UI what `tidemark repair` does without --recompute and --forget."""

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

import dagster as dg

from tidemark.assets.checks import evaluation_of
from tidemark.assets.jobs.by_window import Event
from tidemark.assets.jobs.heartbeat_diffs import compute_and_report, stopped_result
from tidemark.assets.jobs.job import job_of
from tidemark.assets.partitions import Partitions
from tidemark.pipeline.clock import SystemClock, parse_duration
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.quality.silence import WindowSilence
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.orphans import remove_orphans
from tidemark.pipeline.upkeep.survey import Surveyor, findings, forget_damaged
from tidemark.pipeline.windows import WINDOWS_PER_RUN
from tidemark.resources.keys import LAKE, SPARK

REPAIR = "repair"
NAMED_IN_LOG = 200
"""Maximum number of findings in the run's log and in its metadata. Dagster keeps both in its database."""


class RepairConfig(dg.Config):
    """The job's options.

    - `first_window`, `last_window`: the range to check, by keys such as 2026-11-21T05-20Z. Empty: all closed windows.
    - `dry_run`: report findings, and change nothing.
    - `remove_orphans`, `grace`: delete orphaned files that are at least as old as `grace`, which must be longer than
      any run takes."""

    first_window: str = ""
    last_window: str = ""
    dry_run: bool = False
    remove_orphans: bool = False
    grace: str = "1d"


def repair_job(settings: Settings, partitions: Partitions, lookbacks: Mapping[str, timedelta]) -> dg.JobDefinition:
    @job_of(settings, REPAIR, "look_and_compute_again", LAKE, SPARK, lasting=(ExecutorsUnable, ValueError))
    def repair(context: dg.OpExecutionContext, config: RepairConfig) -> Iterator[Event | dg.Output[None]]:
        """After an outage: checks a range of windows, the tracking log and the lake's folders, reports what is stale,
        missing, damaged or orphaned, and recomputes only the affected windows. Fails if it finds anything that it
        cannot repair."""
        clock = SystemClock()
        surveyor, named = Surveyor(settings, clock, lookbacks), settings.windowing.named
        asked = surveyor.range_of(*(named(key) if key else None for key in (config.first_window, config.last_window)))
        if asked is None:
            context.log.info("no window is closed: there is nothing to check")
            yield dg.Output(None)
            return
        survey = surveyor.look(*asked, whole=not config.first_window, grace=parse_duration(config.grace))
        found = list(findings(survey, clock.now()))
        for finding in found[:NAMED_IN_LOG]:
            context.log.warning(f"{finding.kind}: {finding.text}")
        removed = survey.orphans if config.remove_orphans and not config.dry_run else []
        remove_orphans(removed, surveyor.lake.objects())
        own = [] if config.dry_run else survey.own
        forget_damaged(surveyor.lake, own)
        computed, silence = 0, list[WindowSilence]()
        for windows in () if config.dry_run else survey.runs(WINDOWS_PER_RUN):
            silence += yield from compute_and_report(settings, partitions, context, windows)
            computed += len(windows)
        if silence:
            yield evaluation_of(stopped_result(settings, silence))
        figures: dict[str, Any] = {
            "windows_looked_at": survey.windows,
            "files_looked_at": survey.files,
            "log_entries_read": survey.log.entries_read,
            "windows_broken": len(survey.broken),
            "windows_computed": computed,
            "windows_blocked": len(survey.blocked),
            "windows_of_own_tables_taken_out": len(own),
            "orphans": len(survey.orphans),
            "orphans_removed": len(removed),
            "found": "\n".join(f"{finding.kind}: {finding.text}" for finding in found[:NAMED_IN_LOG]) or "nothing",
        }
        if survey.needs_a_hand:
            grave = "; ".join(finding.text for finding in found if finding.is_grave)
            raise dg.Failure(description=grave, metadata=figures, allow_retries=False)
        yield dg.Output(None, metadata=figures)

    return repair

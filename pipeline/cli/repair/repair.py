"""`tidemark repair`: find damaged, missing or stale windows in a range, and recompute them."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn

from tidemark.pipeline.cli.here import lake_of, refuse_attached
from tidemark.pipeline.cli.options import (
    AsJson,
    DryRun,
    From,
    Span,
    To,
    apart_from,
    duration_option,
    only_with,
    option,
    window_named,
)
from tidemark.pipeline.cli.output import console, key_range, print_json, progress_bar, safe
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.compute.table_definition import loaded_tables, lookbacks_of, read_table
from tidemark.pipeline.errors import LakeError, ServiceFailed
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.tables.windowed import Fence, WindowedTable
from tidemark.pipeline.orchestrator.api import DagsterApi
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, TO, WINDOWS, compute_job
from tidemark.pipeline.quality.gate import wait_until
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.upkeep.orphans import GRACE, Orphan
from tidemark.pipeline.upkeep.orphans import remove_orphans as remove_orphan_files
from tidemark.pipeline.upkeep.survey import Survey, Surveyor, findings, forget_damaged, forget_entry
from tidemark.pipeline.windows import WINDOWS_PER_RUN, Window

DEFAULT_GRACE, NO_TIME = Span(seconds=GRACE.total_seconds()), Span(0)
NAMED_OF_A_KIND = 50
"""Maximum number of findings printed per kind. The JSON has all."""


def repair(
    first: From = None,
    last: To = None,
    dry_run: DryRun = False,
    remove_orphans: Annotated[bool, option("Delete the orphaned files that were found.", "--remove-orphans")] = False,
    grace: Annotated[
        timedelta, duration_option("Minimum age of an orphan; must be longer than any run.")
    ] = DEFAULT_GRACE,
    wait: Annotated[timedelta, duration_option("Wait until the windows are computed, at most this long.")] = NO_TIME,
    recompute: Annotated[
        bool, option("Only recompute the windows --from … --to, even intact ones.", "--recompute")
    ] = False,
    table: Annotated[str | None, option("With --recompute: a custom table instead of heartbeat_diffs.")] = None,
    forget: Annotated[
        int | None, option("Only record this entry of the tracking log as lost.", min=0, metavar="<entry>")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Find damaged or missing windows, and recompute them.

    Also finds stale windows and orphaned files. Checks all closed windows, or only the windows --from … --to. Runs are
    requested from Dagster at dagster.url, by default that of `tidemark up`. Exit code 1: something has to be
    repaired by hand, a window is not recomputed within --wait or, with --dry-run, anything is wrong.

    With --recompute: one run computes the whole range. The same input gives the same rows. If a window is not below the
    watermark, the run fails and writes nothing.

    With --forget: stop the pipeline first. A note replaces the lost entry. The watermark then holds until every message
    that the entry may have described has landed. It never goes back below the last watermark recorded outside the
    log, or below the end of a computed window.
    """
    settings, clock = load_settings(), SystemClock()
    if not recompute:
        only_with("--recompute", table=table)
    if forget is not None:
        others = {"recompute": recompute, "dry_run": dry_run, "remove_orphans": remove_orphans, "wait": wait}
        apart_from("--forget", **{"from": first, "to": last, "json": as_json, **others})
        floor = forget_entry(lake_of(settings), settings.windowing, forget)
        print(f"entry {forget} is recorded as lost; the watermark holds until base has caught up")
        print("no earlier watermark is known" if floor is None else f"the watermark stays at or above {iso(floor)}")
        return
    refuse_attached(settings, "repair")
    if recompute:
        apart_from("--recompute", dry_run=dry_run, remove_orphans=remove_orphans, wait=wait, json=as_json)
        if first is None or last is None:
            raise typer.BadParameter("--recompute needs --from and --to, which may name the same window")
        print(_recompute(settings, window_named(settings, first), window_named(settings, last), table))
        return
    surveyor, out = Surveyor(settings, clock, lookbacks_of(loaded_tables(settings))), console(quiet=as_json)
    start, end = _range(settings, surveyor, first, last)
    with progress_bar(MofNCompleteColumn(), quiet=as_json) as progress:
        survey = surveyor.look(start, end, whole=first is None, grace=grace, track=progress.track)

    def say(text: str) -> None:
        out.print(safe(text), soft_wrap=True)

    _show(survey, clock.now(), out)
    removed = survey.orphans if remove_orphans and not dry_run else []
    remove_orphan_files(removed, surveyor.lake.objects())
    if removed:
        say(f"removed {counted(len(removed), 'orphaned file')}, {sum(orphan.size for orphan in removed)} bytes")
    own = [] if dry_run else survey.own
    forget_damaged(surveyor.lake, own)
    if own:
        windows = counted(len(own), "damaged window")
        say(f"removed {windows} of custom tables; the sensor `tables` requests runs that compute them again")
    wanted = [window.key for stretch in survey.repairable for window in stretch]
    diffs = surveyor.lake.diffs()
    before = diffs.fence(wanted)
    requested: list[dict[str, str]] = []
    problem, repaired = None, not survey.broken
    if not dry_run:
        try:
            for stretch in survey.runs(WINDOWS_PER_RUN):
                say(launch(settings, stretch[0], stretch[-1]))
                requested.append({"from": stretch[0].key, "to": stretch[-1].key})
        except ServiceFailed as error:
            problem = error
        else:
            repaired = wait_until(partial(_all_replaced, diffs, before), bool, wait, clock)
    if as_json:
        print_json({**_facts(survey, removed, clock.now()), "requested": requested, "mended": repaired})
    if survey.is_sound:
        say("nothing is wrong")
    elif dry_run and (wanted or survey.own):
        stretches = [key_range(stretch[0].key, stretch[-1].key) for stretch in survey.repairable]
        stretches += [f"{one.window} of {one.table}" for one in survey.own]
        say(f"would recompute: {', '.join(stretches)}")
    elif requested and wait:
        say("recomputed" if repaired else "some windows are not computed yet: look at the runs in Dagster")
    if problem is not None:
        raise problem
    if survey.needs_a_hand or (dry_run and not survey.is_sound) or (wait and not repaired):
        raise typer.Exit(code=1)


def _recompute(settings: Settings, first: Window, last: Window, table: str | None) -> str:
    """Request one run over a range of windows of heartbeat_diffs. With `table`, request a run over all windows of that
    custom table that overlap the range."""
    if last < first:
        raise typer.BadParameter(f"--to {last.key} is before --from {first.key}")
    if first.start < settings.windows.first:
        raise typer.BadParameter(f"--from {first.key} is before windows.first, {iso(settings.windows.first)}")
    if table is None:
        return launch(settings, first, last)
    if table not in settings.tables:
        raise typer.BadParameter(f"[tables] does not name {table}; it names {', '.join(settings.tables) or 'none'}")
    windowing = read_table(settings, table).windowing(settings.windows)
    return launch(settings, windowing.containing(first.start), windowing.containing(last.start), compute_job(table))


def launch(settings: Settings, first: Window, last: Window, job: str = COMPUTE_WINDOWS) -> str:
    """Ask Dagster for one run over a range of windows. Return a sentence with the run's address. Raises
    ServiceFailed if Dagster does not answer or refuses the run."""
    run = DagsterApi(settings.dagster).launch(job, settings.lake.uri, {WINDOWS: f"{first.key}{TO}{last.key}"})
    return f"requested {key_range(first.key, last.key)}; the run is at {run}"


def _range(settings: Settings, surveyor: Surveyor, first: str | None, last: str | None) -> tuple[datetime, datetime]:
    try:
        found = surveyor.range_of(*(None if text is None else window_named(settings, text) for text in (first, last)))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if found is None:
        raise LakeError(
            f"no window of {settings.lake.uri} is known to be closed: no heartbeat has landed, or the tracking log has "
            "no watermark above the first window's end. Name the windows with --from and --to"
        )
    return found


def _all_replaced(diffs: WindowedTable, before: Fence) -> bool:
    """Return True if every window in `before` has files that differ from those in `before`."""
    now = diffs.fence(before)
    return all(now[key] and now[key] != files for key, files in before.items())


def _show(survey: Survey, now: datetime, out: Console) -> None:
    shown = Counter[str]()
    for finding in findings(survey, now):
        shown[finding.kind] += 1
        if shown[finding.kind] <= NAMED_OF_A_KIND:
            kind = f"[{'red' if finding.is_grave else 'yellow'}]{finding.kind:<10}[/]"
            out.print(kind + safe(finding.text), soft_wrap=True)
    for kind, count in shown.items():
        if count > NAMED_OF_A_KIND:
            out.print(f"{kind:<10}{count - NAMED_OF_A_KIND} more; --json has all")
    out.print(
        f"[dim]checked {counted(survey.windows, 'window')} from {iso(survey.start)} to {iso(survey.end)}, "
        f"{counted(survey.files, 'file')} of these windows, and {survey.log.entries_read} tracking log entries[/]"
    )


def _facts(survey: Survey, removed: Sequence[Orphan], now: datetime) -> dict[str, Any]:
    return {
        "from": survey.start,
        "to": survey.end,
        "watermark": survey.watermark,
        "sound": survey.is_sound,
        "windows": survey.windows,
        "files": survey.files,
        "broken": survey.broken,
        "damaged_heartbeats": survey.inputs,
        "damaged_windows_of_own_tables": survey.own,
        "unknown": survey.unknown,
        "log": survey.log,
        "orphans": [
            {
                "file": orphan.location,
                "what": orphan.what,
                "bytes": orphan.size,
                "age_seconds": int((now - orphan.written_at).total_seconds()),
                "removed": bool(removed),
            }
            for orphan in survey.orphans
        ],
    }

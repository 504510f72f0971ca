"""The command that looks at a range of windows after an outage, and has what is wrong computed again."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.progress import MofNCompleteColumn, TaskID

from tidemark.pipeline.cli.options import AsJson, Span, duration_option, landing_only, option, window_named
from tidemark.pipeline.cli.output import console, print_json, progress_bar
from tidemark.pipeline.cli.running import launch
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.errors import LakeError, ServiceFailed
from tidemark.pipeline.lake.tables.windowed import Fence, WindowedTable
from tidemark.pipeline.printable import printable
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.upkeep.integrity import Progress as Tell
from tidemark.pipeline.upkeep.integrity import forget_damaged
from tidemark.pipeline.upkeep.orphans import GRACE, Orphan
from tidemark.pipeline.upkeep.orphans import remove_orphans as remove_orphan_files
from tidemark.pipeline.upkeep.repair import Survey, Surveyor, findings

DEFAULT_GRACE, NO_TIME = Span(seconds=GRACE.total_seconds()), Span(0)
LOOK_EVERY_SECONDS = 1.0
NAMED_OF_A_KIND = 50
"""Findings of one kind that are printed to a terminal, so that they can be read; --json has all."""


@landing_only
def repair(
    first: Annotated[
        str | None,
        option("The first window: its key (2026-11-21T05-20Z), or a time in it. Else the oldest.", "--from"),
    ] = None,
    last: Annotated[
        str | None, option("The last window, in the same way. Else the newest that is closed.", "--to")
    ] = None,
    dry_run: Annotated[bool, option("Only look, and say what would be done.", "--dry-run")] = False,
    remove_orphans: Annotated[bool, option("Delete the orphans that are found.", "--remove-orphans")] = False,
    grace: Annotated[
        timedelta, duration_option("Only older files are orphans: longer than any run takes.")
    ] = DEFAULT_GRACE,
    wait: Annotated[timedelta, duration_option("Wait so long at most until the windows are computed.")] = NO_TIME,
    as_json: AsJson = False,
) -> None:
    """Look at every window of a range, name what is stale, missing, damaged or orphaned, and have that computed again.

    Exit code 1: something is wrong that this command has not mended, or, with --dry-run, would mend.
    """
    settings, clock = load_settings(), SystemClock()
    surveyor, out = Surveyor(settings, clock), console()
    start, end = _range(settings, surveyor, first, last)
    with _progress(quiet=as_json) as tell:
        survey = surveyor.look(start, end, grace=grace, tell=tell)

    def say(text: str) -> None:
        if not as_json:
            out.print(printable(text), markup=False, soft_wrap=True)

    if not as_json:
        _show(survey, clock.now())
    removed = survey.orphans if remove_orphans and not dry_run else []
    remove_orphan_files(removed, surveyor.lake.objects())
    if removed:
        say(f"removed {len(removed)} orphaned files, {sum(orphan.size for orphan in removed)} bytes")
    own = [] if dry_run else survey.integrity.own
    forget_damaged(surveyor.lake, own)
    if own:
        say(f"took {len(own)} damaged windows of tables of your own out; the sensor tables has them computed again")
    wanted = [window.key for stretch in survey.integrity.repairable for window in stretch]
    diffs = surveyor.lake.diffs()
    before = diffs.fence(wanted)
    requested: list[dict[str, str]] = []
    problem, mended = None, not survey.integrity.broken
    if not dry_run:
        try:
            for stretch in survey.runs(settings.windows.max_windows_per_run):
                where = launch(settings, stretch[0], stretch[-1])
                requested.append({"from": stretch[0].key, "to": stretch[-1].key})
                say(f"requested {stretch[0].key} to {stretch[-1].key}; {where}")
        except ServiceFailed as error:
            problem = error
        limit = clock.monotonic() + wait.total_seconds()
        while problem is None and not (mended := _all_replaced(diffs, before)) and clock.monotonic() < limit:
            clock.sleep(LOOK_EVERY_SECONDS)
    if as_json:
        print_json({**_facts(survey, removed, clock.now()), "requested": requested, "mended": mended})
    if survey.is_sound:
        say("nothing is wrong")
    elif dry_run and wanted:
        stretches = [f"{stretch[0].key} to {stretch[-1].key}" for stretch in survey.integrity.repairable]
        say(f"would compute again: {', '.join(stretches)}")
    elif requested and wait:
        say("computed again" if mended else "not all of it is computed yet: look at the runs")
    if problem is not None:
        raise problem
    if survey.needs_a_hand or (dry_run and not survey.is_sound) or (wait and not mended):
        raise typer.Exit(code=1)


def _range(settings: Settings, surveyor: Surveyor, first: str | None, last: str | None) -> tuple[datetime, datetime]:
    windows = (None if text is None else window_named(settings, text) for text in (first, last))
    try:
        found = surveyor.range_of(*windows)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if found is None:
        raise LakeError(
            f"nothing says which windows of {settings.lake.uri} are closed: no heartbeat has landed, or the tracking "
            "log has no watermark. Name them with --from and --to"
        )
    return found


def _all_replaced(diffs: WindowedTable, before: Fence) -> bool:
    """Whether each window has other files than before."""
    now = diffs.fence(before)
    return all(now[key] and now[key] != files for key, files in before.items())


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """A bar for each thing that is looked at."""
    with progress_bar(MofNCompleteColumn(), quiet=quiet) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=of)
            progress.update(tasks[what], completed=done, total=of)

        yield tell


def _show(survey: Survey, now: datetime) -> None:
    integrity, shown, out = survey.integrity, Counter[str](), console()
    for finding in findings(survey, now):
        shown[finding.kind] += 1
        if shown[finding.kind] <= NAMED_OF_A_KIND:
            out.print(f"[{'red' if finding.is_grave else 'yellow'}]{finding.kind:<10}[/]", end="")
            out.print(printable(finding.text), markup=False, soft_wrap=True)
    for kind, count in shown.items():
        if count > NAMED_OF_A_KIND:
            out.print(f"{kind:<10}{count - NAMED_OF_A_KIND} more; --json has all")
    out.print(
        f"[dim]looked at {integrity.windows} windows from {iso(integrity.start)} to {iso(integrity.end)}, "
        f"{integrity.files} of their files, and {survey.log.read} entries of the tracking log[/]"
    )


def _facts(survey: Survey, removed: Sequence[Orphan], now: datetime) -> dict[str, Any]:
    integrity, log = survey.integrity, survey.log
    return {
        "from": integrity.start,
        "to": integrity.end,
        "watermark": survey.watermark,
        "sound": survey.is_sound,
        "windows": integrity.windows,
        "files": integrity.files,
        "broken": [{**asdict(broken), "window": broken.window.key} for broken in integrity.broken],
        "damaged_heartbeats": [
            {"file": damaged.path, "why": damaged.why, "windows": [window.key for window in damaged.windows]}
            for damaged in integrity.inputs
        ],
        "damaged_windows_of_own_tables": [asdict(own) for own in integrity.own],
        "unknown": integrity.unknown,
        "log": {
            "entries_read": log.read,
            "damaged": [{"entry": number, "why": why} for number, why in log.damaged],
            "forgotten": [{"entry": number, "why": why} for number, why in log.forgotten],
            "lost_end": log.lost,
        },
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

"""The command that looks at a range of windows after an outage, and has what is wrong computed again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from pipeline.cli.options import duration, moment
from pipeline.cli.output import console as wide_console
from pipeline.cli.output import print_json
from pipeline.cli.recompute import launch
from pipeline.clock import Clock, SystemClock, iso
from pipeline.errors import LakeError, ServiceFailed
from pipeline.settings import Settings, load_settings
from pipeline.upkeep.integrity import Progress as Tell
from pipeline.upkeep.orphans import GRACE, Orphan
from pipeline.upkeep.repair import Survey, Surveyor, findings
from pipeline.windows import Window

LOOK_EVERY_SECONDS = 1.0
NAMED_OF_A_KIND = 50
"""Of what is wrong in the same way, so many are named in a terminal; --json has all."""


def repair(
    first: Annotated[
        str | None,
        typer.Option("--from", help="The first window: its key (2026-11-21T05-20Z), or a time in it. Else the oldest."),
    ] = None,
    last: Annotated[
        str | None, typer.Option("--to", help="The last window, in the same way. Else the newest that is closed.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only look, and say what would be done.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Look at sizes and footers of files, not at values.")] = False,
    remove_orphans: Annotated[
        bool, typer.Option("--remove-orphans", help="Delete orphans that are older than --grace.")
    ] = False,
    grace: Annotated[
        timedelta, typer.Option(parser=duration, help="Longer than any run takes: a younger file may be of one.")
    ] = GRACE,
    wait: Annotated[
        timedelta, typer.Option(parser=duration, help="Wait so long at most until the windows are computed.")
    ] = timedelta(0),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")] = False,
) -> None:
    """Look at every window of a range, name what is stale, missing, damaged or orphaned, and have that computed again.

    Exit code 1 says that something is wrong that this command has not mended, or, with --dry-run, would mend.
    """
    settings, clock = load_settings(), SystemClock()
    surveyor = Surveyor(settings, clock)
    start, end = _range(settings, surveyor, first, last)
    console = wide_console()
    with _progress(quiet=as_json) as tell:
        survey = surveyor.look(start, end, read_values=not quick, progress=tell)
    if not as_json:
        _show(survey, clock.now(), grace, console)
    removed = surveyor.remove_orphans(survey.orphans, grace) if remove_orphans and not dry_run else []
    requested: list[tuple[Window, Window]] = []
    problem = None
    mended = not survey.integrity.broken
    if not dry_run:
        before = surveyor.files_of([window for stretch in survey.integrity.repairable for window in stretch])
        try:
            for stretch in survey.runs(settings.windows.max_windows_per_run):
                where = launch(settings, stretch[0], stretch[-1])
                requested.append((stretch[0], stretch[-1]))
                if not as_json:
                    console.print(f"requested {stretch[0].key} to {stretch[-1].key}; {where}", highlight=False)
        except ServiceFailed as error:
            problem = str(error)
        mended = problem is None and _wait(surveyor, survey, before, wait, clock)
    if as_json:
        print_json(_facts(survey, removed, requested, clock.now(), mended=mended))
    else:
        _show_end(survey, removed, requested, console, dry_run=dry_run, waited=bool(wait), mended=mended)
    if problem is not None:
        raise ServiceFailed(problem)
    if survey.needs_a_hand or (dry_run and not survey.is_sound) or (wait and not mended):
        raise typer.Exit(code=1)


def _range(settings: Settings, surveyor: Surveyor, first: str | None, last: str | None) -> tuple[datetime, datetime]:
    extent = surveyor.extent() if first is None or last is None else None
    if (first is None or last is None) and extent is None:
        raise LakeError(
            f"nothing says which windows of {settings.lake.uri} are closed: no heartbeat has landed, or the tracking "
            "log has no watermark. Name them with --from and --to"
        )
    start = _window(settings, "--from", first).start if first is not None else extent[0] if extent else None
    end = _window(settings, "--to", last).end if last is not None else extent[1] if extent else None
    if start is None or end is None or end <= start:
        raise typer.BadParameter(f"--to {last} is before --from {first}")
    return start, end


def _window(settings: Settings, option: str, text: str) -> Window:
    try:
        return settings.windowing.named(text)
    except ValueError:
        return settings.windowing.containing(moment(text, f"({option}) neither a window's key nor a time"))


def _wait(
    surveyor: Surveyor, survey: Survey, before: Mapping[str, frozenset[str]], longest: timedelta, clock: Clock
) -> bool:
    """Whether all that was requested stands in new files, after waiting for it."""
    wanted = [window for stretch in survey.integrity.repairable for window in stretch]
    limit = clock.monotonic() + longest.total_seconds()
    while len(surveyor.are_mended(wanted, before)) < len(wanted):
        if clock.monotonic() >= limit:
            return False
        clock.sleep(LOOK_EVERY_SECONDS)
    return True


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Tell]:
    """Bars on the terminal's error output, one for each thing that is looked at."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=quiet) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, of: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what, total=of)
            progress.update(tasks[what], completed=done, total=of)

        yield tell


def _show(survey: Survey, now: datetime, grace: timedelta, console: Console) -> None:
    integrity, shown = survey.integrity, Counter[str]()
    for finding in findings(survey, now, grace):
        shown[finding.kind] += 1
        if shown[finding.kind] <= NAMED_OF_A_KIND:
            console.print(f"[{'red' if finding.is_grave else 'yellow'}]{finding.kind:<10}[/]", end="")
            console.print(finding.text, highlight=False, markup=False, soft_wrap=True)
    for kind, count in shown.items():
        if count > NAMED_OF_A_KIND:
            console.print(f"{kind:<10}{count - NAMED_OF_A_KIND} more; --json has all", highlight=False)
    console.print(
        f"[dim]looked at {integrity.windows} windows from {iso(integrity.start)} to {iso(integrity.end)}, "
        f"{integrity.files} of their files, and {survey.log.read} entries of the tracking log[/]",
        highlight=False,
    )


def _show_end(
    survey: Survey,
    removed: Sequence[Orphan],
    requested: Sequence[tuple[Window, Window]],
    console: Console,
    *,
    dry_run: bool,
    waited: bool,
    mended: bool,
) -> None:
    if removed:
        console.print(f"removed {len(removed)} orphaned files, {sum(one.size for one in removed)} bytes")
    if survey.is_sound:
        console.print("nothing is wrong")
    elif dry_run and survey.integrity.repairable:
        stretches = [f"{stretch[0].key} to {stretch[-1].key}" for stretch in survey.integrity.repairable]
        console.print(f"would compute again: {', '.join(stretches)}", highlight=False)
    elif requested and waited:
        console.print("computed again" if mended else "not all of it is computed yet: look at the runs")


def _facts(
    survey: Survey,
    removed: Sequence[Orphan],
    requested: Sequence[tuple[Window, Window]],
    now: datetime,
    *,
    mended: bool,
) -> dict[str, Any]:
    integrity, log, gone = survey.integrity, survey.log, {orphan.location for orphan in removed}
    return {
        "from": integrity.start,
        "to": integrity.end,
        "watermark": survey.watermark,
        "sound": survey.is_sound,
        "windows": integrity.windows,
        "files": integrity.files,
        "broken": [
            {
                "window": broken.window.key,
                "fault": str(broken.fault),
                "reasons": list(broken.reasons),
                "blocked_by": list(broken.blocked_by),
            }
            for broken in integrity.broken
        ],
        "damaged_heartbeats": [
            {"file": damaged.path, "why": damaged.why, "windows": [window.key for window in damaged.windows]}
            for damaged in integrity.inputs
        ],
        "unknown": list(integrity.untold),
        "log": {
            "entries_read": log.read,
            "damaged": [{"entry": number, "why": why} for number, why in log.damaged],
            "forgotten": [{"entry": number, "why": why} for number, why in log.forgotten],
            "lost_end": list(log.lost),
        },
        "orphans": [
            {
                "file": orphan.location,
                "what": orphan.what,
                "bytes": orphan.size,
                "age_seconds": int((now - orphan.written_at).total_seconds()),
                "removed": orphan.location in gone,
            }
            for orphans in survey.orphans.values()
            for orphan in orphans
        ],
        "requested": [{"from": first.key, "to": last.key} for first, last in requested],
        "mended": mended,
    }


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(repair)

"""The operator's command that lets stragglers go, after showing what is outstanding."""

import getpass
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pipeline.cli.options import moment
from pipeline.cli.output import console as wide_console
from pipeline.cli.output import print_json
from pipeline.clock import SystemClock, from_us, iso, to_us
from pipeline.durations import format_duration
from pipeline.errors import LakeError
from pipeline.lake.layout import Lake
from pipeline.quality.outstanding import Outstanding, landed_by_second, outstanding
from pipeline.settings import Settings, load_settings
from pipeline.watermark.decision import Decision
from pipeline.watermark.histogram import BUCKET_US, bucket_of, bucket_start
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading
from pipeline.watermark.state import DecisionRecord, Released, WatermarkState
from pipeline.windows import Window, Windowing

LINES = 20
"""The most lines of outstanding publish times that are printed."""


def release(
    before: Annotated[
        datetime,
        typer.Option(parser=moment, help="A publish time with its zone, such as 2026-11-21T05:20:00Z."),
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, for scripts; without --yes it only shows.")
    ] = False,
) -> None:
    """Let go what was published before a time and has not landed, so that it no longer holds the watermark.

    It shows first what is outstanding, as tracking and the lake know it, and what the watermark would become. What is
    let go is late when it lands.
    """
    settings, clock = load_settings(), SystemClock()
    now = clock.now()
    if before > now:
        raise typer.BadParameter(f"--before {iso(before)} is in the future; it is {iso(now)} now")
    lake = Lake(settings.lake, settings.message.fields, clock)
    log = lake.tracking_log()
    entry = Released(before=before, at=now, by=operator())
    preview = look_ahead(log.catch_up(), entry, lake, settings)
    console = wide_console()
    if not as_json:
        show(preview, console)
    if yes or (not as_json and typer.confirm("Let these go?")):
        log.append(entry)
    elif not as_json:
        print("nothing was released")
        raise typer.Exit(code=1)
    if as_json:
        print_json({**facts(preview), "released": yes, "by": entry.by})
    else:
        print(f"released by {entry.by}; the next tick of the sensor `tracking` decides")


@dataclass(frozen=True, slots=True)
class Preview:
    """What a release would let go, and what would follow: the decision with the newest readings as it would be made
    without it and with it, and the windows that would close."""

    release: Released
    base: EffectiveReading
    outstanding: Outstanding
    without: Decision
    released: Decision
    closing: list[Window]
    notes: tuple[str, ...]


def look_ahead(state: WatermarkState, release: Released, lake: Lake, settings: Settings) -> Preview:
    """What a release would do. Raises LakeError, with the reason, where there is nothing to release."""
    decided = state.decided
    if decided is None:
        raise LakeError(
            f"no decision has been made in {settings.lake.uri} yet, so nothing is held; start the pipeline with "
            "`tidemark up`, and look again after the first tick"
        )
    base = decided.decision.base
    if base is None:
        raise LakeError(
            "what base has outstanding was never read, so there is nothing to judge a release by; `tidemark explain` "
            "says more, the last ticks' problems say why"
        )
    if base.oldest_unacked >= release.before:
        raise LakeError(
            f"nothing to release: base has acknowledged all that was published before {iso(base.oldest_unacked)}, "
            f"which is past {iso(release.before)}; `tidemark explain` says what holds the watermark"
        )
    if state.released_before is not None and state.released_before >= release.before:
        raise LakeError(
            f"nothing to release: what was published before {iso(state.released_before)} has been let go already"
        )
    since, until = bucket_start(bucket_of(base.oldest_unacked)), bucket_start(_bucket_after(release.before))
    heartbeats = lake.heartbeats()
    landed = landed_by_second(heartbeats, lake.quarantine(), since, until)
    without = decide_again(state, decided, settings.policy)
    released = decide_again(state.after(state.number + 1, release), decided, settings.policy)
    found = outstanding(state.histogram, landed, since, until)
    return Preview(
        release=release,
        base=base,
        outstanding=found,
        without=without,
        released=released,
        closing=closing(
            without.watermark, released.watermark, heartbeats.extent().oldest_event_time, state, settings.windowing
        ),
        notes=tuple(notes(state, decided.decision, found)),
    )


def _bucket_after(moment: datetime) -> int:
    return -(-to_us(moment) // BUCKET_US)


def decide_again(state: WatermarkState, decided: DecisionRecord, policy: Policy) -> Decision:
    """The decision that the newest readings give here, at the moment at which they were new."""
    return state.decide(decided.base, decided.tracking, policy, decided.decision.at).decision


def closing(
    watermark: datetime | None,
    released: datetime | None,
    landed_since: datetime | None,
    state: WatermarkState,
    windowing: Windowing,
) -> list[Window]:
    """The windows that close between two watermarks; where there was none, from the first message on, tracked or
    landed: tracking may be the younger."""
    tracked_us = state.histogram.oldest_event_us
    tracked_since = None if tracked_us is None else from_us(tracked_us)
    begin = min((moment for moment in (tracked_since, landed_since) if moment is not None), default=None)
    since = begin if watermark is None else watermark
    if released is None or since is None:
        return []
    return [window for window in windowing.closed_at(released, since) if not window.is_closed_at(watermark)]


def notes(state: WatermarkState, decision: Decision, found: Outstanding) -> Iterator[str]:
    """What the figures leave out."""
    if state.complete_from is not None and state.complete_from > found.since:
        known_from = iso(state.complete_from)
        yield f"Tracking does not know all that was published before {known_from}: more may be outstanding."
    if decision.tracking is not None and decision.tracking.oldest_unacked < found.before:
        read_up_to = iso(decision.tracking.oldest_unacked)
        yield f"Tracking has read up to {read_up_to}: what was published since may be missing here."
    if found.tracked and not found.at_most:
        yield (
            "All of it that tracking knows has landed since the newest decision: the next one may need no release. Or "
            "base holds copies that have landed, and whose acknowledgement was lost."
        )


def operator() -> str:
    """Who releases: the user's name, or number where it has none, and the machine's."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = f"uid-{os.getuid()}"
    return f"{user}@{socket.gethostname()}"


def facts(preview: Preview) -> dict[str, Any]:
    """All that is shown, for scripts."""
    found, closing = preview.outstanding, preview.closing
    return {
        "before": preview.release.before,
        "base_oldest_unacked": preview.base.oldest_unacked,
        "decided_at": preview.without.at,
        "tracked": found.tracked,
        "landed": found.landed,
        "outstanding_at_most": found.at_most,
        "oldest_event_time": found.oldest_event_time,
        "outstanding": [
            {
                "published_from": line.start,
                "published_before": line.end,
                "tracked": line.tracked,
                "landed": line.landed,
                "outstanding_at_most": line.outstanding,
                "oldest_event_time": line.oldest_event_time,
            }
            for line in found.in_lines(LINES)
        ],
        "notes": preview.notes,
        "without": _stands(preview.without),
        "with": _stands(preview.released),
        "windows_closing": len(closing),
        "first_window": closing[0].key if closing else None,
        "last_window": closing[-1].key if closing else None,
    }


def _stands(decision: Decision) -> Mapping[str, Any]:
    return {"watermark": decision.watermark, "reason": decision.reason}


def show(preview: Preview, console: Console) -> None:
    """What is outstanding, and what would follow, for people."""

    def say(text: str) -> None:
        console.print(text, highlight=False)

    before = preview.release.before
    oldest = f"[bold]{iso(preview.base.oldest_unacked)}[/] (as of {iso(preview.without.at)})."
    if preview.base.names_a_message:
        say(f"Base's oldest unacknowledged message was published at {oldest}")
    else:
        say(f"Base has acknowledged everything that was published before {oldest}")
    _show_outstanding(preview.outstanding, console)
    for note in preview.notes:
        say(f"[yellow]mind[/] {note}")
    without, released = preview.without.watermark, preview.released.watermark
    if released is None or released == without:
        say(f"The watermark would not move: {preview.released.sentence()}.")
        return
    further = "" if without is None else f", {format_duration(_whole_seconds(released - without))} further"
    stands = "Without a release there is no watermark" if without is None else f"Without a release it is {iso(without)}"
    say(f"{stands} ({preview.without.reason}).")
    say(f"[bold]With it, it would be {iso(released)}[/]{further} ({preview.released.reason}).")
    say(_closing(preview.closing))
    say(
        f"What was published before {iso(before)} and lands after that with an event time below the watermark is late. "
        "Until base has landed all of it, the watermark goes no further than what was published from then on."
    )


def _show_outstanding(found: Outstanding, console: Console) -> None:
    table = Table(box=None, header_style="bold", padding=(0, 2))
    table.add_column("published", no_wrap=True)
    for name in ("tracked", "landed", "outstanding, at most"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("least event time", no_wrap=True)
    for line in found.in_lines(LINES):
        counts = (f"{count:,}" for count in (line.tracked, line.landed, line.outstanding))
        width = format_duration(line.end - line.start)
        table.add_row(f"{iso(line.start)} + {width}", *counts, _time(line.oldest_event_time))
    totals = (f"{count:,}" for count in (found.tracked, found.landed, found.at_most))
    table.add_row("[bold]all[/]", *totals, _time(found.oldest_event_time))
    console.print(
        f"Published from {iso(found.since)} and before {iso(found.before)}, whole seconds; a line for each time of "
        "which something may be outstanding. What was delivered to tracking twice counts twice.",
        highlight=False,
    )
    console.print(table)


def _closing(windows: list[Window]) -> str:
    if not windows:
        return "No window would close."
    if len(windows) == 1:
        return f"One window would close: {windows[0].key}."
    return f"{len(windows):,} windows would close: {windows[0].key} to {windows[-1].key}."


def _time(moment: datetime | None) -> str:
    return "—" if moment is None else iso(moment)


def _whole_seconds(duration: timedelta) -> timedelta:
    return timedelta(seconds=round(duration.total_seconds()))


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(release)

"""`tidemark release`: show outstanding messages, and stop the watermark from waiting for them."""

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import typer

from tidemark.pipeline.cli.here import here, no_decision
from tidemark.pipeline.cli.options import AsJson, option, past, time_option
from tidemark.pipeline.cli.output import columns, console, key_range, print_json, text_of
from tidemark.pipeline.clock import MICROSECOND, format_duration, from_us, iso, rough
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.figures import counted, oldest_of
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.notes import ClosedWindows
from tidemark.pipeline.quality.lost import Outstanding, landed_by_second, outstanding
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import bucket_of, bucket_start
from tidemark.pipeline.watermark.readings import EffectiveReading
from tidemark.pipeline.watermark.state import Released, WatermarkState

LINES = 20
"""Maximum number of printed lines. Each line covers a range of publish times with outstanding messages."""


def release(
    before: Annotated[datetime, time_option("Release messages published before this time.", parser=past)],
    yes: Annotated[bool, option("Release without asking.", "--yes")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop the watermark from waiting for messages.

    Releases messages that were published before a time and have not landed. Before it asks, the command compares
    tracking with the lake, and shows which messages are outstanding and where the watermark would move. A released
    message is late if it lands below the watermark. --json without --yes releases nothing.
    """
    at = here("release")
    log = at.lake.tracking_log()
    entry = Released(before=before, at=at.clock.now(), by=operator())
    preview = look_ahead(log.catch_up_to_append(), entry, at.lake, at.settings)
    if not as_json:
        _show(preview)
    if yes or (not as_json and typer.confirm("Release these messages?")):
        log.append(entry)
    elif not as_json:
        print("nothing was released")
        raise typer.Exit(code=1)
    if as_json:
        print_json({**_facts(preview), "released": yes, "by": entry.by})
    else:
        print(f"released by {entry.by}; the release takes effect at the next tick of the sensor `tracking`")


@dataclass(frozen=True, slots=True)
class Preview:
    """The effect of a release.

    `outstanding` contains the messages that would be released. `without` is the decision without the release,
    and `released` is the decision with it. Both use the newest readings. `closing` contains the windows that would
    close. `notes` say how accurate the preview is.
    """

    release: Released
    base: EffectiveReading
    outstanding: Outstanding
    without: Decision
    released: Decision
    closing: ClosedWindows
    notes: tuple[str, ...]


def look_ahead(state: WatermarkState, release: Released, lake: Lake, settings: Settings) -> Preview:
    """Compute the effect of a release. Raises LakeError if there is nothing to release, or if the effect is unknown."""
    if (decided := state.record) is None:
        raise no_decision(settings)
    if (base := decided.decision.base) is None:
        raise LakeError(
            "base's backlog was never read, so the effect of a release is unknown; `tidemark explain` says what is "
            "missing, and `tidemark status` says why"
        )
    if base.oldest_unacked >= release.before:
        raise LakeError(
            f"nothing to release before {iso(release.before)}: base has acknowledged all messages published before "
            f"{iso(base.oldest_unacked)}; `tidemark explain` says what holds the watermark"
        )
    if state.released_before is not None and state.released_before >= release.before:
        raise LakeError(f"nothing to release: all published before {iso(state.released_before)} is already released")
    # Decide by the newest readings, as of the time of their decision.
    without, released = (
        before.decide(decided.base, decided.tracking, settings.policy, decided.decision.at).decision
        for before in (state, state.after(state.number + 1, release))
    )
    # Whole seconds: the second that contains the time is shown whole.
    since = bucket_start(bucket_of(base.oldest_unacked))
    until = bucket_start(bucket_of(release.before - MICROSECOND) + 1)
    found = outstanding(state.histogram, landed_by_second(lake, since, until), since, until)
    if (begin := without.watermark) is None:  # from the first message, tracked or landed: tracking may have begun later
        tracked_us = state.histogram.oldest_event_us
        tracked = None if tracked_us is None else from_us(tracked_us)
        begin = oldest_of(tracked, lake.heartbeats().extent().oldest_event_time)
    closing = ClosedWindows(None, None, 0)
    if begin is not None and released.watermark is not None:
        closing = ClosedWindows.between(begin, released.watermark, settings.windowing)
    notes = tuple(_notes(state, decided.decision, found))
    return Preview(release, base, found, without, released, closing, notes)


def _notes(state: WatermarkState, decision: Decision, found: Outstanding) -> Iterator[str]:
    if state.complete_from is not None and state.complete_from > found.since:
        known_from = iso(state.complete_from)
        yield f"Tracking does not know all messages published before {known_from}: more may be outstanding."
    if decision.tracking is not None and decision.tracking.oldest_unacked < found.before:
        read_up_to = iso(decision.tracking.oldest_unacked)
        yield f"Tracking has read up to {read_up_to}: messages published since may be missing here."
    if found.tracked and not found.at_most:
        yield (
            "All of these messages have landed since the newest decision, so the next decision may not need a release. "
            "Or base still holds messages that have landed, because their acknowledgement was lost."
        )


def operator() -> str:
    """Return `user@machine` for the user who runs this command. Without a name, `user` is the user id: `uid-1000`."""
    user = f"uid-{os.getuid()}"
    with suppress(KeyError, OSError):
        user = getpass.getuser()
    return f"{user}@{socket.gethostname()}"


def _facts(preview: Preview) -> dict[str, Any]:
    found, closing = preview.outstanding, preview.closing
    return {
        "before": preview.release.before,
        "base_oldest_unacked": preview.base.oldest_unacked,
        "decided_at": preview.without.at,
        "tracked": found.tracked,
        "landed": found.landed,
        "outstanding_at_most": found.at_most,
        "oldest_event_time": found.oldest_event_time,
        "outstanding": found.in_lines(LINES),
        "notes": preview.notes,
        "without": {"watermark": preview.without.watermark, "reason": preview.without.reason},
        "with": {"watermark": preview.released.watermark, "reason": preview.released.reason},
        "windows_closing": closing.count,
        "first_window": closing.first,
        "last_window": closing.last,
    }


def _show(preview: Preview) -> None:
    say, found, closing = console().print, preview.outstanding, preview.closing
    oldest = f"[bold]{iso(preview.base.oldest_unacked)}[/] (as of {iso(preview.without.at)})."
    if preview.base.names_a_message:
        say(f"Base's oldest unacknowledged message was published at {oldest}")
    else:
        say(f"Base has acknowledged everything that was published before {oldest}")
    say(
        f"Messages published at or after {iso(found.since)} and before {iso(found.before)}, in whole seconds: one line "
        "per time range that may have outstanding messages. A message delivered to tracking twice counts twice."
    )
    names = ("tracked", "landed", "outstanding, at most", "earliest event time")
    table = columns("published", right=names, gap=2, folds=True)
    for line in found.in_lines(LINES):
        published = f"{iso(line.published_from)} + {format_duration(line.published_before - line.published_from)}"
        figures = (line.tracked, line.landed, line.outstanding_at_most, line.oldest_event_time)
        table.add_row(published, *map(text_of, figures))
    table.add_row("[bold]all[/]", *map(text_of, (found.tracked, found.landed, found.at_most, found.oldest_event_time)))
    say(table)
    for note in preview.notes:
        say(f"[yellow]note[/] {note}")
    without, released = preview.without.watermark, preview.released.watermark
    if released is None or released == without:
        say(f"The watermark would not move: {preview.released.sentence()}.")
        return
    stands, further = "Without a release there is no watermark", ""
    if without is not None:
        stands, further = f"Without a release it is {iso(without)}", f", {rough(released - without)} further"
    say(f"{stands} ({preview.without.reason}).")
    say(f"[bold]With the release, it would be {iso(released)}[/]{further} ({preview.released.reason}).")
    which = f": {key_range(closing.first, closing.last)}" if closing.count else ""
    say(f"{counted(closing.count, 'window')} would close{which}.")
    say(
        f"A message published before {iso(preview.release.before)} that lands later is late if its event time is below "
        "the watermark. Until base has landed all such messages, every message published from that time on holds the "
        "watermark: release again to go further."
    )

"""`tidemark watermark`: show the watermark and its reason, or wait until it reaches an event time."""

from dataclasses import asdict
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer

from tidemark.pipeline.cli.here import lake_of, refuse_attached
from tidemark.pipeline.cli.options import AsJson, Span, duration_option, moment, only_with, option, window_named
from tidemark.pipeline.cli.output import printed, safe
from tidemark.pipeline.clock import SystemClock, format_duration, iso, rough
from tidemark.pipeline.errors import WatermarkNotReached, WindowNotComputed
from tidemark.pipeline.observe.explained import decision_facts
from tidemark.pipeline.quality.gate import Stage, Watermark, stage_of, wait_until, watermark_of, words
from tidemark.pipeline.settings import load_settings

WAITS = Span(minutes=10)
"""Default timeout of --wait-for. It is short, because an orchestrator can retry the task that waits."""


def watermark(
    wait_for: Annotated[str | None, option("Wait for this event time or window's end.", metavar="<time|key>")] = None,
    computed: Annotated[bool, option("With --wait-for: also wait until the window is computed.", "--computed")] = False,
    timeout: Annotated[timedelta, duration_option("Maximum time to wait with --wait-for.")] = WAITS,
    as_json: AsJson = False,
) -> None:
    """Print the watermark, or wait until it reaches a time.

    Reads only the lake. --wait-for also takes a window's key, and then waits for the window's end. --computed also
    waits until the window's rows are in heartbeat_diffs, or there is nothing to compute. Exit code 1: the time was not
    reached, or the window was not computed.
    """
    if wait_for is None:
        only_with("--wait-for", timeout=timeout != WAITS, computed=computed)
    settings, clock, stage = load_settings(), SystemClock(), None
    lake, began = lake_of(settings, clock), clock.monotonic()
    look = partial(watermark_of, lake, settings)
    if wait_for is None:
        found = look()
    else:
        window = window_named(settings, wait_for)
        event_time = window.end if window.key == wait_for else moment(wait_for)
        if computed:
            refuse_attached(settings, "watermark --computed")
            if window.key != wait_for:
                raise typer.BadParameter(f"--computed needs a window's key; {wait_for} is a time")
        found = wait_until(look, lambda now: now.has_reached(event_time), timeout, clock)
        if not found.has_reached(event_time):
            raise WatermarkNotReached(_not_reached(found, event_time, timeout, clock.now()))
        if computed:
            left = timeout - timedelta(seconds=clock.monotonic() - began)
            stage = wait_until(partial(stage_of, window, lake, settings), lambda now: not now.passes, left, clock)
            if stage.passes:
                raise WindowNotComputed(
                    f"window {window.key} is closed, but was not computed within {format_duration(timeout)}; `tidemark "
                    "status` shows how many windows wait and what fails"
                )
            if stage not in (Stage.COMPUTED, Stage.EMPTY):
                raise WindowNotComputed(words(stage, window))
    facts, closed = watermark_facts(found) | ({} if stage is None else {"stage": stage}), found.newest_closed
    terminal = printed(facts, as_json=as_json)
    if stage is not None:
        terminal.print(safe(words(stage, window)), soft_wrap=True)
    terminal.print(safe(found.sentence()), soft_wrap=True)
    if found.decided_at is not None:
        ago = rough(max(clock.now() - found.decided_at, timedelta(0)))
        newest = "no window is closed" if closed is None else f"newest closed window {closed.key}"
        terminal.print(
            f"[dim]decided {ago} ago, {iso(found.decided_at)}; {newest}; {safe(found.lake)}[/]", soft_wrap=True
        )


def watermark_facts(found: Watermark) -> dict[str, Any]:
    """Return the watermark, its decision (time, reason, sentence and evidence), the newest closed window, and the lake.
    Missing values are None."""
    evidence = {} if found.decision is None else decision_facts(found.decision)
    closed = found.newest_closed
    return {
        "watermark": found.event_time,
        "decided_at": found.decided_at,
        "reason": found.reason,
        "sentence": found.sentence(),
        "evidence": {name: evidence.get(name) for name in ("candidate", "released_before", "pin")},
        "newest_closed_window": None if closed is None else {"window": closed.key, **asdict(closed)},
        "lake": found.lake,
    }


def _not_reached(found: Watermark, event_time: datetime, waited: timedelta, now: datetime) -> str:
    said = f"the watermark has not reached {iso(event_time)} within {format_duration(waited)}: "
    if found.decided_at is None:
        return said + found.sentence()
    if found.event_time is None:
        said += "there is no watermark yet"
    else:
        said += f"it is at {iso(found.event_time)}, {rough(event_time - found.event_time)} short"
    return f"{said}. {found.sentence()} (decided {rough(now - found.decided_at)} ago, at {iso(found.decided_at)})"

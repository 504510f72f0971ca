"""`tidemark explain`: explain a decision, as text or as JSON."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Annotated

from rich.console import Console

from tidemark.pipeline.cli.here import lake_of, no_decision
from tidemark.pipeline.cli.options import AsJson, apart_from, option, past, time_option
from tidemark.pipeline.cli.output import columns, console, grid, printed, safe, warn, write_text
from tidemark.pipeline.clock import SystemClock, format_duration, iso, rough
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.observe.explained import drawn, read_by_stream, read_decided, read_explained
from tidemark.pipeline.observe.facts import of_runs, ticks_details
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.quality.failing import TicksNow, read_failing, read_ticks
from tidemark.pipeline.quality.landings import Counts, unknown_sentence
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.watermark.explain.explanation import TRIED, Alternative, Explanation, RuleOutcome

NAMED = 5
"""Maximum number of printed streams. Those at the pin come first, then those with most messages. The JSON has all."""

MARKS = {RuleOutcome.PASSED: "[green]✓[/]", RuleOutcome.HELD: "[yellow]✗[/]", RuleOutcome.DECIDED: "[bold green]→[/]"}


def explain(
    at: Annotated[
        datetime | None, time_option("The decision in force at this time, instead of the newest.", parser=past)
    ] = None,
    picture: Annotated[Path | None, option("Only draw the histogram and the lag in this SVG file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why the watermark stands where it does."""
    if picture is not None:
        apart_from("--picture", json=as_json)
    settings, now = load_settings(), SystemClock().now()
    lake, tick = lake_of(settings), settings.watermark.tick
    log = lake.tracking_log()
    if (found := read_decided(log, at)) is None:
        raise no_decision(settings)
    explanation, facts = read_explained(log, *found, tick)
    if picture is not None:
        write_text(picture, drawn(facts), "picture", "--picture")
        print(f"wrote {printable(str(picture))}")
        return
    try:
        over, of_streams = read_by_stream(lake, settings, found[1])
        failed = read_failing(lake, settings.windowing, now) if at is None else None
        ticks = read_ticks(lake, settings, found[1].decision, now) if at is None else TicksNow(())
    except LakeError:  # the explanation itself needs no table
        show_explanation(explanation, found[0], facts["problem"], console(quiet=as_json))
        raise
    failing = {
        "runs_failing": None if failed is None else failed.sentence(),
        "ticks_failing": [one.sentence() for one in ticks.failing],
        **ticks_details(ticks),
    }
    terminal = printed({**facts, **of_streams, **failing}, as_json=as_json)
    show_explanation(explanation, found[0], facts["problem"], terminal)
    show_rejected(of_streams["rejected_payloads_by_stream"], of_streams["rejected_payloads_that_pin"], terminal)
    show_passed_over(over, terminal)
    warn(terminal, *ticks.sentences, *of_runs(failed), apart=True)


def show_explanation(explanation: Explanation, number: int, problem: str | None, terminal: Console) -> None:
    """Print the decision and the verdict of each rule. Then print what holds the watermark, what would move it, and
    which settings would have changed the decision."""

    def show(heading: str, *rows: tuple[str, ...]) -> None:
        terminal.print(f"\n[bold]{heading}[/]")
        terminal.print(grid(len(rows[0]), rows))

    def bullets(*texts: str | None) -> list[tuple[str, str]]:
        return [("•", safe(text)) for text in texts if text]

    decision = explanation.decision
    terminal.print(f"[bold]{safe(decision.sentence())}.[/]")
    terminal.print(f"[dim]decided at {iso(decision.at)}, entry {number} of the log[/]")
    if explanation.alternatives is None:
        terminal.print(f"\nThe decision's rules are unknown: {safe((problem or '').rstrip('. '))}.")
        return
    reached = [condition for condition in explanation.conditions if condition.outcome is not RuleOutcome.NOT_REACHED]
    show("The rules, in their order", *((MARKS[one.outcome], one.rule, safe(one.text)) for one in reached))
    left = [condition.rule for condition in explanation.conditions if condition.outcome is RuleOutcome.NOT_REACHED]
    if left:
        terminal.print(f"[dim]·  not applied: {', '.join(left)}[/]")
    if explanation.pin or explanation.ahead:
        show("Where it stands", *bullets(explanation.pin, explanation.ahead))
    show("What would move it", *bullets(*explanation.moves))
    others = [(f"{other.setting} = {other.value}", _effect(other), other.cost) for other in explanation.alternatives]
    none = bullets(f"None of the settings that were tried: {', '.join(TRIED)}.")
    show("Which setting would have changed this decision", *(others or none))


def show_rejected(rejected: Mapping[str, int], pins: Mapping[str, int], terminal: Console) -> None:
    """Print, per stream, how many messages the decision counts although their payloads were rejected. Also print how
    many of these messages have the publish and event time of the pin, the message that holds the watermark. Print
    nothing if no message was rejected."""
    if not rejected:
        return
    which = "one of them is the pin" if pins else "none of them is the pin"
    terminal.print(
        f"\n[bold]Rejected payloads[/]\nMessages that this decision counts, although their payloads were rejected: "
        f"{sum(rejected.values()):,}; {which}. Such a message holds the watermark until base has acknowledged it and "
        "it has left the band, unless its lag exceeds the band:"
    )
    rows = ((stream, rejected[stream], pins.get(stream, 0)) for stream in islice({**pins, **rejected}, NAMED))
    terminal.print(columns("stream", right=["messages", "at the pin"], rows=rows, gap=2, folds=True))


def show_passed_over(over: Counts, terminal: Console) -> None:
    """Print, per stream, how many messages lag more than `max_lag`, so that the watermark does not wait for them. Also
    print the hours for which this number is unknown."""
    if over.damaged:
        terminal.print(f"\n{safe(unknown_sentence('passed over', over.damaged))}")
    if not over.total:
        return
    terminal.print(
        f"\n[bold]Messages that lag more than max_lag[/]\n{over.total:,} of the {over.rows:,} messages that were "
        f"published in the hour before the decision and have landed, from {len(over.by_stream):,} streams:"
    )
    rows = islice(over.by_stream.items(), NAMED)
    terminal.print(columns("stream", right=["messages"], rows=rows, gap=2, folds=True))


def _effect(other: Alternative) -> str:
    if other.watermark is None:
        return f"no watermark ({other.reason})"
    if other.further_seconds is None:
        return f"a watermark, {iso(other.watermark)} ({other.reason})"
    if not other.further_seconds:
        return f"the same watermark ({other.reason})"
    way, by = "further" if other.further_seconds > 0 else "further back", timedelta(seconds=abs(other.further_seconds))
    text = format_duration(by) if by < timedelta(seconds=1) else rough(by)
    return f"{text} {way}: {iso(other.watermark)} ({other.reason})"

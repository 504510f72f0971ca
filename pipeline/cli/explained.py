"""How an explanation is written: for people, and as JSON."""

from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from pipeline.clock import iso
from pipeline.durations import format_duration
from pipeline.watermark.explain.alternatives import TRIED, Alternative
from pipeline.watermark.explain.conditions import Outcome, rough
from pipeline.watermark.explain.explanation import Explanation

MARKS = {
    Outcome.PASSED: "[green]✓[/]",
    Outcome.HELD: "[yellow]✗[/]",
    Outcome.DECIDED: "[bold green]→[/]",
}


def explanation_facts(explanation: Explanation) -> dict[str, Any]:
    """All that is said, and the numbers by themselves."""
    decision = explanation.decision
    return {
        "at": decision.at,
        "watermark": decision.watermark,
        "reason": decision.reason,
        "candidate": decision.candidate,
        "released_before": decision.released_before,
        "conditions": [
            {"rule": condition.rule, "outcome": condition.outcome, "text": condition.text}
            for condition in explanation.conditions
        ],
        "pin": None
        if decision.pin is None
        else {
            "published_from": decision.pin.published_from,
            "event_time": decision.pin.min_event_time,
            "messages": decision.pin.count,
            "text": explanation.pin,
        },
        "messages_since_base": explanation.since_base,
        "messages_since_pin": explanation.since_pin,
        "moves": explanation.moves,
        "alternatives": None
        if explanation.alternatives is None
        else [
            {
                "setting": other.setting,
                "value": other.value,
                "watermark": other.watermark,
                "reason": other.reason,
                "further_seconds": None if other.further is None else other.further.total_seconds(),
                "cost": other.cost,
            }
            for other in explanation.alternatives
        ],
        "explanation": explanation.sentences(),
    }


def show_explanation(explanation: Explanation, number: int, problem: str | None, console: Console) -> None:
    """For people: what was decided, each rule with its mark, what pins it, what would move it, and which setting."""
    decision = explanation.decision
    _print(console, f"[bold]{escape(decision.sentence())}.[/]")
    _print(console, f"[dim]decided at {iso(decision.at)}, entry {number} of the log[/]")
    _heading(console, "The rules, in their order")
    rules = _grid(3)
    for condition in explanation.conditions:
        if condition.outcome is not Outcome.NOT_REACHED:
            rules.add_row(MARKS[condition.outcome], condition.rule, escape(condition.text))
    console.print(rules, highlight=False)
    left = [condition.rule for condition in explanation.conditions if condition.outcome is Outcome.NOT_REACHED]
    if left:
        _print(console, f"[dim]·  not looked at: {', '.join(left)}[/]")
    if explanation.pin or explanation.ahead:
        _heading(console, "Where it stands")
        _bullets(console, [text for text in (explanation.pin, explanation.ahead) if text])
    _heading(console, "What would move it")
    _bullets(console, explanation.moves)
    _heading(console, "Which setting would have changed this decision")
    if explanation.alternatives is None:
        _bullets(console, [f"That cannot be told: {problem}."])
    elif not explanation.alternatives:
        _bullets(console, [f"None of those that were tried: {', '.join(TRIED)}."])
    else:
        others = _grid(3)
        for other in explanation.alternatives:
            others.add_row(f"{other.setting} = {other.value}", _effect(other), other.cost)
        console.print(others, highlight=False)


def _effect(other: Alternative) -> str:
    if other.watermark is None:
        return f"no watermark ({other.reason})"
    if other.further is None:
        return f"a watermark, {iso(other.watermark)} ({other.reason})"
    if not other.further:
        return f"the same watermark ({other.reason})"
    way = "further" if other.further > timedelta(0) else "further back"
    by = abs(other.further)
    text = format_duration(by) if by < timedelta(seconds=1) else rough(by)
    return f"{text} {way}: {iso(other.watermark)} ({other.reason})"


def _grid(columns: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for column in range(columns):
        table.add_column(no_wrap=column < columns - 1)
    return table


def _bullets(console: Console, texts: list[str]) -> None:
    table = _grid(2)
    for text in texts:
        table.add_row("•", escape(text))
    console.print(table, highlight=False)


def _heading(console: Console, text: str) -> None:
    _print(console, f"\n[bold]{text}[/]")


def _print(console: Console, text: str) -> None:
    console.print(text, highlight=False)

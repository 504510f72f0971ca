"""`tidemark explain`: a decision's explanation, for people and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any

from rich.console import Console

from tidemark.pipeline.cli.options import AsJson, lake_of, no_decision, time_option
from tidemark.pipeline.cli.output import columns, console, grid, of_runs, print_json, safe, warn, without_stop
from tidemark.pipeline.clock import SystemClock, from_us, iso, to_us
from tidemark.pipeline.durations import format_duration, rough
from tidemark.pipeline.errors import CorruptObject, LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.history import decision_in_force, first_decision, standing_before
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.rejected_payloads import RejectedPayload, by_stream, rejected_payloads
from tidemark.pipeline.quality.affected import not_known
from tidemark.pipeline.quality.failing import read_failing, read_failing_ticks, standstill
from tidemark.pipeline.quality.passed_over import PassedOver, read_passed_over
from tidemark.pipeline.quality.status import LOST_WITHIN
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.explain.conditions import Outcome
from tidemark.pipeline.watermark.explain.explanation import TRIED, Alternative, Explanation
from tidemark.pipeline.watermark.explain.explanation import explain as explain_decision
from tidemark.pipeline.watermark.histogram import bucket_of
from tidemark.pipeline.watermark.state import DecisionRecord

NAMED = 5
"""Streams that are named, those with the most messages; the JSON has all."""

MARKS = {Outcome.PASSED: "[green]✓[/]", Outcome.HELD: "[yellow]✗[/]", Outcome.DECIDED: "[bold green]→[/]"}


def explain(
    at: Annotated[
        datetime | None, time_option("Explain the decision in force at this time, instead of the newest.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why the watermark stands where it does, what would move it, and which setting would."""
    settings = load_settings()
    lake = lake_of(settings)
    log = lake.tracking_log()
    number, decided = _decision(log, at, settings)
    try:
        explanation, problem = explain_decision(decided, standing_before(log, number)), None
    except CorruptObject as error:
        explanation, problem = Explanation(decided.decision), str(error)
    if explanation.alternatives is None and problem is None:
        problem = "the decision does not follow from the entries before it; `tidemark replay --from-lake` compares them"
    over, rejected = _passed_over(lake, decided), _rejected(lake, decided.decision, settings)
    now = SystemClock().now()
    failed = read_failing(lake, settings.windowing, now) if at is None else None
    ticks = read_failing_ticks(lake, now) if at is None else []
    standing = standstill(decided.decision, settings.watermark.tick, now) if at is None else []
    if as_json:
        facts = {
            "log_entry": number,
            "problem": problem,
            "passed_over_by_stream": over.by_stream,
            "rejected_payloads_by_stream": by_stream(rejected),
            "rejected_payloads_that_pin": by_stream(_pinning(decided.decision, rejected)),
            "runs_failing": None if failed is None else failed.sentence(),
            "ticks_failing": [one.sentence() for one in ticks],
        }
        print_json({**explanation_facts(explanation), **facts})
    else:
        show_explanation(explanation, number, problem, console())
        show_rejected(rejected, _pinning(decided.decision, rejected), console())
        show_passed_over(over, console())
        warn(console(), [*standing, *of_runs(failed), *(one.sentence() for one in ticks)])


def _rejected(lake: Lake, decision: Decision, settings: Settings) -> list[RejectedPayload]:
    """The messages that the decision looked at and that are in quarantine for their payload alone."""
    if decision.bound is None:
        return []
    start, requeued = decision.bound.start, lake.requeued().every_id()
    return rejected_payloads(lake.quarantine(), settings.contract, start, decision.at, requeued)


def _pinning(decision: Decision, rejected: Sequence[RejectedPayload]) -> list[RejectedPayload]:
    """Those with the times of the pin: its publish second, and its event time."""
    pin = decision.pin
    if pin is None:
        return []
    times = pin.publish_bucket, to_us(pin.min_event_time)
    return [message for message in rejected if (bucket_of(from_us(message.publish_us)), message.event_us) == times]


def _passed_over(lake: Lake, decided: DecisionRecord) -> PassedOver:
    """What its `max_lag` passes over, of what was published in the hour before the decision and has landed since."""
    max_lag, at = decided.policy.max_lag, decided.decision.at
    return PassedOver() if max_lag is None else read_passed_over(lake.heartbeats(), max_lag, at - LOST_WITHIN, at)


def _decision(log: TrackingLog, at: datetime | None, settings: Settings) -> tuple[int, DecisionRecord]:
    # Times are printed to the millisecond: a copied one must find a decision anywhere within that millisecond.
    found = decision_in_force(log, None if at is None else at.replace(microsecond=at.microsecond // 1000 * 1000 + 999))
    if found is not None:
        return found
    first = first_decision(log)
    if at is None or first is None:
        raise no_decision(settings)
    raise LakeError(f"no decision was in force at {iso(at)}: the first in the log was made at {iso(first.decision.at)}")


def explanation_facts(explanation: Explanation) -> dict[str, Any]:
    """The explanation as plain facts: its sentences, and the numbers by themselves."""
    others, facts = explanation.alternatives, decision_facts(explanation.decision)
    pin = facts["pin"]
    return {
        **facts,
        "pin": None if pin is None else {**pin, "text": explanation.pin},
        "conditions": [asdict(condition) for condition in explanation.conditions],
        "messages_since_base": explanation.since_base,
        "messages_since_pin": explanation.since_pin,
        "moves": explanation.moves,
        "alternatives": None if others is None else [_alternative(other) for other in others],
        "explanation": explanation.sentences(),
    }


def decision_facts(decision: Decision) -> dict[str, Any]:
    """A decision as plain facts, without the entries that it was made from."""
    pin = decision.pin
    return {
        "at": decision.at,
        "watermark": decision.watermark,
        "reason": decision.reason,
        "candidate": decision.candidate,
        "released_before": decision.released_before,
        "pin": None
        if pin is None
        else {"published_from": pin.published_from, "event_time": pin.min_event_time, "messages": pin.count},
    }


def _alternative(other: Alternative) -> dict[str, Any]:
    facts = asdict(other)
    further = facts.pop("further")
    return {**facts, "further_seconds": further}


def show_explanation(explanation: Explanation, number: int, problem: str | None, terminal: Console) -> None:
    """Print the decision, each rule with its mark, what pins the watermark, what would move it, and which setting."""

    def show(heading: str, *rows: tuple[str, ...]) -> None:
        terminal.print(f"\n[bold]{heading}[/]")
        terminal.print(grid(len(rows[0]), rows))

    def bullets(*texts: str | None) -> list[tuple[str, str]]:
        return [("•", safe(text)) for text in texts if text]

    decision = explanation.decision
    terminal.print(f"[bold]{safe(decision.sentence())}.[/]")
    terminal.print(f"[dim]decided at {iso(decision.at)}, entry {number} of the log[/]")
    if explanation.alternatives is None:
        terminal.print(f"\nIts rules are not known: {safe(without_stop(problem or ''))}.")
        return
    reached = [condition for condition in explanation.conditions if condition.outcome is not Outcome.NOT_REACHED]
    show("The rules, in their order", *((MARKS[one.outcome], one.rule, safe(one.text)) for one in reached))
    left = [condition.rule for condition in explanation.conditions if condition.outcome is Outcome.NOT_REACHED]
    if left:
        terminal.print(f"[dim]·  not looked at: {', '.join(left)}[/]")
    if explanation.pin or explanation.ahead:
        show("Where it stands", *bullets(explanation.pin, explanation.ahead))
    show("What would move it", *bullets(*explanation.moves))
    others = [(f"{other.setting} = {other.value}", _effect(other), other.cost) for other in explanation.alternatives]
    none = bullets(f"None of those that were tried: {', '.join(TRIED)}.")
    show("Which setting would have changed this decision", *(others or none))


def show_rejected(rejected: Sequence[RejectedPayload], pinning: Sequence[RejectedPayload], terminal: Console) -> None:
    """Print the streams of the messages that were looked at and rejected for their payload, if any."""
    if not rejected:
        return
    pins = by_stream(pinning)
    terminal.print(
        f"\n[bold]Payloads that were rejected[/]\n{len(rejected):,} of the messages that were looked at are in "
        f"quarantine for their payload, and {'one of them is the pin' if pins else 'none of them is the pin'}. Such a "
        "message holds the watermark by its times until it has landed and left the band, unless it lags more than that:"
    )
    everywhere = by_stream(rejected)
    rows = ((stream, everywhere[stream], pins.get(stream, 0)) for stream in islice({**pins, **everywhere}, NAMED))
    terminal.print(columns("stream", right=["messages", "at the pin"], rows=rows, gap=2))


def show_passed_over(over: PassedOver, terminal: Console) -> None:
    """Print which streams `max_lag` passes over, if any, and of which hours that is not known."""
    if over.damaged:
        terminal.print(f"\n{safe(not_known('passed over', over.damaged))}")
    if not over.total:
        return
    terminal.print(
        f"\n[bold]What max_lag passes over[/]\n{over.total:,} of the {over.rows:,} messages that were published in the "
        f"hour before and have landed, of {len(over.by_stream):,} streams:"
    )
    terminal.print(columns("stream", right=["messages"], rows=islice(over.by_stream.items(), NAMED), gap=2))


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

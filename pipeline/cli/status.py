"""`tidemark status`: where the watermark stands, what has landed and been computed, what is late, missed and lost."""

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from pipeline.cli.options import AsJson, lake_of
from pipeline.cli.output import console, facts_table, print_json, safe
from pipeline.clock import SystemClock
from pipeline.quality.status import LakeReport, Losses, read_losses, read_report
from pipeline.settings import load_settings


def status(as_json: AsJson = False) -> None:
    """Show where the watermark stands, and what has landed and been computed."""
    settings, clock = load_settings(), SystemClock()
    now, lake = clock.now(), lake_of(settings, clock)
    losses = read_losses(lake, settings.windowing, settings.windows.lookback, now)
    facts = {**lake_facts(read_report(lake, settings.windowing), now), **loss_facts(losses)}
    if as_json:
        print_json({**facts, **loss_details(losses)})
        return
    terminal = console()
    terminal.print(f"[dim]{safe(settings.lake.uri)}[/]")
    terminal.print(facts_table({name.replace("_", " "): value for name, value in facts.items()}))


def lake_facts(report: LakeReport, now: datetime) -> dict[str, Any]:
    """The newest decision, how far its watermark is behind `now`, and what the tables hold."""
    decision, watermark = report.state.decision, report.state.watermark
    computed = list(report.computed)
    facts: dict[str, Any] = {
        "watermark": watermark,
        "behind_now": None if watermark is None else timedelta(seconds=round((now - watermark).total_seconds())),
        "reason": None if decision is None else str(decision.reason),
        "decided": None if decision is None else decision.sentence(),
        "decided_at": None if decision is None else decision.at,
        "log_entry": report.state.number,
        "histogram_cells": len(report.state.histogram),
        "landed_rows": report.landed_rows,
        "landed_through": report.landed_through,
        "quarantined": dict(report.quarantined),
        "windows_computed": len(computed),
        "first_window": computed[0] if computed else None,
        "last_window": computed[-1] if computed else None,
        "rows_computed": sum(report.computed.values()),
        "windows_waiting": len(report.waiting),
    }
    if decision is not None and decision.base is not None:
        facts["base_oldest_unacked"] = decision.base.oldest_unacked
    if decision is not None and decision.tracking is not None:
        facts["tracking_oldest_unacked"] = decision.tracking.oldest_unacked
    return facts


def loss_facts(losses: Losses) -> dict[str, Any]:
    """The totals: late within the last day, lost within the last hour, everything missed and stale."""
    missed, late, lost = losses.missed, losses.late, losses.lost
    return {
        "late": late.total,
        "late_copies": late.copies,
        "late_since": late.since,
        "missed": missed.total,
        "missed_and_mended": missed.mended,
        "windows_stale": len(missed.stale),
        "first_stale_window": missed.stale[0].window.key if missed.stale else None,
        "lost_at_least": lost.at_least,
        "lost_at_most": lost.at_most,
        "lost_since": lost.since,
    }


def loss_details(losses: Losses) -> dict[str, Any]:
    """The same by window, by stream and by minute."""
    missed, late = losses.missed, losses.late
    return {
        "late_by_window": dict(late.by_window),
        "late_by_stream": dict(late.by_stream),
        "missed_by_window": dict(missed.by_window),
        "missed_by_stream": dict(missed.by_stream),
        "stale_windows": [{**asdict(stale), "window": stale.window.key} for stale in missed.stale],
        "lost_by_minute": [asdict(minute) for minute in losses.lost.minutes],
    }

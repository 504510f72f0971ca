"""Commands that look at the lake alone: status, explain, diffs. They need neither Dagster nor Pub/Sub."""

import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer
from rich.table import Table

from pipeline.cli.explained import explanation_facts, show_explanation
from pipeline.cli.losses import loss_details, loss_facts
from pipeline.cli.run import AsJson, wide_console
from pipeline.clock import SystemClock, iso
from pipeline.durations import format_duration
from pipeline.errors import CorruptObject, LakeError
from pipeline.lake.layout import Lake
from pipeline.lake.log.history import decision_in_force, first_decision, standing_before
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.lake.tables.diffs import PARTITION
from pipeline.quality.status import LakeReport, read_losses, read_report
from pipeline.settings import Settings, load_settings
from pipeline.watermark.explain.explanation import explain as explain_decision
from pipeline.watermark.state import DecisionRecord, WatermarkState


def moment(text: str, otherwise: str = "not a time") -> datetime:
    """A time on the command line; it must say its zone."""
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is {otherwise} such as 2026-11-21T05:22:10Z") from error
    if read.tzinfo is None:
        raise typer.BadParameter(f"{text} has no time zone; write it as {read.isoformat()}Z")
    try:
        return read.astimezone(UTC)
    except OverflowError as error:
        raise typer.BadParameter(f"{text} is beyond the first or the last year in UTC; give one within") from error


def status(as_json: AsJson = False) -> None:
    """Where the watermark stands, and what has landed and been computed."""
    settings, clock = load_settings(), SystemClock()
    report = read_report(_lake(settings), settings.windowing)
    losses = read_losses(_lake(settings), settings.windowing, settings.windows.lookback, clock.now())
    facts = {**_facts(report, clock.now()), **loss_facts(losses)}
    if as_json:
        print(json.dumps({**facts, **loss_details(losses)}, default=plain))
        return
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column()
    for name, value in facts.items():
        table.add_row(name.replace("_", " "), words(value))
    console = wide_console()
    console.print(f"[dim]{settings.lake.uri}[/]", highlight=False)
    console.print(table)


def explain(
    at: Annotated[
        datetime | None,
        typer.Option(parser=moment, help="Explain the decision that was in force at this time, with its zone."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Why the watermark stands where it stands, what would move it, and which setting would."""
    settings = load_settings()
    log = _lake(settings).tracking_log()
    number, decided = _decision(log, at, settings.lake.uri)
    try:
        state: WatermarkState | None = standing_before(log, number)
        gap = None
    except CorruptObject as error:
        state, gap = None, str(error)
    explanation = explain_decision(decided, state)
    if as_json:
        print(json.dumps({**explanation_facts(explanation), "log_entry": number, "problem": gap}, default=plain))
    else:
        show_explanation(explanation, number, gap, wide_console())


def _decision(log: TrackingLog, at: datetime | None, uri: str) -> tuple[int, DecisionRecord]:
    # Times are printed to the millisecond, so that one which is copied stands for all of its millisecond.
    found = decision_in_force(log, None if at is None else at.replace(microsecond=at.microsecond // 1000 * 1000 + 999))
    if found is not None:
        return found
    first = first_decision(log)
    if at is None or first is None:
        raise LakeError(
            f"no decision has been made in {uri} yet; start the pipeline with `tidemark up`, and look again after the "
            "first tick"
        )
    raise LakeError(f"no decision was in force at {iso(at)}: the log's first is of {iso(first.decision.at)}")


def diffs(
    window: Annotated[
        str | None,
        typer.Option(help="A window's key (2026-11-21T05-20Z), or any time within it (2026-11-21T05:22:10Z)."),
    ] = None,
    stream: Annotated[str | None, typer.Option(help="A stream's id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most rows to print; the newest are kept.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print rows of heartbeat_diffs: of one window, of one stream, or of both."""
    if window is None and stream is None:
        raise typer.BadParameter("name a window or a stream")
    settings = load_settings()
    table = _lake(settings).diffs().table.current()
    if table is None:
        raise LakeError(f"no window has been computed in {settings.lake.uri} yet; `tidemark status` says what waits")
    wanted: Any = None
    if window is not None:
        wanted = pc.field(PARTITION) == window_key(settings, window)
    if stream is not None:
        of_stream = pc.field("stream_id") == stream
        wanted = of_stream if wanted is None else wanted & of_stream
    rows = (
        table.to_pyarrow_dataset()
        .to_table(filter=wanted)
        .sort_by([("event_time", "ascending"), ("stream_id", "ascending")])
    )
    shown = rows.slice(max(0, rows.num_rows - limit))
    if as_json:
        for row in shown.to_pylist():
            print(json.dumps(row, default=plain))
        return
    _print_rows(shown, rows.num_rows)


def _print_rows(rows: pa.Table, of: int) -> None:
    """What fits a terminal: the comparisons, without the previous values that they were made from."""
    console = wide_console()
    table = Table(box=None, header_style="bold", padding=(0, 1))
    left_out = ("publish_time", "message_id")
    shown = [name for name in rows.column_names if not name.startswith("previous_") and name not in left_out]
    for name in shown:
        table.add_column(name, no_wrap=True)
    for row in rows.select(shown).to_pylist():
        table.add_row(*("" if value is None else words(value) for value in row.values()))
    console.print(table)
    console.print(f"[dim]{rows.num_rows} of {of} rows; --json has every column[/]", highlight=False)


def _facts(report: LakeReport, now: datetime) -> dict[str, Any]:
    decision, state = report.state.decision, report.state
    computed = list(report.computed)
    facts: dict[str, Any] = {
        "watermark": state.watermark,
        "behind_now": None if state.watermark is None else _rounded(now - state.watermark),
        "reason": None if decision is None else str(decision.reason),
        "decided": None if decision is None else decision.sentence(),
        "decided_at": None if decision is None else decision.at,
        "log_entry": state.number,
        "histogram_cells": len(state.histogram),
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


def window_key(settings: Settings, text: str) -> str:
    """The key of a window that the command line names by its key or by a time within it."""
    try:
        return settings.windowing.named(text).key
    except ValueError:
        pass
    return settings.windowing.containing(moment(text, "neither a window's key nor a time")).key


def _lake(settings: Settings) -> Lake:
    return Lake(settings.lake, settings.message.fields, SystemClock())


def _rounded(duration: timedelta) -> timedelta:
    return timedelta(seconds=round(duration.total_seconds()))


def plain(value: Any) -> Any:
    """A value as JSON has it: moments as people read them, durations in seconds."""
    if isinstance(value, datetime):
        return iso(value)
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def words(value: Any) -> str:
    """A value as people read it."""
    match value:
        case None:
            return "—"
        case datetime():
            return iso(value)
        case timedelta():
            return format_duration(value)
        case dict():
            return ", ".join(f"{count} {name}" for name, count in sorted(value.items())) or "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def register(app: typer.Typer) -> None:
    """Add these commands."""
    for command in (status, explain, diffs):
        app.command()(command)

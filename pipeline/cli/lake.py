"""What the lake holds: `tidemark status` in figures, and `tidemark diffs`, rows of heartbeat_diffs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Annotated, Any

import pyarrow.compute as pc
import typer

from tidemark.pipeline.cli.options import MOST_ROWS, AsJson, AsJsonLines, lake_of, no_window, option, window_named
from tidemark.pipeline.cli.output import columns, console, facts_table, of_runs, print_json, safe, shown_rows, warn
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.ingest.progress import progress_of, recent_looks
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.failures import FailedTick
from tidemark.pipeline.lake.tables.quarantine import Reasons
from tidemark.pipeline.lake.tables.rounds import last_round
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.quality.affected import not_known
from tidemark.pipeline.quality.failing import (
    Failing,
    read_failing,
    read_failing_tables,
    read_failing_ticks,
    standstill,
)
from tidemark.pipeline.quality.null_fields import NullFields, read_null_fields
from tidemark.pipeline.quality.passed_over import read_passed_over
from tidemark.pipeline.quality.quarantined import read_reasons
from tidemark.pipeline.quality.status import LOST_WITHIN, LakeReport, Losses, read_losses, read_report, read_waiting
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import IngestSettings
from tidemark.pipeline.watermark.holding import passed_over
from tidemark.pipeline.watermark.state import WatermarkState

LEFT_OUT = ("publish_time", "message_id")
"""Columns that people do not see, beside the previous values: the comparisons must fit a terminal."""

KEY_WIDTH = len("2026-11-21T05-20Z")
"""A window's key is shown whole however many columns there are: it is what `--window` takes."""


def status(as_json: AsJson = False) -> None:
    """Show where the watermark stands, and what has landed and been computed."""
    settings, clock = load_settings(), SystemClock()
    now, lake = clock.now(), lake_of(settings, clock)
    if settings.pubsub.attach:
        _print_attached(settings, lake, now, as_json=as_json)
        return
    windowing, lookback = settings.windowing, settings.windows.lookback
    losses, report = read_losses(lake, windowing, lookback, now, clock), read_report(lake)
    waiting = read_waiting(lake, windowing, lookback, report.state.watermark)
    failed, of_tables = read_failing(lake, windowing, now), read_failing_tables(lake, now)
    ticks = read_failing_ticks(lake, now)
    standing = standstill(report.state.decision, settings.watermark.tick, now)
    facts = {
        **lake_facts(report, read_reasons(lake), len(waiting), now),
        **ingest_facts(lake, settings.ingest, report.state.number, now),
        **({"standing_still": standing[0]} if standing and as_json else {}),
        **failing_facts(failed),
        **failing_ticks_facts(ticks),
        "tables_failing": {each.table: each.failures for each in of_tables},
        **loss_facts(losses),
        **passed_over_facts(report, lake, now),
        **null_facts(read_null_fields(lake.heartbeats(), settings.message.kinds, now - LOST_WITHIN)),
        **usage_facts(report.state, now, settings.pubsub.snapshot_bytes_a_day),
    }
    if as_json:
        print_json({**facts, "table_failures": list(map(asdict, of_tables)), **loss_details(losses)})
        return
    failures = [*(one.sentence() for one in of_tables), *(one.sentence() for one in ticks)]
    _print(settings, facts, [*standing, *of_runs(failed), *failures])


def lake_facts(report: LakeReport, quarantined: Reasons, waiting: int, now: datetime) -> dict[str, Any]:
    """The newest decision, how far its watermark is behind `now`, what the tables hold, and how many windows wait."""
    computed = list(report.computed)
    return {
        **log_facts(report.state, now),
        "landed_rows": report.landed.rows,
        "landed_through": report.landed.newest_event_time,
        "quarantined": dict(quarantined.waiting),
        "requeued": dict(quarantined.requeued),
        "windows_computed": len(computed),
        "first_window": computed[0] if computed else None,
        "last_window": computed[-1] if computed else None,
        "rows_computed": sum(report.computed.values()),
        "windows_waiting": waiting,
        **reading_facts(report.state),
    }


def log_facts(state: WatermarkState, now: datetime) -> dict[str, Any]:
    """The newest decision, and how far its watermark is behind `now`."""
    decision, watermark = state.decision, state.watermark
    return {
        "watermark": watermark,
        "behind_now": None if watermark is None else timedelta(seconds=round((now - watermark).total_seconds())),
        "reason": None if decision is None else str(decision.reason),
        "decided": None if decision is None else decision.sentence(),
        "decided_at": None if decision is None else decision.at,
        "log_entry": state.number,
        "histogram_cells": len(state.histogram),
    }


def reading_facts(state: WatermarkState) -> dict[str, Any]:
    """What the newest decision knew of both subscriptions."""
    decision, facts = state.decision, {}
    if decision is not None and decision.base is not None:
        facts["base_oldest_unacked"] = decision.base.oldest_unacked
    if decision is not None and decision.tracking is not None:
        facts["tracking_oldest_unacked"] = decision.tracking.oldest_unacked
    return facts


def _print_attached(settings: Settings, lake: Lake, now: datetime, *, as_json: bool) -> None:
    """What the log tells, where somebody else reads base and there are no tables."""
    state, ticks = lake.tracking_log().catch_up(), read_failing_ticks(lake, now)
    standing = standstill(state.decision, settings.watermark.tick, now)
    used = usage_facts(state, now, settings.pubsub.snapshot_bytes_a_day)
    facts = {
        "base_read_by_others": settings.pubsub.base_path,
        **log_facts(state, now),
        **reading_facts(state),
        **({"standing_still": standing[0]} if standing and as_json else {}),
        **failing_ticks_facts(ticks),
        **{name: used for name, used in used.items() if not name.startswith("landed")},
    }
    if as_json:
        print_json(facts)
        return
    _print(settings, facts, [*standing, *(one.sentence() for one in ticks)])


def _print(settings: Settings, facts: Mapping[str, Any], warnings: Iterable[str]) -> None:
    terminal = console()
    terminal.print(f"[dim]{safe(settings.lake.uri)}[/]")
    terminal.print(facts_table({name.replace("_", " "): value for name, value in facts.items()}))
    warn(terminal, warnings)


def ingest_facts(lake: Lake, ingest: IngestSettings, number: int, now: datetime) -> dict[str, Any]:
    """How reading goes, where it is behind, by the log up to an entry; and the newest round of readers on Spark, where
    these pull all the time."""
    behind = progress_of(recent_looks(lake.tracking_log(), number, now))
    facts: dict[str, Any] = {"reading": "; ".join(one.sentence() for one in behind)} if behind else {}
    if not ingest.is_continuous:
        return facts
    newest = last_round(lake.heartbeats())
    if newest is None:
        return {**facts, "last_round": None}
    return {
        **facts,
        "last_round": newest.number,
        "last_round_run": newest.run,
        "last_round_at": newest.at,
        "last_round_ago": timedelta(seconds=round((now - newest.at).total_seconds())),
    }


def failing_facts(failed: Failing | None) -> dict[str, Any]:
    """How many of the newest failures of runs still stand, and what they have in common."""
    if failed is None:
        return {"runs_failed": 0}
    names = ("since", "last", "first_window", "last_window", "reason")
    return {"runs_failed": failed.failures, **{f"runs_failed_{name}": getattr(failed, name) for name in names}}


def failing_ticks_facts(failed: Sequence[FailedTick]) -> dict[str, Any]:
    """The sensors whose newest tick failed: how often, and the newest error of all. Those that wait with some of their
    messages: what for. Nothing without any."""
    waiting, failed = {one.sensor: one.reason for one in failed if one.waits}, [one for one in failed if not one.waits]
    facts: dict[str, Any] = {"ticks_waiting": waiting} if waiting else {}
    if not failed:
        return facts
    newest = max(failed, key=lambda one: one.last)
    return {
        **facts,
        "ticks_failed": {one.sensor: one.failures for one in failed},
        "ticks_failed_since": min(one.since for one in failed),
        "ticks_failed_last": newest.last,
        "ticks_failed_reason": newest.reason,
    }


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
        **({"missed_not_checked": f"{missed.left} commits, manifests or hours are left"} if missed.left else {}),
        **unknown_facts({"missed": missed.damaged, "late": late.damaged, "lost": lost.damaged}),
    }


def unknown_facts(damaged: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Which figures leave out the event hours of damaged files, which are given with their hours for each figure."""
    return {f"{what}_unknown": not_known(what.replace("_", " "), files) for what, files in damaged.items() if files}


def passed_over_facts(report: LakeReport, lake: Lake, now: datetime) -> dict[str, Any]:
    """What `max_lag` passes over, if the newest decision has one: in the live histogram, and of what was published in
    the last hour and has landed, by stream."""
    record = report.state.record
    if record is None or record.policy.max_lag is None:
        return {}
    max_lag = record.policy.max_lag
    found = read_passed_over(lake.heartbeats(), max_lag, now - LOST_WITHIN, now)
    return {
        "max_lag": max_lag,
        "passed_over": passed_over(report.state.histogram, max_lag),
        "passed_over_by_stream": found.by_stream,
        **unknown_facts({"passed_over": found.damaged}),
    }


def null_facts(found: NullFields) -> dict[str, Any]:
    """The compared fields that are null in all that landed in the last hour, if any: in how many rows, and since when
    at least one of them is."""
    if not found.fields:
        return {}
    return {
        "null_fields": {field.name: field.rows for field in found.fields},
        "null_fields_since": min(field.since for field in found.fields),
    }


def usage_facts(state: WatermarkState, now: datetime, budget: int | None) -> dict[str, Any]:
    """What ticks asked of Pub/Sub in the last day, as the log tells: bytes of snapshots by estimate, the rest counted.
    `tracked_bytes` and `landed_bytes` are the sizes of what was pulled. The pulls of rounds are among them."""
    used = state.account.last_day(now)
    facts = {name: value for name, value in asdict(used).items() if name != "seconds"}
    return {**{f"{name}_last_day": value for name, value in facts.items()}, "snapshot_budget": budget}


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


def diffs(
    window: Annotated[
        str | None,
        option("A window's key (2026-11-21T05-20Z), or any time within it (2026-11-21T05:22:10Z)."),
    ] = None,
    stream: Annotated[str | None, option("A stream's id.")] = None,
    limit: Annotated[int, option("The most rows to print; the newest are kept.", min=1, max=MOST_ROWS)] = 20,
    as_json: AsJsonLines = False,
) -> None:
    """Print rows of heartbeat_diffs: of one window, of one stream, or of both."""
    if window is None and stream is None:
        raise typer.BadParameter("name a window or a stream")
    if stream is not None and not stream.isascii() and stream != stream.encode(errors="ignore").decode():
        raise typer.BadParameter(f"--stream {stream} is not UTF-8; no stream has such an id")
    settings = load_settings()
    table = lake_of(settings).diffs().table.current()
    if table is None:
        raise no_window(settings)
    wanted: Any = pc.scalar(True)
    if window is not None:
        wanted &= pc.field(PARTITION) == window_named(settings, window).key
    if stream is not None:
        wanted &= pc.field("stream_id") == stream
    found = table.to_pyarrow_dataset().to_table(filter=wanted)
    found = found.sort_by([("event_time", "ascending"), ("stream_id", "ascending")])
    rows = found.slice(max(0, found.num_rows - limit))
    if as_json:
        for row in rows.to_pylist():
            print_json(row)
        return
    names = [name for name in rows.column_names if not name.startswith("previous_") and name not in LEFT_OUT]
    shown = columns(*names, rows=shown_rows(rows.select(names)))
    shown.columns[names.index(PARTITION)].min_width = KEY_WIDTH
    terminal = console()
    terminal.print(shown)
    terminal.print(f"[dim]{rows.num_rows} of {found.num_rows} rows; --json has every column[/]")

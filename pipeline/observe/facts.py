"""Converts the lake's state to plain facts, which `tidemark status --json` prints and the page shows."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.ingest.progress import progress_of, recent_looks
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.delta_log import last_round
from tidemark.pipeline.lake.tables.quarantine import Reasons
from tidemark.pipeline.quality.failing import (
    Failing,
    TicksNow,
    read_failing,
    read_failing_tables,
    read_ticks,
    with_age,
)
from tidemark.pipeline.quality.missed.affected import not_known
from tidemark.pipeline.quality.quarantined import read_reasons
from tidemark.pipeline.quality.recent import NullFields, read_null_fields, read_passed_over
from tidemark.pipeline.quality.status import LOST_WITHIN, LakeReport, Losses, read_losses, read_report, read_waiting
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import IngestSettings
from tidemark.pipeline.watermark.histogram import passed_over
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.pipeline.windows import Window, Windowing

NEWEST_WINDOWS = 10
"""The number of newest windows that are listed, and the greatest number of older windows that wait or are stale."""

OF_A_TABLE = ("table", "failures", "since", "last", "reason")
"""The fields of `Failing` that are reported for a custom table."""


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The facts that are printed, the details that only the JSON has, and warnings as sentences: `of_runs` about runs
    that fail, `of_ticks` about overdue decisions and failing ticks."""

    facts: Mapping[str, Any]
    details: Mapping[str, Any]
    of_runs: Sequence[str]
    of_ticks: Sequence[str]


def read_status(lake: Lake, settings: Settings, now: datetime, clock: Clock | None = None) -> LakeStatus:
    """Read the status. With a clock, the check for missed heartbeats stops after a few seconds. Raises LakeError."""
    if settings.pubsub.attach:
        return _read_attached(lake, settings, now)
    windowing, lookback = settings.windowing, settings.windows.lookback
    losses, report = read_losses(lake, windowing, lookback, now, clock), read_report(lake)
    waiting = read_waiting(lake, windowing, lookback, report.state.watermark)
    failed, of_tables = read_failing(lake, windowing, now), read_failing_tables(lake, now)
    ticks, tick = read_ticks(lake, settings, report.state.decision, now), settings.watermark.tick
    facts = {
        **lake_facts(report, read_reasons(lake), len(waiting), tick, now),
        **ingest_facts(lake, settings.ingest, report.state.number, now),
        **failing_facts(failed),
        **failing_ticks_facts(ticks.failing),
        "tables_failing": {each.table: each.failures for each in of_tables},
        **loss_facts(losses),
        **passed_over_facts(report, lake, now),
        **null_facts(read_null_fields(lake.heartbeats(), settings.message.kinds, now - LOST_WITHIN)),
        **usage_facts(report.state, now, settings.pubsub.snapshot_bytes_a_day),
    }
    details = {
        **ticks_details(ticks),
        "table_failures": [{name: getattr(one, name) for name in OF_A_TABLE} for one in of_tables],
        **loss_details(losses),
        "windows": list(window_facts(report, waiting, losses, windowing, now)),
    }
    runs = [*of_runs(failed), *(one.sentence() for one in of_tables)]
    return LakeStatus(facts, details, runs, ticks.sentences)


def _read_attached(lake: Lake, settings: Settings, now: datetime) -> LakeStatus:
    """Read the status from the log alone: with `pubsub.attach`, others read base and there are no tables."""
    state, tick = lake.tracking_log().catch_up(), settings.watermark.tick
    ticks = read_ticks(lake, settings, state.decision, now)
    used = usage_facts(state, now, settings.pubsub.snapshot_bytes_a_day)
    facts = {
        "base_read_by_others": settings.pubsub.base_path,
        **log_facts(state, tick, now),
        "rejected": state.rejected,
        **reading_facts(state),
        **failing_ticks_facts(ticks.failing),
        **{name: used for name, used in used.items() if not name.startswith("landed")},
    }
    return LakeStatus(facts, ticks_details(ticks), (), ticks.sentences)


def of_runs(failed: Failing | None) -> list[str]:
    """Return the warning about failing runs, if any, and where to find their logs."""
    return [] if failed is None else [f"{failed.sentence().removesuffix('.')}. Dagster's UI has each run's log"]


def window_facts(
    report: LakeReport, waiting: Sequence[Window], losses: Losses, windowing: Windowing, now: datetime
) -> Iterator[dict[str, Any]]:
    """Yield the newest windows, newest first, and then older windows that wait or are stale: the state, the row count,
    and the time from the window's end until it was computed, or until now if it is not computed."""
    stale = {one.window for one in losses.missed.stale}
    newest = windowing.number_of(now)
    recent = [windowing.numbered(newest - number) for number in range(NEWEST_WINDOWS)]
    older = sorted({*waiting, *stale} - set(recent), reverse=True)[:NEWEST_WINDOWS]
    for window in [*recent, *older]:
        computed_at = report.computed_at.get(window.key)
        state = "empty"
        if window in stale:
            state = "stale"
        elif computed_at is not None:
            state = "computed"
        elif not window.is_closed_at(report.state.watermark):
            state = "open"
        elif window in waiting:
            state = "waiting"
        after_end = None if state == "empty" else (computed_at or now) - window.end
        yield {
            "window": window.key,
            "state": state,
            "rows": report.computed.get(window.key),
            "seconds_after_end": after_end and round(after_end.total_seconds(), 1),
        }


def lake_facts(
    report: LakeReport, quarantined: Reasons, waiting: int, tick: timedelta, now: datetime
) -> dict[str, Any]:
    """Return the newest decision, the watermark's lag behind `now`, the tables' contents, and the number of waiting
    windows."""
    computed = list(report.computed)
    return {
        **log_facts(report.state, tick, now),
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


def log_facts(state: WatermarkState, tick: timedelta, now: datetime) -> dict[str, Any]:
    """Return the newest decision, and the watermark's lag behind `now`."""
    decision, watermark = state.decision, state.watermark
    return {
        "watermark": watermark,
        "behind_now": None if watermark is None else timedelta(seconds=round((now - watermark).total_seconds())),
        "reason": None if decision is None else str(decision.reason),
        "decided": None if decision is None else with_age(decision.sentence(), decision.at, tick, now),
        "decided_at": None if decision is None else decision.at,
        "log_entry": state.number,
        "histogram_cells": len(state.histogram),
    }


def reading_facts(state: WatermarkState) -> dict[str, Any]:
    """Return the readings of both subscriptions in the newest decision, and the number of messages since the lake began
    that tracking received only after a reading had passed them."""
    decision, facts = state.decision, dict[str, Any](reading_violations=state.reading_violations)
    if decision is not None and decision.base is not None:
        facts["base_oldest_unacked"] = decision.base.oldest_unacked
    if decision is not None and decision.tracking is not None:
        facts["tracking_oldest_unacked"] = decision.tracking.oldest_unacked
    return facts


def ingest_facts(lake: Lake, ingest: IngestSettings, number: int, now: datetime) -> dict[str, Any]:
    """Return the progress of reading if it is behind, by the log up to the entry `number`. With continuous readers on
    Spark, add their newest round."""
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
    """Return the number of unresolved failures of runs, and their summary."""
    if failed is None:
        return {"runs_failed": 0}
    names = ("since", "last", "first_window", "last_window", "reason")
    return {"runs_failed": failed.failures, **{f"runs_failed_{name}": getattr(failed, name) for name in names}}


def failing_ticks_facts(failed: Sequence[FailedTick]) -> dict[str, Any]:
    """Return the failure counts of the sensors whose newest tick failed, with the newest error of all, and the reasons
    of the sensors that leave messages waiting. Empty if there are none."""
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


def ticks_details(ticks: TicksNow) -> dict[str, str]:
    """Return the sentences about an overdue decision and a changed settings file, if any."""
    told = {"standing_still": ticks.standing, "settings_changed": ticks.settings}
    return {name: said for name, said in told.items() if said is not None}


def loss_facts(losses: Losses) -> dict[str, Any]:
    """Return the totals: late within the last day, lost within the last hour, and all that is missed and stale."""
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
    """Return a sentence for each figure that leaves out event hours with damaged files. `damaged` maps each figure to
    these files with their event hours."""
    return {f"{what}_unknown": not_known(what.replace("_", " "), files) for what, files in damaged.items() if files}


def passed_over_facts(report: LakeReport, lake: Lake, now: datetime) -> dict[str, Any]:
    """Return the messages that the newest decision's `max_lag` passes over: the number in the live histogram, and the
    landed ones of the last hour per stream. Empty without a `max_lag`."""
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
    """Return the compared fields that are null in all rows of the last hour, if any: the row counts, and since when the
    first of these fields is null."""
    if not found.fields:
        return {}
    return {
        "null_fields": {field.name: field.rows for field in found.fields},
        "null_fields_since": min(field.since for field in found.fields),
    }


def usage_facts(state: WatermarkState, now: datetime, budget: int | None) -> dict[str, Any]:
    """Return the requests of ticks to Pub/Sub in the last day, from the log: the bytes of snapshots are estimated, the
    rest is counted. `tracked_bytes` and `landed_bytes` are the sizes of the pulled messages, including those of
    rounds."""
    used = state.account.last_day(now)
    facts = {name: value for name, value in asdict(used).items() if name != "seconds"}
    return {**{f"{name}_last_day": value for name, value in facts.items()}, "snapshot_budget": budget}


def loss_details(losses: Losses) -> dict[str, Any]:
    """Return the losses per window, per stream and per minute."""
    missed, late = losses.missed, losses.late
    return {
        "late_by_window": dict(late.by_window),
        "late_by_stream": dict(late.by_stream),
        "missed_by_window": dict(missed.by_window),
        "missed_by_stream": dict(missed.by_stream),
        "stale_windows": [{**asdict(stale), "window": stale.window.key} for stale in missed.stale],
        "lost_by_minute": [asdict(minute) for minute in losses.lost.minutes],
    }

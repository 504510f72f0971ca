"""Gathers the state of a lake as plain facts, for `tidemark status` and for the page in the browser."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.ingest.progress import progress_of, recent_looks
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS, Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.delta_log import last_round
from tidemark.pipeline.lake.tables.heartbeats import LandedExtent
from tidemark.pipeline.lake.tables.table import by_partition
from tidemark.pipeline.quality import failing
from tidemark.pipeline.quality.landings import Late, LateHeartbeats, MissedHeartbeats, late_since, unknown_sentence
from tidemark.pipeline.quality.lost import Audit, audit
from tidemark.pipeline.quality.recent import RECENT, NullField, read_null_fields, read_passed_over, read_reasons
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import IngestSettings
from tidemark.pipeline.watermark.state import WatermarkState
from tidemark.pipeline.windows import Window, Windowing

CHECKED_FOR_SECONDS = 3.0
"""Maximum duration, in seconds, of the check for missed heartbeats in `tidemark status`. The check continues from the
checkpoint of the sensor `staleness`."""

NEWEST_WINDOWS = 10
"""Number of newest windows in a list of windows, and also the maximum number of older windows in it. An older window is
listed only if it is stale, or closed but not computed."""

OF_A_TABLE = ("table", "failures", "since", "last", "reason")
"""The fields of `Failing` that are reported for a custom table."""

Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LakeStatus:
    """The status of a lake.

    `groups`: the facts that `tidemark status` prints, by group.
    `details`: further facts, for its JSON output and for the page.
    `of_runs`: warnings about failing runs.
    `of_ticks`: warnings about overdue decisions and failing ticks.
    """

    groups: Mapping[str, Facts]
    details: Facts
    of_runs: Sequence[str] = ()
    of_ticks: Sequence[str] = ()

    @property
    def facts(self) -> Facts:
        return {name: value for facts in self.groups.values() for name, value in facts.items()}


@dataclass(frozen=True, slots=True)
class LakeReport:
    """The watermark's state, the extent of the landed rows, and the row count and commit time of each computed
    window."""

    state: WatermarkState
    landed: LandedExtent
    computed: Mapping[str, int]
    computed_at: Mapping[str, datetime]


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of a lake: missed heartbeats, late heartbeats of the last day, and messages that left the base
    subscription within the last hour without landing."""

    missed: MissedHeartbeats
    late: Late
    lost: Audit


def read_status(lake: Lake, settings: Settings, now: datetime, clock: Clock | None = None) -> LakeStatus:
    """Read the status of a lake. With a clock, the check for missed heartbeats stops after CHECKED_FOR_SECONDS. With
    `pubsub.attach`, the tables are not read, because the lake has none. Raises LakeError if the lake cannot be read."""
    if settings.pubsub.attach:
        state = read_state(lake.tracking_log())
        ticks = failing.read_ticks(lake, settings, state.decision, now)
        return LakeStatus(log_facts(state, ticks, settings, now), ticks_details(ticks), of_ticks=ticks.sentences)
    windowing, losses, report = settings.windowing, read_losses(lake, settings, now, clock), read_report(lake)
    waiting = read_waiting(lake, windowing, report.state.watermark)
    failed, of_tables = failing.read_failing(lake, windowing, now), failing.read_failing_tables(lake, now)
    ticks = failing.read_ticks(lake, settings, report.state.decision, now)
    of_log, computed = log_facts(report.state, ticks, settings, now), list(report.computed)
    groups = {
        "watermark": {**of_log["watermark"], **ingest_facts(lake, settings.ingest, report.state.number, now)},
        "lost": lost_facts(losses),
        "late": {**late_facts(losses.late), **passed_over_facts(report.state, lake, now)},
        "failing": {
            **runs_facts(failed),
            **of_log["failing"],
            "tables_failing": {each.table: each.failures for each in of_tables},
        },
        "waiting": {"windows_waiting": len(waiting), **quarantine_facts(lake)},
        "stored": {
            "landed_rows": report.landed.rows,
            "landed_through": report.landed.newest_event_time,
            "windows_computed": len(computed),
            "first_window": computed[0] if computed else None,
            "last_window": computed[-1] if computed else None,
            "rows_computed": sum(report.computed.values()),
            **null_facts(read_null_fields(lake.heartbeats(), settings.message.kinds, now - RECENT)[1]),
            **of_log["stored"],
        },
        "asked of Pub/Sub": of_log["asked of Pub/Sub"],
    }
    details = {
        **ticks_details(ticks),
        "table_failures": [{name: getattr(one, name) for name in OF_A_TABLE} for one in of_tables],
        **loss_details(losses),
        "windows": list(window_facts(report, waiting, losses, windowing, now)),
    }
    return LakeStatus(groups, details, [*of_runs(failed), *(one.sentence() for one in of_tables)], ticks.sentences)


def read_state(log: TrackingLog) -> WatermarkState:
    """Return the watermark's state. Raises CorruptObject if an entry is damaged, or if all decisions are lost."""
    state = log.catch_up()
    return log.catch_up_to_append() if state.decision is None else state


def read_report(lake: Lake) -> LakeReport:
    state, files = read_state(lake.tracking_log()), lake.table(HEARTBEAT_DIFFS).files()
    rows = {key: sum(file.rows for file in parts) for key, parts in sorted(by_partition(files).items())}
    return LakeReport(state, lake.heartbeats().extent(), rows, failing.computed_at(files))


def read_waiting(lake: Lake, windowing: Windowing, watermark: datetime | None) -> list[Window]:
    """Return the closed windows that are not computed yet, in order. Raises LakeError if the lake cannot be read."""
    closed = lake.kept_windows(windowing).closed(watermark)
    due = lake.window_index(windowing).update().due(closed)
    return sorted(windowing.numbered(number) for stretch in due for number in stretch)


def read_losses(lake: Lake, settings: Settings, now: datetime, clock: Clock | None = None) -> Losses:
    """Read the losses. The check for missed heartbeats continues from the checkpoint in the lake. With a clock, the
    check stops after CHECKED_FOR_SECONDS, and reports how much is left. Raises LakeError if the lake cannot be read."""
    log, keep, windowing = lake.tracking_log(), settings.housekeeping.quarantine, settings.windowing
    staleness, kept_from = Staleness(lake, windowing), lake.kept_windows(windowing).heartbeats_from()
    began = 0.0 if clock is None else clock.monotonic()
    return Losses(
        missed=staleness.check(lambda: clock is None or clock.monotonic() - began < CHECKED_FOR_SECONDS),
        late=LateHeartbeats(staleness.heartbeats, windowing).since(late_since(log.newest().watermark, now)),
        lost=audit(lake, now - RECENT, kept_from, keep),
    )


def of_runs(failed: failing.Failing | None) -> list[str]:
    """Return a list with the warning about failing runs; empty if no run fails."""
    return [] if failed is None else [f"{failed.sentence().removesuffix('.')}. Dagster's UI has each run's log"]


def window_facts(
    report: LakeReport, waiting: Sequence[Window], losses: Losses, windowing: Windowing, now: datetime
) -> Iterator[Facts]:
    """Yield the facts of the listed windows: state, row count, and seconds from the window's end until it was computed,
    or until now. The newest windows come first, then older ones that are stale, or closed but not computed."""
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
            "seconds_after_end": None if after_end is None else round(after_end.total_seconds(), 1),
        }


def log_facts(state: WatermarkState, ticks: failing.TicksNow, settings: Settings, now: datetime) -> dict[str, Facts]:
    """Return the facts from the tracking log and about failing ticks, by group.

    - `reading_violations` counts, since the lake began, the messages that contradict a reading: tracking received them
      after a reading of its backlog had ruled out their publish time.
    - Facts whose names end in `_last_day` are exact, except the bytes of snapshots, which are estimated.
    - `tracked_bytes` and `landed_bytes` are the sizes of the pulled messages, including messages pulled on Spark.
    """
    decision, watermark, attach = state.decision, state.watermark, settings.pubsub.attach
    now = now if decision is None else max(now, decision.at)  # it may be newer than `now`, because reads take time
    readings = {} if decision is None else decision.readings
    used = {f"{name}_last_day": value for name, value in asdict(state.account.last_day(now)).items()}
    left_out = ("seconds", "landed") if attach else ("seconds",)
    return {
        "watermark": {
            **({"base_read_by_others": settings.pubsub.base_path} if attach else {}),
            "watermark": watermark,
            "behind_now": watermark and timedelta(seconds=round((now - watermark).total_seconds())),
            "reason": decision and str(decision.reason),
            "decided": decision and decision.sentence(),
            "decided_at": decision and decision.at,
            "reading_violations": state.reading_violations,
            **{f"{name}_oldest_unacked": one.oldest_unacked for name, one in readings.items()},
        },
        "failing": failing_ticks_facts(ticks.failing),
        "waiting": {"rejected": state.rejected} if attach else {},
        "stored": {"log_entry": state.number, "histogram_cells": len(state.histogram)},
        "asked of Pub/Sub": {
            **{name: value for name, value in used.items() if not name.startswith(left_out)},
            "snapshot_budget": settings.pubsub.snapshot_bytes_a_day,
        },
    }


def ingest_facts(lake: Lake, ingest: IngestSettings, number: int, now: datetime) -> Facts:
    """Return the facts about pulling, as of entry `number` of the tracking log. If pulling is behind, `reading` is a
    sentence that says how far. With continuous readers on Spark, the facts also describe the newest round of
    reading."""
    behind = progress_of(recent_looks(lake.tracking_log(), number, now))
    facts: Facts = {"reading": "; ".join(one.sentence() for one in behind)} if behind else {}
    if ingest.is_continuous:
        facts["last_round"] = None
        if (newest := last_round(lake.heartbeats())) is not None:
            run, last, committed_at = newest
            ago = timedelta(seconds=round((now - committed_at).total_seconds()))
            facts |= {"last_round": last, "last_round_run": run, "last_round_at": committed_at, "last_round_ago": ago}
    return facts


def runs_facts(failed: failing.Failing | None) -> Facts:
    if failed is None:
        return {"runs_failed": 0}
    names = ("since", "last", "first_window", "last_window", "reason")
    return {"runs_failed": failed.failures, **{f"runs_failed_{name}": getattr(failed, name) for name in names}}


def failing_ticks_facts(failed: Sequence[FailedTick]) -> Facts:
    """Return the facts about sensors whose newest tick failed: the number of failures of each, and the newest error.
    Sensors that had to leave messages unread are listed separately, with the reason. Empty if `failed` is empty."""
    waiting, failed = {one.sensor: one.reason for one in failed if one.waits}, [one for one in failed if not one.waits]
    facts: Facts = {"ticks_waiting": waiting} if waiting else {}
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


def ticks_details(ticks: failing.TicksNow) -> dict[str, str]:
    """Return a sentence if a decision is overdue, and a sentence if the settings file has changed."""
    sentences = {"standing_still": ticks.standing, "settings_changed": ticks.settings}
    return {name: said for name, said in sentences.items() if said is not None}


def lost_facts(losses: Losses) -> Facts:
    """Return the numbers of messages lost within the last hour, of missed heartbeats, and of stale windows."""
    missed, lost = losses.missed, losses.lost
    return {
        "missed": missed.total,
        "missed_and_mended": missed.mended,
        "windows_stale": len(missed.stale),
        "first_stale_window": missed.stale[0].window.key if missed.stale else None,
        "lost_at_least": lost.at_least,
        "lost_at_most": lost.at_most,
        "lost_since": lost.since,
        "untracked": lost.untracked,
        **({"missed_not_checked": f"{missed.left} commits, manifests or hours are unchecked"} if missed.left else {}),
        **unknown_facts(missed=missed.damaged, lost=lost.damaged),
    }


def quarantine_facts(lake: Lake) -> Facts:
    """Return the numbers of rejected messages by reason, or a sentence that says that `quarantine` is damaged."""
    try:
        reasons = read_reasons(lake)
    except CorruptObject as error:
        return {"quarantined": {}, "requeued": {}, "quarantined_unknown": f"rejected messages are not counted: {error}"}
    return {"quarantined": dict(reasons.waiting), "requeued": dict(reasons.requeued)}


def late_facts(late: Late) -> Facts:
    unknown = unknown_facts(late=late.damaged)
    return {"late": late.total, "late_copies": late.copies, "late_since": late.since, **unknown}


def unknown_facts(**damaged: Mapping[str, str]) -> dict[str, str]:
    """Return a sentence for each figure that is incomplete because files are damaged. `damaged` maps the name of a
    figure to its damaged files, each with its event hour or day."""
    return {
        f"{what}_unknown": unknown_sentence(what.replace("_", " "), files) for what, files in damaged.items() if files
    }


def passed_over_facts(state: WatermarkState, lake: Lake, now: datetime) -> Facts:
    """Count the rows published in the last hour that lag more than the newest decision's `max_lag`, in all and per
    stream. The watermark does not wait for such rows. Empty if there is no `max_lag`."""
    if state.record is None or (max_lag := state.record.policy.max_lag) is None:
        return {}
    found = read_passed_over(lake.heartbeats(), max_lag, now - RECENT, now)
    return {
        "max_lag": max_lag,
        "passed_over": found.total,
        "passed_over_by_stream": found.by_stream,
        **unknown_facts(passed_over=found.damaged),
    }


def null_facts(found: Sequence[NullField]) -> Facts:
    """Return the facts about fields in `[message.fields]` that are null in all recent rows: the number of these rows
    per field, and the time since which at least one field has been null. Empty if there are no such fields."""
    if not found:
        return {}
    return {
        "null_fields": {field.name: field.rows for field in found},
        "null_fields_since": min(field.since for field in found),
    }


def loss_details(losses: Losses) -> Facts:
    missed, late = losses.missed, losses.late
    return {
        "late_by_window": dict(late.by_window),
        "late_by_stream": dict(late.by_stream),
        "missed_by_window": dict(missed.by_window),
        "missed_by_stream": dict(missed.by_stream),
        "stale_windows": [{**asdict(stale), "window": stale.window.key} for stale in missed.stale],
        "lost_by_minute": [asdict(minute) for minute in losses.lost.minutes],
    }

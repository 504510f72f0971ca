"""Makes a report on a trace in a file, or on what a lake has recently recorded and landed."""

from collections.abc import Iterable
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path

from pipeline.clock import iso, to_us
from pipeline.durations import format_duration
from pipeline.errors import NothingToTune, TraceUnusable
from pipeline.lake.layout import Lake
from pipeline.replay.log_ticks import LakeLandings, recorded_ticks
from pipeline.replay.trace import NEVER, NO_EVENT_TIME, Trace, extent_of, ticks_of
from pipeline.replay.trace_file import ParquetTrace
from pipeline.settings import Settings
from pipeline.tuning.disorder import disorder_of
from pipeline.tuning.report import TuningReport, make_report
from pipeline.tuning.sweep import BANDS, Variant, Workload
from pipeline.watermark.policy import Policy

NO_SLACK = timedelta(0)


def report_on_trace(
    path: Path,
    settings: Settings,
    made_at: datetime,
    *,
    target: float,
    bands: Iterable[timedelta] = BANDS,
) -> TuningReport:
    """Tune on a trace, at the ticks that a run would have had, without slack because a trace's times are exact.

    Raises TraceUnusable.
    """
    trace, watermark = ParquetTrace(path), settings.watermark
    disorder = disorder_of(trace, watermark.band)
    if disorder is None:
        raise TraceUnusable(f"{path} has no message with an event time; there is nothing to tune on")
    if not _has_landings(trace):
        raise TraceUnusable(
            f"in {path} no message with an event time has landed, so none can be late; write into landed_at when each "
            "one landed"
        )
    extent = extent_of(trace)
    return make_report(
        Workload(
            ticks=ticks_of(trace, watermark.tick, watermark.idle_timeout, extent=extent),
            messages=trace,
            from_us=disorder.first_publish_us,
            until_us=disorder.last_publish_us,
        ),
        disorder,
        source=f"{path}, its times taken for UTC" if trace.is_taken_for_utc else str(path),
        made_at=made_at,
        present=_without_slack(settings.policy),
        policy_of=lambda variant, band: _without_slack(policy_with(settings, variant, band)),
        target=target,
        bands=bands,
    )


def report_on_lake(
    lake: Lake,
    settings: Settings,
    made_at: datetime,
    since: timedelta,
    *,
    target: float,
    bands: Iterable[timedelta] = BANDS,
) -> TuningReport:
    """Tune on what a lake has recorded and landed in the time `since` before `made_at`: its readings at its ticks.

    The ticks before that are decided as well, as many as the widest band needs, and not counted. Raises NothingToTune
    if nothing has landed in that time.
    """
    bands = list(bands)
    begins = made_at - since
    warm_up = max([*bands, settings.watermark.band]) + 2 * settings.watermark.tick
    state, ticks = recorded_ticks(lake.tracking_log(), begins - warm_up)
    decided = list(ticks)
    landings = LakeLandings(lake.heartbeats(), begins, decided[-1].at if decided else None)
    disorder = disorder_of(landings, settings.watermark.band)
    if disorder is None or not decided:
        raise NothingToTune(
            f"nothing has landed in {settings.lake.uri} since {iso(begins)}; name a longer time with --since, now "
            f"{format_duration(since)}, or start the pipeline with `tidemark up`"
        )
    return make_report(
        Workload(
            ticks=decided,
            messages=landings,
            from_us=to_us(begins),
            until_us=disorder.last_publish_us,
            state=state,
        ),
        disorder,
        source=settings.lake.uri,
        made_at=made_at,
        present=settings.policy,
        policy_of=lambda variant, band: policy_with(settings, variant, band),
        target=target,
        bands=bands,
    )


def policy_with(settings: Settings, variant: Variant, band: timedelta) -> Policy:
    """The settings' policy with another rule, band and quantiles. A slack that follows the band follows this one."""
    watermark = settings.watermark.model_copy(update={**asdict(variant), "band": band})
    return settings.model_copy(update={"watermark": watermark}).policy


def _has_landings(trace: Trace) -> bool:
    return any(
        ((batch.landed_us != NEVER) & (batch.event_us != NO_EVENT_TIME)).any()  # of most traces, in the first batch
        for batch in trace.batches()
    )


def _without_slack(policy: Policy) -> Policy:
    return replace(policy, reading_slack=NO_SLACK, base_slack=NO_SLACK)

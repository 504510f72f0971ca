"""Where a report's figures come from: a trace in a file, or what a lake has recorded and landed of late."""

from collections.abc import Iterable
from dataclasses import replace
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
from pipeline.tuning.sweep import BANDS, TARGETS, Material, Variant
from pipeline.watermark.policy import Policy

NO_SLACK = timedelta(0)


def report_on_trace(
    path: Path,
    settings: Settings,
    made_at: datetime,
    *,
    target: float,
    bands: Iterable[timedelta] = BANDS,
    targets: Iterable[float] = TARGETS,
) -> TuningReport:
    """Tune on a trace, with the ticks that a run would have made of it and no slack: its times are exact.

    Raises TraceUnusable.
    """
    trace, watermark = ParquetTrace(path), settings.watermark
    disorder = disorder_of(trace, watermark.band)
    if disorder is None:
        raise TraceUnusable(f"{path} has no message with an event time; there is nothing to tune on")
    if not _has_landings(trace):
        raise TraceUnusable(
            f"in {path} no message with an event time has landed, so that none can be late; write when each did as its "
            "landed_at"
        )
    extent = extent_of(trace)
    return make_report(
        Material(
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
        targets=targets,
    )


def report_on_lake(
    lake: Lake,
    settings: Settings,
    made_at: datetime,
    since: timedelta,
    *,
    target: float,
    bands: Iterable[timedelta] = BANDS,
    targets: Iterable[float] = TARGETS,
) -> TuningReport:
    """Tune on what a lake has recorded and landed since so long ago: its real readings at its real ticks.

    The ticks before that, as many as the widest band needs, are decided as well and not counted. Raises
    NothingToTune where nothing has landed since then.
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
        Material(
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
        targets=targets,
    )


def policy_with(settings: Settings, variant: Variant, band: timedelta) -> Policy:
    """The settings' policy with another rule and band. A slack that is left to the band goes with it."""
    watermark = settings.watermark.model_copy(
        update={
            "rule": variant.rule,
            "band": band,
            "quantile": variant.quantile,
            "frontier_quantile": variant.frontier_quantile,
        }
    )
    return settings.model_copy(update={"watermark": watermark}).policy


def _has_landings(trace: Trace) -> bool:
    return any(
        ((batch.landed_us != NEVER) & (batch.event_us != NO_EVENT_TIME)).any()  # of most traces, in the first batch
        for batch in trace.batches()
    )


def _without_slack(policy: Policy) -> Policy:
    return replace(policy, reading_slack=NO_SLACK, base_slack=NO_SLACK)

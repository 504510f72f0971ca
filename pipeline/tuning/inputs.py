"""Reports on a trace in a file, or on what a lake has recently recorded and landed."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np

from tidemark.pipeline.clock import format_duration, iso, to_us
from tidemark.pipeline.errors import NothingToTune, TraceUnusable
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.quarantine import rejected_payloads
from tidemark.pipeline.replay.log_ticks import LakeLandings, LogMessages, recorded_ticks
from tidemark.pipeline.replay.trace import NEVER, CohortKey, Trace, ticks_at, ticks_of
from tidemark.pipeline.replay.trace_file import ParquetTrace
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.cohorts import Cohorts, cohorts_of
from tidemark.pipeline.tuning.disorder import disorder_of
from tidemark.pipeline.tuning.report import TuningReport, make_report
from tidemark.pipeline.tuning.sweep import BANDS, Workload


def report_on_trace(
    path: Path, settings: Settings, made_at: datetime, *, target: float, bands: Iterable[timedelta] = BANDS
) -> TuningReport:
    """Tune on a trace, at the ticks that a run would have had, and without slack, because a trace's times are exact.

    Raises TraceUnusable.
    """
    settings = _without_slack(settings)
    trace, exact = ParquetTrace(path), settings.watermark
    disorder = disorder_of(trace, exact.band)
    if disorder is None:
        raise TraceUnusable(f"{path} has no message with an event time; there is nothing to tune on")
    if not any((batch.valid().landed_us != NEVER).any() for batch in trace.batches()):
        raise TraceUnusable(
            f"in {path} no message with an event time has landed, so none can be late; write into landed_at when each "
            "one landed"
        )
    workload = Workload(
        ticks=ticks_of(trace, exact.tick, exact.idle_timeout),
        messages=trace,
        from_us=disorder.first_publish_us,
        until_us=disorder.last_publish_us,
    )
    return make_report(workload, disorder, settings, source=_named(trace), made_at=made_at, target=target, bands=bands)


def report_on_lake(
    lake: Lake,
    settings: Settings,
    made_at: datetime,
    since: timedelta,
    *,
    target: float,
    bands: Iterable[timedelta] = BANDS,
) -> TuningReport:
    """Tune on what a lake has recorded and landed in the time `since` before `made_at`, with its readings at its ticks.

    Earlier ticks are decided too, as many as the widest band needs, but not counted. Requeued messages are excluded:
    they landed late because of the contract, which no band changes. Raises NothingToTune if nothing has landed in that
    time.
    """
    bands = list(bands)
    begins = made_at - since
    warm_up = max([*bands, settings.watermark.band]) + 2 * settings.watermark.tick
    state, ticks = recorded_ticks(lake.tracking_log(), begins - warm_up)
    decided = list(ticks)
    requeued = lake.requeued().every_id()
    landings: Trace = LakeLandings(lake.heartbeats(), begins, decided[-1].at if decided else None, requeued)
    if settings.pubsub.attach:
        landings = LogMessages(decided, begins)
    disorder = disorder_of(landings, settings.watermark.band)
    if disorder is None or not decided:
        raise _nothing_landed(settings, begins, since)
    workload = Workload(decided, landings, to_us(begins), until_us=disorder.last_publish_us, state=state)
    report = make_report(
        workload, disorder, settings, source=settings.lake.uri, made_at=made_at, target=target, bands=bands
    )
    rejected = rejected_payloads(lake.quarantine(), settings.contract, begins, made_at, requeued)
    return replace(report, rejected_payloads=rejected)


def cohorts_on(
    source: Path | Lake,
    by: CohortKey,
    settings: Settings,
    made_at: datetime,
    since: timedelta,
    *,
    target: float,
    bands: Sequence[timedelta],
) -> Cohorts:
    """Report on each cohort separately: of a trace in a file, or of the messages that a lake has landed in the time
    `since` before `made_at`.

    Cohorts of a lake are decided at its recorded ticks. Their readings are those that their own messages would have
    given when base was read, if tracking had kept up. Raises TraceUnusable and NothingToTune.
    """
    trace: Trace
    if isinstance(source, Path):
        settings = _without_slack(settings)
        trace = ParquetTrace(source, by)
        name, watermark = _named(trace), settings.watermark
        ticks = partial(ticks_of, tick=watermark.tick, idle_timeout=watermark.idle_timeout)
    else:
        name, begins = settings.lake.uri, made_at - since
        decided = [tick for tick in recorded_ticks(source.tracking_log(), begins)[1] if tick.at >= begins]
        if settings.pubsub.attach:
            raise NothingToTune("nothing lands with pubsub.attach, so the lake has no cohorts: name a trace in a file")
        if not decided:
            raise _nothing_landed(settings, begins, since)
        trace = LakeLandings(source.heartbeats(), begins, decided[-1].at, source.requeued().every_id(), by)
        tick_us = np.array([to_us(each.at) for each in decided], dtype=np.int64)
        read = [begins if each.base is None else each.base.observed_at for each in decided]
        observed_us = np.array([to_us(moment) for moment in read], dtype=np.int64)
        ticks = partial(ticks_at, tick_us=tick_us, observed_us=observed_us, complete_from=begins)

    def report_on(part: Trace) -> TuningReport | None:
        disorder = disorder_of(part, settings.watermark.band)
        if disorder is None:
            return None
        workload = Workload(ticks(part), part, disorder.first_publish_us, disorder.last_publish_us)
        report = make_report(
            workload, disorder, settings, source=name, made_at=made_at, target=target, bands=bands, with_quantiles=False
        )
        return report if report.now.landed else None

    return cohorts_of(trace, by, name, report_on)


def _without_slack(settings: Settings) -> Settings:
    """Remove the slack from settings, for a trace whose times are exact."""
    exact = settings.watermark.model_copy(update={"slack": timedelta(0)})
    return settings.model_copy(update={"watermark": exact})


def _named(trace: ParquetTrace) -> str:
    return f"{trace.path}, its times taken for UTC" if trace.is_taken_for_utc else str(trace.path)


def _nothing_landed(settings: Settings, begins: datetime, since: timedelta) -> NothingToTune:
    command = "attach" if settings.pubsub.attach else "up"
    return NothingToTune(
        f"nothing has landed in {settings.lake.uri} since {iso(begins)}; name a longer time with --since, now "
        f"{format_duration(since)}, or start the pipeline with `tidemark {command}`"
    )

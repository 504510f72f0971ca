"""Makes a report on a trace in a file, or on what a lake has recently recorded and landed."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from tidemark.pipeline.clock import iso, to_us
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import NothingToTune, TraceUnusable
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.rejected_payloads import rejected_payloads
from tidemark.pipeline.replay.log_ticks import LakeLandings, LogMessages, recorded_ticks
from tidemark.pipeline.replay.trace import NEVER, Trace, ticks_of
from tidemark.pipeline.replay.trace_file import ParquetTrace
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.disorder import disorder_of
from tidemark.pipeline.tuning.report import TuningReport, make_report
from tidemark.pipeline.tuning.sweep import BANDS, Workload


def report_on_trace(
    path: Path, settings: Settings, made_at: datetime, *, target: float, bands: Iterable[timedelta] = BANDS
) -> TuningReport:
    """Tune on a trace, at the ticks that a run would have had, without slack because a trace's times are exact.

    Raises TraceUnusable.
    """
    exact = settings.watermark.model_copy(update=dict.fromkeys(("reading_slack", "base_slack"), timedelta(0)))
    settings = settings.model_copy(update={"watermark": exact})
    trace = ParquetTrace(path)
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
    source = f"{path}, its times taken for UTC" if trace.is_taken_for_utc else str(path)
    return make_report(workload, disorder, settings, source=source, made_at=made_at, target=target, bands=bands)


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

    The ticks before that are decided as well, as many as the widest band needs, and not counted. What was requeued is
    no part of it: it landed late for its contract, which no band mends. Raises NothingToTune
    if nothing has landed in that time.
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
        raise NothingToTune(
            f"nothing has landed in {settings.lake.uri} since {iso(begins)}; name a longer time with --since, now "
            f"{format_duration(since)}, or start the pipeline with "
            f"`tidemark {'attach' if settings.pubsub.attach else 'up'}`"
        )
    workload = Workload(decided, landings, to_us(begins), until_us=disorder.last_publish_us, state=state)
    report = make_report(
        workload, disorder, settings, source=settings.lake.uri, made_at=made_at, target=target, bands=bands
    )
    rejected = rejected_payloads(lake.quarantine(), settings.contract, begins, made_at, requeued)
    return replace(report, rejected_payloads=rejected)

"""Makes tuning reports on a trace file or on a lake's recent traffic, for all messages or for each cohort."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.clock import format_duration, from_us, iso, to_us
from tidemark.pipeline.errors import NothingToTune, TidemarkError, TraceUnusable
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.quarantine import rejected_payloads
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.sources import COLUMNS, TIMES, LakeLandings, LogMessages, ParquetTrace, recorded_ticks
from tidemark.pipeline.replay.trace import NEVER, CohortKey, Tick, Trace, ticks_at, ticks_of
from tidemark.pipeline.tuning.disorder import disorder_of
from tidemark.pipeline.tuning.report import Asked, TuningReport, facts_of, make_report
from tidemark.pipeline.tuning.sweep import Workload
from tidemark.pipeline.watermark.state import Released, WatermarkState

MOST_COHORTS = 8
"""Maximum number of cohorts with a separate report. In production, each cohort needs two subscriptions."""

MOST_VALUES = 10_000
"""Maximum number of values of a cohort key. A key with more values probably identifies messages rather than cohorts."""

SCHEMA = pa.schema([(name, MOMENT if name in TIMES else pa.null()) for name in COLUMNS])
"""Schema of the temporary trace of one cohort. Its message ids and streams are null."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The messages with one value of the cohort key, and the report on them.

    `value` is None for the cohort of the remaining messages. `messages` includes rejected messages.
    `report` is None if no message with an event time has landed.
    """

    value: str | None
    messages: int
    report: TuningReport | None


@dataclass(frozen=True, slots=True)
class Cohorts:
    """The report on all messages (`together`), and the reports on the cohorts.

    `parts` are the largest cohorts, the largest first, and then one cohort of the remaining messages, if there are any.
    `values_in_rest` is the number of key values among the remaining messages.
    """

    by: CohortKey
    together: TuningReport
    parts: Sequence[Cohort]
    values_in_rest: int

    @property
    def messages(self) -> int:
        return sum(part.messages for part in self.parts)


def cohorts_of(trace: Trace, by: CohortKey, source: str, report_on: Callable[[Trace], TuningReport | None]) -> Cohorts:
    """Make reports on a whole trace and on each of its cohorts, by calling `report_on`. The `streams` of the
    trace's batches must be the values of the key `by`. `source` names the trace in error messages.

    Each cohort is written to a temporary folder, so memory does not grow with the number of messages. Raises
    NothingToTune if no message with an event time has landed, if no message has a value for the key, or if the key
    has more than MOST_VALUES values. Raises TidemarkError if the folder cannot be written.
    """
    counts: Counter[str | None] = Counter()
    for batch in trace.batches(streams=True):
        counts.update({each["values"]: each["counts"] for each in pc.value_counts(batch.streams).to_pylist()})
        if len(counts) - (None in counts) > MOST_VALUES:
            raise NothingToTune(f"{by} has more than {MOST_VALUES:,} values in {source}; split by another key")
    without = counts.pop(None, 0)
    if without and not counts:
        raise NothingToTune(f"none of the {without:,} messages in {source} has a value for {by}; split by another key")
    if (together := report_on(trace)) is None:
        raise NothingToTune(f"in {source} no message with an event time has landed; try a different trace or --since")
    values = [value for value, _ in counts.most_common(MOST_COHORTS)]
    try:
        with TemporaryDirectory(prefix="tidemark-cohorts-") as folder:
            named = zip([*values, None], map(ParquetTrace, _split(trace, values, Path(folder))), strict=True)
            cohorts = [Cohort(value, part.rows, report_on(part)) for value, part in named if part.rows]
    except OSError as error:
        message = f"{source} cannot be split in {gettempdir()} ({error}); set TMPDIR to a folder with free space"
        raise TidemarkError(message) from error
    return Cohorts(by, together, cohorts, len(counts) - len(values))


def _split(trace: Trace, values: Sequence[str | None], folder: Path) -> list[Path]:
    """Write one trace per value, and one with all other messages. Return the paths of the files."""
    paths = [folder / f"{number}.parquet" for number in range(len(values) + 1)]
    with ExitStack() as stack:
        parts = [stack.enter_context(pq.ParquetWriter(path, SCHEMA)) for path in paths]
        for batch in trace.batches(streams=True):
            times = (batch.publish_us, batch.event_us, batch.tracked_us, batch.landed_us)
            columns = [
                pa.array(us, mask=us == null).cast(MOMENT) for us, null in zip(times, TIMES.values(), strict=True)
            ]
            rows = pa.table([*[pa.nulls(len(batch))] * 2, *columns], schema=SCHEMA)
            part_of = pc.index_in(batch.streams, pa.array(values, pa.string())).fill_null(len(values))
            for number, part in enumerate(parts):
                part.write_table(rows.filter(pc.equal(part_of, number)))
    return paths


def facts_of_cohorts(found: Cohorts) -> dict[str, Any]:
    """Return all figures as plain values for JSON, including the report of each cohort."""
    return {
        "by": str(found.by),
        "together": facts_of(found.together),
        "cohorts": [
            {
                "value": part.value,
                "share": part.messages / found.messages,
                "all_messages": part.messages,
                **({} if part.report is None else facts_of(part.report)),
            }
            for part in found.parts
        ],
        "values_in_rest": found.values_in_rest,
    }


def report_on(source: Path | Lake, asked: Asked) -> TuningReport:
    """Make the report on a trace file, or on a lake's recent traffic. Raises TraceUnusable or NothingToTune."""
    return report_on_trace(source, asked) if isinstance(source, Path) else report_on_lake(source, asked)


def report_on_trace(path: Path, asked: Asked) -> TuningReport:
    """Make the report on a trace file. The ticks are simulated, at the interval in the settings. The readings need no
    slack, because the times in a trace are exact. Raises TraceUnusable."""
    trace, watermark = ParquetTrace(path), asked.settings.watermark
    if (disorder := disorder_of(trace, watermark.band)) is None:
        raise TraceUnusable(f"{path} has no message with an event time; name a trace that has some")
    if not any((batch.valid().landed_us != NEVER).any() for batch in trace.batches()):
        raise TraceUnusable(
            f"in {path} no message with an event time has landed, so no message can be late; set landed_at to the "
            "time at which each message landed"
        )
    ticks = ticks_of(trace, watermark.tick, watermark.idle_timeout)
    workload = Workload(ticks, trace, disorder.first_publish_us, disorder.last_publish_us)
    return make_report(workload, disorder, _named(trace), asked.without_slack())


def report_on_lake(lake: Lake, asked: Asked) -> TuningReport:
    """Make the report on a lake's traffic since `asked.begins`, with the recorded ticks and readings.

    The replay starts earlier, by the widest band and two ticks, because the first watermarks depend on older messages.
    The earlier ticks are not counted. Messages that were requeued or released are left out, because they are late
    whatever the band. Raises NothingToTune if nothing has landed since `asked.begins` or the replay has no tick.
    """
    settings, begins = asked.settings, asked.begins
    warm_up = max([*asked.bands, settings.watermark.band]) + 2 * settings.watermark.tick
    state, ticks = recorded_ticks(lake.tracking_log(), begins - warm_up)
    decided = list(ticks)
    requeued = lake.requeued().ids()
    until = max((tick.at for tick in decided), default=None)
    released = _released(state, decided, begins)
    landings: Trace = LakeLandings(lake.heartbeats(), begins, until, requeued, released=released)
    if settings.pubsub.attach:
        landings = LogMessages(decided, begins)
    disorder = disorder_of(landings, settings.watermark.band)
    if disorder is None or not decided:
        raise _nothing(asked, "nothing has landed" if disorder is None else "no decision has been made")
    workload = Workload(decided, landings, to_us(begins), until_us=disorder.last_publish_us, state=state)
    report = make_report(workload, disorder, settings.lake.uri, asked)
    rejected = rejected_payloads(lake.quarantine(), settings.contract, begins, asked.made_at, requeued)
    return replace(report, rejected_payloads=rejected)


def cohorts_on(source: Path | Lake, by: CohortKey, asked: Asked) -> Cohorts:
    """Make reports on the cohorts of a trace file, or of the messages that landed in a lake since `asked.begins`.

    For a lake, each cohort's watermark is decided at the recorded ticks. The readings of each tick are computed from
    the cohort's messages, for the time at which the base subscription was read. The tracking subscription is assumed to
    have had no backlog. Raises TraceUnusable or NothingToTune.
    """
    trace: Trace
    settings, begins = asked.settings, asked.begins
    if isinstance(source, Path):
        asked, trace = asked.without_slack(), ParquetTrace(source, by)
        name, watermark = _named(trace), settings.watermark
        ticks = partial(ticks_of, tick=watermark.tick, idle_timeout=watermark.idle_timeout)
    else:
        name = settings.lake.uri
        state, recorded = recorded_ticks(source.tracking_log(), begins)
        released = _released(state, every := list(recorded), begins)
        decided = [tick for tick in every if tick.at >= begins]
        if settings.pubsub.attach:
            raise NothingToTune("with pubsub.attach no messages land, so the lake has no cohorts; pass a trace file")
        if not decided:
            raise _nothing(asked, "no decision has been made")
        tick_us = np.maximum.accumulate([to_us(each.at) for each in decided])  # two trackers' clocks may disagree
        until, requeued = from_us(int(tick_us[-1])), source.requeued().ids()
        trace = LakeLandings(source.heartbeats(), begins, until, requeued, by, released)
        observed_us = np.array([to_us(each.base.observed_at if each.base else begins) for each in decided])
        ticks = partial(ticks_at, tick_us=tick_us, observed_us=observed_us, complete_from=begins)

    def report_on(part: Trace) -> TuningReport | None:
        if (disorder := disorder_of(part, settings.watermark.band)) is None:
            return None
        workload = Workload(ticks(part), part, disorder.first_publish_us, disorder.last_publish_us)
        report = make_report(workload, disorder, name, asked, with_quantiles=False)
        return report if report.now.landed else None

    return cohorts_of(trace, by, name, report_on)


def _released(state: WatermarkState, ticks: Sequence[Tick], begins: datetime) -> list[Released]:
    """Return the releases in the ticks. If there was a release before them, add it, dated `begins`."""
    released = [entry for tick in ticks for entry in tick.entries if isinstance(entry, Released)]
    return released if state.released_before is None else [*released, Released(state.released_before, begins, by="")]


def _named(trace: ParquetTrace) -> str:
    return f"{trace.path}, its times read as UTC" if trace.is_taken_for_utc else str(trace.path)


def _nothing(asked: Asked, missing: str) -> NothingToTune:
    command = "attach" if asked.settings.pubsub.attach else "up"
    return NothingToTune(
        f"{missing} in {asked.settings.lake.uri} since {iso(asked.begins)}; name a longer time with --since "
        f"(now {format_duration(asked.since)}), or start the pipeline with `tidemark {command}`"
    )

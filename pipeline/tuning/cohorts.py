"""Cohorts: each part of a topic judged separately, as if it had two filtered subscriptions."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.errors import NothingToTune, TidemarkError
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.trace import Batch, CohortKey, Trace
from tidemark.pipeline.replay.trace_file import COLUMNS, TIMES, ParquetTrace
from tidemark.pipeline.tuning.report import TuningReport, facts_of

MOST_COHORTS = 8
"""Most cohorts that are judged separately. Each costs two subscriptions, and a whole report here."""

MOST_VALUES = 10_000
"""Most values of a key. A key with more identifies messages rather than cohorts."""

SCHEMA = pa.schema([(name, MOMENT if name in TIMES else pa.null()) for name in COLUMNS])
"""Schema of a part of a trace: without ids and streams."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The messages with one value of the key, including rejected ones. `value` is None for the rest, or for all
    messages. `report` is None if no message with an event time has landed."""

    value: str | None
    messages: int
    report: TuningReport | None


@dataclass(frozen=True, slots=True)
class Cohorts:
    """The report on all messages together, and the largest cohorts in order, then the rest if any. `values_in_rest`
    counts the values that are too small for a separate cohort; the other messages of the rest have no value."""

    by: CohortKey
    together: TuningReport
    parts: Sequence[Cohort]
    values_in_rest: int

    @property
    def messages(self) -> int:
        return sum(part.messages for part in self.parts)


def cohorts_of(trace: Trace, by: CohortKey, source: str, report_on: Callable[[Trace], TuningReport | None]) -> Cohorts:
    """Report on a trace, whose batches have the key's values as their streams, and on each cohort separately.

    The parts are traces in a temporary folder, so memory does not follow the number of messages. Raises NothingToTune
    if no message with an event time has landed, if no message has a value, or if there are more than `MOST_VALUES`
    values.
    """
    counts: Counter[str | None] = Counter()
    for batch in trace.batches(streams=True):
        counts.update({each["values"]: each["counts"] for each in pc.value_counts(_values(batch)).to_pylist()})
        if len(counts) > MOST_VALUES:
            raise NothingToTune(f"{by} has more than {MOST_VALUES:,} values in {source}; split by a key with fewer")
    without = counts.pop(None, 0)
    if without and not counts:
        raise NothingToTune(f"none of {without:,} messages in {source} has a value of {by}; split by another key")
    together = report_on(trace)
    if together is None:
        raise NothingToTune(f"in {source} no message with an event time has landed; there is nothing to judge")
    values = [value for value, _ in counts.most_common(MOST_COHORTS)]
    try:
        with TemporaryDirectory(prefix="tidemark-cohorts-") as folder:
            parts = map(ParquetTrace, _split(trace, values, Path(folder)))
            named = zip([*values, None], parts, strict=True)
            cohorts = [Cohort(value, part.rows, report_on(part)) for value, part in named if part.rows]
    except OSError as error:
        message = f"{source} cannot be split in {gettempdir()} ({error}); name a folder with space by setting TMPDIR"
        raise TidemarkError(message) from error
    return Cohorts(by, together, cohorts, len(counts) - len(values))


def _values(batch: Batch) -> Any:
    return pc.cast(batch.streams, pa.string())


def _split(trace: Trace, values: Sequence[str | None], folder: Path) -> list[Path]:
    """Write one trace for each value, and one for the other messages."""
    paths = [folder / f"{number}.parquet" for number in range(len(values) + 1)]
    with ExitStack() as stack:
        parts = [stack.enter_context(pq.ParquetWriter(path, SCHEMA)) for path in paths]
        for batch in trace.batches(streams=True):
            times = (batch.publish_us, batch.event_us, batch.tracked_us, batch.landed_us)
            columns = [
                pa.array(us, mask=us == null).cast(MOMENT) for us, null in zip(times, TIMES.values(), strict=True)
            ]
            rows = pa.table([*[pa.nulls(len(batch))] * 2, *columns], schema=SCHEMA)
            part_of = pc.index_in(_values(batch), pa.array(values)).fill_null(len(values))
            for number, part in enumerate(parts):
                part.write_table(rows.filter(pc.equal(part_of, number)))
    return paths


def facts_of_cohorts(found: Cohorts) -> dict[str, Any]:
    """Return all figures as plain values for JSON, with those of each cohort's report, if it has one."""

    def facts(cohort: Cohort) -> dict[str, Any]:
        figures = {} if cohort.report is None else facts_of(cohort.report)
        return {
            "value": cohort.value,
            "share": cohort.messages / found.messages,
            "all_messages": cohort.messages,
            **figures,
        }

    return {
        "by": str(found.by),
        "together": facts_of(found.together),
        "cohorts": [facts(part) for part in found.parts],
        "values_in_rest": found.values_in_rest,
    }

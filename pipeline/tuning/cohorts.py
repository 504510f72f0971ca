"""What cohorts would give: each is decided and judged by itself, as if it had two subscriptions with its own filter."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.errors import NothingToTune
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.cohort_key import CohortKey
from tidemark.pipeline.replay.trace import NEVER, NO_EVENT_TIME, Trace
from tidemark.pipeline.replay.trace_file import COLUMNS, TIMES, ParquetTrace
from tidemark.pipeline.tuning.report import TuningReport, facts_of

MOST_COHORTS = 8
"""The most cohorts that are judged by themselves. Each costs two subscriptions, and a whole report here."""

MOST_VALUES = 10_000
"""A key with more values than this tells messages apart, not cohorts."""

SCHEMA = pa.schema([(name, MOMENT if name in TIMES else pa.null()) for name in COLUMNS])
"""A part of a trace, as a trace without ids and streams."""


@dataclass(frozen=True, slots=True)
class Cohort:
    """The messages with one value of the key; None: the rest. `delivered` counts the rejected ones too. The report is
    None where none with an event time has landed."""

    value: str | None
    delivered: int
    report: TuningReport | None


@dataclass(frozen=True, slots=True)
class Cohorts:
    """All messages together; the largest cohorts in order, then the rest if there is any. `values_in_rest` counts the
    values that are too small for a cohort of their own; the other messages of the rest have none."""

    by: CohortKey
    together: TuningReport
    parts: Sequence[Cohort]
    values_in_rest: int

    def share(self, cohort: Cohort) -> float:
        """The cohort's share of all that was delivered."""
        return cohort.delivered / sum(part.delivered for part in self.parts)


def cohorts_of(trace: Trace, by: CohortKey, source: str, report_on: Callable[[Path], TuningReport]) -> Cohorts:
    """Report on a trace, whose batches have the key's values as their streams, and on each part of it by itself.

    It is read twice; the parts are traces in a temporary folder, so memory does not follow the number of messages.
    Raises NothingToTune if none that landed with an event time has a value, or if there are more than `MOST_VALUES`.
    """
    landed: Counter[str | None] = Counter()
    for batch in trace.batches(streams=True):
        is_judged = pa.array((batch.event_us != NO_EVENT_TIME) & (batch.landed_us != NEVER))
        counted = pc.value_counts(pc.cast(batch.streams, pa.string()).filter(is_judged))
        landed.update({each["values"]: each["counts"] for each in counted.to_pylist()})
        if len(landed) > MOST_VALUES:
            raise NothingToTune(f"{by} has more than {MOST_VALUES:,} values in {source}; split by one that has few")
    total, without = landed.total(), landed.pop(None, 0)
    if not landed:
        raise NothingToTune(
            f"in {source} {total:,} messages with an event time have landed, and none has a value of {by}"
        )
    values = [value for value, _ in landed.most_common(MOST_COHORTS)]
    smaller = landed.total() - sum(landed[value] for value in values)
    with TemporaryDirectory(prefix="tidemark-cohorts-") as folder:

        def cohort(value: str | None, part: Path) -> Cohort:
            has_landed = part != parts[-1] or without + smaller > 0
            report = replace(report_on(part), source=source) if has_landed else None
            return Cohort(value, ParquetTrace(part).rows, report)

        whole, *parts = _split(trace, values, Path(folder))
        cohorts = [cohort(value, part) for value, part in zip([*values, None], parts, strict=True)]
        together = replace(report_on(whole), source=source)
        return Cohorts(by, together, [each for each in cohorts if each.delivered], len(landed) - len(values))


def _split(trace: Trace, values: Sequence[str | None], folder: Path) -> list[Path]:
    """Write all messages, those of each value, and the others, each as a trace."""
    paths = [folder / f"{number}.parquet" for number in range(len(values) + 2)]
    with ExitStack() as stack:
        whole, *parts = [stack.enter_context(pq.ParquetWriter(path, SCHEMA)) for path in paths]
        for batch in trace.batches(streams=True):
            times = zip(
                TIMES.values(), (batch.publish_us, batch.event_us, batch.tracked_us, batch.landed_us), strict=True
            )
            columns = [pa.array(moments_us, mask=moments_us == null).cast(MOMENT) for null, moments_us in times]
            rows = pa.table([*[pa.nulls(len(batch))] * 2, *columns], schema=SCHEMA)
            part_of = pc.index_in(pc.cast(batch.streams, pa.string()), pa.array(values)).fill_null(len(values))
            whole.write_table(rows)
            for number, part in enumerate(parts):
                part.write_table(rows.filter(pc.equal(part_of, number)))
    return paths


def facts_of_cohorts(found: Cohorts) -> dict[str, Any]:
    """All figures as plain values for JSON: of each cohort those of its report, if it has one."""

    def facts(cohort: Cohort) -> dict[str, Any]:
        figures = {} if cohort.report is None else facts_of(cohort.report)
        return {"value": cohort.value, "delivered": cohort.delivered, "share": found.share(cohort), **figures}

    return {
        "by": str(found.by),
        "together": facts_of(found.together),
        "cohorts": [facts(part) for part in found.parts],
        "values_in_rest": found.values_in_rest,
    }

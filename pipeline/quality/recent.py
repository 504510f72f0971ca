"""Checks what landed recently: rows that lag more than `watermark.max_lag`, by stream, and compared fields that are
null in all rows."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pyarrow as pa

from tidemark.pipeline.clock import duration_us, from_us, iso, to_us
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.table import LakeTable, microseconds


@dataclass(frozen=True, slots=True)
class PassedOver:
    """The number of landed `rows`, and how many of them lag more than `max_lag`, per stream in descending order.
    `damaged` maps unreadable files to their event hours; their rows are not counted."""

    rows: int = 0
    by_stream: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of rows of all streams that lag more than `max_lag`."""
        return sum(self.by_stream.values())

    @property
    def share(self) -> float:
        """The share of these rows among all rows."""
        return self.total / self.rows if self.rows else 0.0


def read_passed_over(heartbeats: Heartbeats, max_lag: timedelta, since: datetime, before: datetime) -> PassedOver:
    """Count the rows published in `[since, before)` that lag more than `max_lag`. The histogram is coarser: a message
    that lags up to two seconds more than `max_lag` may still hold the watermark.

    Memory is proportional to the rows of this time range. Raises LakeError.
    """
    damaged = dict[str, str]()
    rows = heartbeats.published_between(since, before, ("stream_id", "publish_time", "event_time"), damaged)
    if rows is None:
        return PassedOver()
    lag_us = microseconds(rows["publish_time"]) - microseconds(rows["event_time"])
    beyond = rows.filter(lag_us > duration_us(max_lag))
    return PassedOver(len(rows), dict(Counter(beyond["stream_id"].to_pylist()).most_common()), damaged)


@dataclass(frozen=True, slots=True)
class NullField:
    """A field that is null in the newest `rows` rows, the first of which landed at `since`."""

    name: str
    rows: int
    since: datetime

    def sentence(self) -> str:
        """Describe the finding in one sentence."""
        return f"{self.name} is null in all {self.rows} rows that landed since {iso(self.since)}"


@dataclass(frozen=True, slots=True)
class NullFields:
    """The approximate number of rows checked, and the fields that are null in all of them."""

    rows: int = 0
    fields: Sequence[NullField] = ()

    @property
    def names(self) -> str:
        """The fields' names as a list, or `none`."""
        return ", ".join(field.name for field in self.fields) or "none"


def read_null_fields(heartbeats: LakeTable, names: Iterable[str], since: datetime) -> NullFields:
    """Find the fields that are null in all files with rows that landed since `since`, and how far back they are null.

    Each file counts as a whole. Fields without statistics, such as the last columns of a wide table, are not reported.
    Raises LakeError.
    """
    names, since_us = list(names), to_us(since)
    files = heartbeats.landed() if names else pa.table({})
    if "rows" not in files.column_names:
        return NullFields()
    known = [name for name in names if f"null_count.{name}" in files.column_names]
    rows, first_us = files["rows"].to_pylist(), microseconds(files["first"]).tolist()
    recent = int((microseconds(files["last"]) >= since_us).sum())
    found = []
    for name in known:
        are_null = [count == of for count, of in zip(files[f"null_count.{name}"].to_pylist(), rows, strict=True)]
        until = are_null.index(False) if False in are_null else len(are_null)
        if recent and until >= recent and sum(rows[:until]):
            found.append(NullField(name, sum(rows[:until]), from_us(min(first_us[:until]))))
    return NullFields(sum(rows[:recent]), tuple(found))

"""Findings about what landed recently: rows beyond `watermark.max_lag`, by stream, and compared fields that are null in
all rows."""

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
    """The landed `rows`, and those of them that lag more than `max_lag`, by stream, the most first. `damaged` has the
    files that cannot be read, with their event hours: nothing of them counts."""

    rows: int = 0
    by_stream: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The rows of all streams that lag so much."""
        return sum(self.by_stream.values())

    @property
    def share(self) -> float:
        """Their share of the rows."""
        return self.total / self.rows if self.rows else 0.0


def read_passed_over(heartbeats: Heartbeats, max_lag: timedelta, since: datetime, before: datetime) -> PassedOver:
    """Count what lags more than `max_lag`, of the landed rows that were published in `[since, before)`. A cell of the
    histogram must be certain of it: a message that lags up to two seconds more may hold the watermark all the same.

    Memory follows the rows of that time. Raises LakeError.
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
    """A field that is null in the newest `rows`, of which the first landed at `since`."""

    name: str
    rows: int
    since: datetime

    def sentence(self) -> str:
        """State the field, the rows and since when."""
        return f"{self.name} is null in all {self.rows} rows that landed since {iso(self.since)}"


@dataclass(frozen=True, slots=True)
class NullFields:
    """The approximate number of rows that were looked at, and the fields that are null in all of them."""

    rows: int = 0
    fields: Sequence[NullField] = ()

    @property
    def names(self) -> str:
        """The fields, or `none`."""
        return ", ".join(field.name for field in self.fields) or "none"


def read_null_fields(heartbeats: LakeTable, names: Iterable[str], since: datetime) -> NullFields:
    """Look at the files that hold what landed since a moment, and then as far back as a field stays null.

    A file counts whole. A field that the statistics leave out, as those of a wide table's last columns, is not known to
    be null. Raises LakeError.
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

"""What `watermark.max_lag` passes over, by stream: told from what has landed."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.table import microseconds


@dataclass(frozen=True, slots=True)
class PassedOver:
    """How many of the `rows` that landed lag more than `max_lag`, by stream, the most first. `damaged` has the files
    that cannot be read, with their event hours: nothing of them counts."""

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
    """What lags more than `max_lag`, of the landed rows that were published in `[since, before)`. A cell of the
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

"""What `watermark.max_lag` passes over, by stream: told from what has landed."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta

from pipeline.clock import duration_us
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.table import microseconds


def passed_over_by_stream(
    heartbeats: Heartbeats, max_lag: timedelta, since: datetime, before: datetime
) -> Mapping[str, int]:
    """How many landed rows that were published in `[since, before)` lag more than `max_lag`, the most first.

    Memory follows the rows of that time. Raises LakeError.
    """
    rows = heartbeats.published_between(since, before, ("stream_id", "publish_time", "event_time"))
    if rows is None:
        return {}
    lag_us = microseconds(rows["publish_time"]) - microseconds(rows["event_time"])
    beyond = rows.filter(lag_us > duration_us(max_lag))
    return dict(Counter(beyond["stream_id"].to_pylist()).most_common())

"""Reads the quarantine: the waiting messages by reason, the newest of them, and their share of all landed rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.quarantine import (
    EVERY,
    NOTHING_TOLD,
    PARTITION,
    QUARANTINE,
    Quarantine,
    Reasons,
    Rejected,
    without,
)
from tidemark.pipeline.lake.tables.table import MOMENT, first_day, table_errors

NEWEST_FILES = 10
"""The greatest number of files from which the most frequent reason is derived: each is a request on a bucket."""


def read_reasons(lake: Lake, meant: Rejected = EVERY) -> Reasons:
    """Count the waiting and the requeued messages by their latest reason. Raises LakeError."""
    requeued, since = lake.requeued(), first_day(meant.since)
    return lake.quarantine().reasons(meant, requeued.ids(requeued.between(since=since)), lake.rejudged().by_day(since))


def newest_waiting(lake: Lake, meant: Rejected, limit: int) -> Sequence[dict[str, Any]]:
    """Return at most `limit` rows of waiting messages, the last rejected first: the columns of `quarantine` except the
    partition, with the latest reason and detail. Days are read from the newest, and only as many as needed. Raises
    LakeError."""
    quarantine, requeued = lake.quarantine(), lake.requeued()
    since = first_day(meant.since)
    gone, told = requeued.ids(requeued.between(since=since)), lake.rejudged().by_day(since)
    columns = [name for name in QUARANTINE.names if name != PARTITION]
    found: list[dict[str, Any]] = []
    for day in reversed(quarantine.days(meant.since)):
        newest = pa.table({})
        for rows in quarantine.rejected(columns, meant, day, told.get(day, NOTHING_TOLD)):
            held = [table for table in (newest, without(rows, gone)) if len(table)]
            if held:
                order = [("landed_at", "descending"), ("publish_time", "descending"), ("message_id", "descending")]
                newest = pa.concat_tables(held).sort_by(order).slice(0, limit - len(found))
        found += newest.to_pylist()
        if len(found) >= limit:
            break
    return found


@dataclass(frozen=True, slots=True)
class QuarantineShare:
    """The approximate numbers of rows that landed and that were quarantined since a moment, and the most frequent
    reason of the newest quarantined rows, with its newest detail."""

    landed: int = 0
    quarantined: int = 0
    reason: str | None = None
    detail: str | None = None

    @property
    def share(self) -> float:
        """The share of quarantined rows among the rows of both tables."""
        return self.quarantined / (self.landed + self.quarantined) if self.quarantined else 0.0


def read_quarantine_share(heartbeats: Heartbeats, quarantine: Quarantine, since: datetime) -> QuarantineShare:
    """Count by the statistics of the tables' files; read at most NEWEST_FILES files of `quarantine`. Raises
    LakeError."""
    (landed, _), (quarantined, paths) = heartbeats.landed_since(since), quarantine.landed_since(since)
    if not quarantined:
        return QuarantineShare(landed)
    columns, wanted = ["reason", "detail", "landed_at"], pc.field("landed_at") >= pa.scalar(since, MOMENT)
    files, newest = quarantine.folder, []
    with table_errors(quarantine.uri):
        for path in paths[:NEWEST_FILES]:
            with files.open_input_file(path) as opened:  # reading by path costs one more request
                newest.append(pq.read_table(opened, columns=columns, filters=wanted, use_threads=False))
    rows = pa.concat_tables(newest).sort_by([("landed_at", "descending")])
    reasons = rows["reason"].to_pylist()
    if not reasons:
        return QuarantineShare(landed, quarantined)
    reason = max(dict.fromkeys(reasons), key=reasons.count)
    return QuarantineShare(landed, quarantined, reason, rows["detail"][reasons.index(reason)].as_py())

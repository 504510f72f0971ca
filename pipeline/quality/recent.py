"""Checks what landed recently: rows that lag more than `watermark.max_lag`, fields of `[message.fields]` that are null
in all rows, and messages in quarantine."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import duration_us, from_us, iso, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.quarantine import EVERY, Quarantine, Reasons, Rejected, without
from tidemark.pipeline.lake.tables.table import MOMENT, LakeTable, first_day, microseconds
from tidemark.pipeline.quality.landings import Counts


def read_passed_over(heartbeats: Heartbeats, max_lag: timedelta, since: datetime, before: datetime) -> Counts:
    """Count the rows published in `[since, before)`. Also count, per stream, the rows that lag more than `max_lag`.

    The watermark may have waited for rows that lag up to two seconds more than `max_lag`, because the cells of its
    histogram are a second wide. All rows of the time range are in memory. Raises LakeError.
    """
    damaged = dict[str, str]()
    rows = heartbeats.published_between(since, before, ("stream_id", "publish_time", "event_time"), damaged)
    lag_us = microseconds(rows["publish_time"]) - microseconds(rows["event_time"])
    beyond = rows.filter(lag_us > duration_us(max_lag))
    by_stream = Counter(beyond["stream_id"].to_pylist()).most_common()
    return Counts(rows=len(rows), by_stream=dict(by_stream), damaged=damaged)


@dataclass(frozen=True, slots=True)
class NullField:
    """A compared field (one of `[message.fields]`) that is null in the newest `rows` rows. The first of these rows
    landed at `since`."""

    name: str
    rows: int
    since: datetime

    def sentence(self) -> str:
        return f"{self.name} is null in every row that landed since {iso(self.since)} (rows: {self.rows})"


def read_null_fields(heartbeats: LakeTable, names: Collection[str], since: datetime) -> tuple[int, list[NullField]]:
    """Return the approximate number of rows that landed at `since` or later, and the fields among `names` that are null
    in all of them. Each of these fields comes with the time since which it has been null.

    Reads only file statistics, so either all rows of a file count or none. A field without statistics, such as one of
    the last columns of a wide table, is not reported. If `names` is empty, the number is 0. Raises LakeError.
    """
    if not names:
        return 0, []
    files, since_us = heartbeats.landed(), to_us(since)
    known = [name for name in names if f"null_count.{name}" in files.column_names]
    rows, first_us = files["rows"].to_pylist(), microseconds(files["first"]).tolist()
    recent = int((microseconds(files["last"]) >= since_us).sum())
    found = []
    for name in known:
        are_null = [count == of for count, of in zip(files[f"null_count.{name}"].to_pylist(), rows, strict=True)]
        until = are_null.index(False) if False in are_null else len(are_null)
        if recent and until >= recent and sum(rows[:until]):
            found.append(NullField(name, sum(rows[:until]), from_us(min(first_us[:until]))))
    return sum(rows[:recent]), found


RECENT = timedelta(hours=1)
"""Length of the time range, up to now, that the checks of recent rows and the count of losses cover."""

NEWEST_FILES = 10
"""Maximum number of files of `quarantine` read to find the most frequent reason for rejection. In a bucket, each file
costs a request."""


def read_reasons(lake: Lake, selection: Rejected = EVERY) -> Reasons:
    """Count the rejected messages that match the filter `selection`, by their latest reason. Messages that wait in
    quarantine and messages that were requeued are counted separately. Raises LakeError."""
    return lake.quarantine().reasons(selection, *_handled(lake, selection))


def _handled(lake: Lake, selection: Rejected) -> tuple[pa.Array, Mapping[str, pa.Table]]:
    """Return the ids of requeued messages, and the changed reasons per day, both from the filter's first day on."""
    requeued, since = lake.requeued(), first_day(selection.since)
    return requeued.ids(requeued.between(since=since)), lake.rejudged().by_day(since)


def newest_waiting(lake: Lake, selection: Rejected, limit: int) -> Sequence[dict[str, Any]]:
    """Return at most `limit` rows of messages that wait in quarantine and match the filter `selection`, the most
    recently rejected first. A row has the columns of `quarantine` except the partition column, with the latest reason
    and detail. Raises LakeError."""
    quarantine, (gone, rejudged) = lake.quarantine(), _handled(lake, selection)
    columns = [name for name in quarantine.schema.names if name != quarantine.partition_column]
    order = [(name, "descending") for name in ("landed_at", "publish_time", "message_id")]

    def waiting(day: str) -> Iterator[pa.Table]:
        for rows in quarantine.rejected(columns, selection, day, rejudged[day]):
            yield without(rows, gone)

    return quarantine.newest_by_day(selection.since, limit, waiting, order)


@dataclass(frozen=True, slots=True)
class QuarantineShare:
    """The approximate number of rows that landed recently in `heartbeats` and in `quarantine`. `reason` is the most
    frequent reason of the newest rows in `quarantine`, and `detail` the newest detail for this reason."""

    landed: int = 0
    quarantined: int = 0
    reason: str | None = None
    detail: str | None = None

    @property
    def share(self) -> float:
        return self.quarantined / (self.landed + self.quarantined) if self.quarantined else 0.0


def read_quarantine_share(heartbeats: Heartbeats, quarantine: Quarantine, since: datetime) -> QuarantineShare:
    """Estimate how many rows landed at `since` or later, from the file statistics of both tables. At most NEWEST_FILES
    files of `quarantine` are read, to find the most frequent reason. Raises LakeError."""
    (landed, _), (quarantined, paths) = heartbeats.landed_since(since), quarantine.landed_since(since)
    if not quarantined:
        return QuarantineShare(landed)
    columns = pa.schema({"reason": pa.string(), "detail": pa.string(), "landed_at": MOMENT})
    wanted = pc.field("landed_at") >= pa.scalar(since, MOMENT)
    newest = [quarantine.file_rows(path, columns, wanted) for path in paths[:NEWEST_FILES]]
    rows = pa.concat_tables(newest).sort_by([("landed_at", "descending")])
    if not (reasons := rows["reason"].to_pylist()):
        return QuarantineShare(landed, quarantined)
    reason = max(dict.fromkeys(reasons), key=reasons.count)
    return QuarantineShare(landed, quarantined, reason, rows["detail"][reasons.index(reason)].as_py())

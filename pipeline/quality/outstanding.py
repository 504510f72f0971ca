"""Counts messages that were tracked but have not landed, by publish time: the messages that a release gives up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import EPOCH, from_us
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats, messages_of
from tidemark.pipeline.lake.tables.quarantine import Quarantine, without
from tidemark.pipeline.watermark.histogram import BUCKET_US, NO_MINIMUM, Histogram, bucket_of, bucket_start

WIDTHS = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 7 * 86400)
)
"""The possible lengths of the stretches into which publish seconds are merged for display."""

AT_ONCE = timedelta(hours=1)
"""Publish time that is read at once. Bounds memory: behind a straggler there may be days of landed messages."""

LANDINGS = ("message_id", "landed_at")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A stretch of publish time, `[published_from, published_before)`: the messages that tracking counted, including
    redeliveries, the distinct messages that landed, and the least event time that tracking saw (None if it saw none).
    If messages hold several heartbeats, each heartbeat and each rejection of a message counts."""

    published_from: datetime
    published_before: datetime
    tracked: int
    landed: int
    outstanding_at_most: int
    oldest_event_time: datetime | None


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The messages published in `[since, before)`, in whole seconds. `tracked` and `landed` count all messages;
    `seconds` are the seconds with possibly outstanding messages, in order. `at_most` is an upper bound if the histogram
    is complete for these publish times."""

    since: datetime
    before: datetime
    tracked: int
    landed: int
    seconds: Sequence[Stretch]

    @property
    def at_most(self) -> int:
        """The greatest number of messages that may be outstanding."""
        return sum(second.outstanding_at_most for second in self.seconds)

    @property
    def oldest_event_time(self) -> datetime | None:
        """The least event time in the seconds with possibly outstanding messages."""
        return _oldest(self.seconds)

    def in_lines(self, at_most: int) -> list[Stretch]:
        """Merge the seconds into the shortest stretches of WIDTHS that give at most `at_most` lines. If even the
        longest gives more, return them all."""
        lines: list[Stretch] = []
        for width in WIDTHS:
            lines = _merged(self.seconds, width)
            if len(lines) <= at_most:
                break
        return lines


def outstanding(histogram: Histogram, landed: Mapping[int, int], since: datetime, before: datetime) -> Outstanding:
    """Subtract the landed from the tracked messages published in `[since, before)`, per publish second. `landed` has
    the distinct landed messages per publish second, from `landed_by_second`."""
    first, last = bucket_of(since), bucket_of(before) - 1
    cells = cells_between(histogram, first, last + 1)
    by_second = cells.group_by("second", use_threads=False).aggregate([("count", "sum"), ("oldest_us", "min")])
    seconds = [
        Stretch(
            published_from=bucket_start(bucket),
            published_before=bucket_start(bucket + 1),
            tracked=tracked,
            landed=landed.get(bucket, 0),
            outstanding_at_most=tracked - landed.get(bucket, 0),
            oldest_event_time=None if event_us == NO_MINIMUM else from_us(event_us),
        )
        for bucket, tracked, event_us in zip(*by_second.to_pydict().values(), strict=True)
    ]
    return Outstanding(
        since=bucket_start(first),
        before=bucket_start(last + 1),
        tracked=sum(second.tracked for second in seconds),
        landed=sum(count for bucket, count in landed.items() if first <= bucket <= last),
        seconds=[second for second in seconds if second.outstanding_at_most > 0],
    )


def cells_between(histogram: Histogram, start: int, end: int) -> pa.Table:
    """Return the cells of the publish seconds `[start, end)`, in order: publish second, event second, count and least
    event time."""
    low, high = np.searchsorted(histogram.publish_bucket, [start, end])
    columns = {
        "second": histogram.publish_bucket,
        "event": histogram.event_bucket,
        "count": histogram.count,
        "oldest_us": histogram.min_event_us,
    }
    return pa.table({name: values[low:high] for name, values in columns.items()})


def landed_by_second(
    heartbeats: Heartbeats, quarantine: Quarantine, since: datetime, before: datetime
) -> dict[int, int]:
    """Count the distinct messages that have landed, in either table, per publish second. `since` and `before` are whole
    seconds. Reads only files that may hold such messages, AT_ONCE at a time."""
    landed: dict[int, int] = {}
    while since < before:
        until = min(since + AT_ONCE, before)
        good, bad = (with_seconds(table.published_between(since, until)) for table in (heartbeats, quarantine))
        good = without_requeued(good, bad, heartbeats, quarantine, since, until)
        counts = distinct_messages(pa.concat_tables([good, bad])).group_by("second", use_threads=False)
        landed |= {each["second"]: each["count_all"] for each in counts.aggregate([([], "count_all")]).to_pylist()}
        since = until
    return landed


def without_requeued(
    good: pa.Table,
    bad: pa.Table,
    heartbeats: Heartbeats,
    quarantine: Quarantine,
    since: datetime,
    before: datetime,
    damaged: dict[str, str] | None = None,
) -> pa.Table:
    """Drop the elements of a message that landed after the message was rejected. `good` and `bad` are rows of
    `with_seconds`; `damaged` is as for `published_between` of `heartbeats`.

    Tracking counted each usable element, and the rejection once. The rejection stands for the elements that a requeue
    landed later. Nothing more is read unless messages with several heartbeats were rejected.
    """
    messages = messages_of(good["message_id"])
    is_element = pc.not_equal(messages, good["message_id"])
    suspects = good["message_id"].filter(pc.and_(is_element, pc.is_in(messages, bad["message_id"].combine_chunks())))
    if not len(suspects):
        return good
    times = [
        heartbeats.published_between(since, before, LANDINGS, damaged),
        quarantine.published_between(since, before, LANDINGS),
    ]
    landed, rejected = (
        rows.group_by("message_id", use_threads=False).aggregate([("landed_at", "min")]) for rows in times if rows
    )
    landed = landed.filter(pc.is_in(landed["message_id"], suspects.combine_chunks()))
    landed = landed.append_column("message", messages_of(landed["message_id"]))
    both = landed.join(rejected, "message", "message_id", right_suffix="_rejected", use_threads=False)
    return without(good, both.filter(pc.greater(both["landed_at_min"], both["landed_at_min_rejected"]))["message_id"])


def with_seconds(rows: pa.Table | None) -> pa.Table:
    """Return the message ids with their publish second (`second`). If the rows have event times, add the event second
    (`event`) and the second of the clamped event time, by which tracking counts (`counted`)."""
    if rows is None:
        return pa.table({"message_id": pa.array([], pa.string()), "second": pa.array([], pa.int64())})
    columns = {"message_id": rows["message_id"].cast(pa.string())}
    for name, column in (("second", "publish_time"), ("event", "event_time")):
        if column in rows.column_names:
            columns[name] = pa.array(rows[column].cast(pa.int64()).to_numpy() // BUCKET_US)
    if "event" in columns:
        columns["counted"] = pc.min_element_wise(columns["event"], columns["second"])
    return pa.table(columns)


def distinct_messages(rows: pa.Table) -> pa.Table:
    """Return the rows of `with_seconds` without copies, as publish second and message id."""
    return rows.group_by(["second", "message_id"], use_threads=False).aggregate([])


def _merged(seconds: Sequence[Stretch], width: timedelta) -> list[Stretch]:
    """Merge the seconds into stretches of one width, aligned to the epoch; empty stretches are left out."""
    stretches = []
    for number, group in groupby(seconds, key=lambda second: (second.published_from - EPOCH) // width):
        together = list(group)
        stretches.append(
            Stretch(
                published_from=EPOCH + number * width,
                published_before=EPOCH + (number + 1) * width,
                tracked=sum(second.tracked for second in together),
                landed=sum(second.landed for second in together),
                outstanding_at_most=sum(second.outstanding_at_most for second in together),
                oldest_event_time=_oldest(together),
            )
        )
    return stretches


def _oldest(seconds: Sequence[Stretch]) -> datetime | None:
    times = (second.oldest_event_time for second in seconds if second.oldest_event_time is not None)
    return min(times, default=None)

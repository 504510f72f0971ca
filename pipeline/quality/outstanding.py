"""What was tracked and has not landed, by publish time: what a release would let go."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import EPOCH, from_us
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.watermark.histogram import BUCKET_US, NO_MINIMUM, Histogram, bucket_of, bucket_start

WIDTHS = tuple(
    timedelta(seconds=seconds)
    for seconds in (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 7 * 86400)
)
"""How coarsely publish seconds are shown together."""

AT_ONCE = timedelta(hours=1)
"""Of publish time, so much is read at a time: a straggler may hold days of what has landed since."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """What was published in `[start, end)`: how many messages tracking counted (an upper bound: redeliveries count
    again), how many distinct ones have landed, and the least event time that tracking saw (None: none had any)."""

    start: datetime
    end: datetime
    tracked: int
    landed: int
    outstanding: int
    oldest_event_time: datetime | None


@dataclass(frozen=True, slots=True)
class Outstanding:
    """What was published in `[since, before)`, in whole seconds. `seconds` are those in which something may be
    outstanding, in order; `tracked` and `landed` count all of them.

    Assumption: the histogram is complete for these publish times. Then no more is outstanding than is said.
    """

    since: datetime
    before: datetime
    tracked: int
    landed: int
    seconds: Sequence[Stretch]

    @property
    def at_most(self) -> int:
        """No more messages than this are outstanding."""
        return sum(second.outstanding for second in self.seconds)

    @property
    def oldest_event_time(self) -> datetime | None:
        """The least event time in the seconds in which something may be outstanding."""
        times = [second.oldest_event_time for second in self.seconds if second.oldest_event_time is not None]
        return min(times, default=None)

    def in_lines(self, at_most: int) -> list[Stretch]:
        """The seconds, grouped no more coarsely than it takes to have so few."""
        lines: list[Stretch] = []
        for width in WIDTHS:
            lines = list(_grouped(self.seconds, width))
            if len(lines) <= at_most:
                break
        return lines


def outstanding(histogram: Histogram, landed: Mapping[int, int], since: datetime, before: datetime) -> Outstanding:
    """What was tracked and published in `[since, before)` less what has landed, by publish second.

    `landed` has the number of distinct landed messages by publish second, as `landed_by_second` counts them.
    """
    first, last = bucket_of(since), bucket_of(before) - 1
    start, end = np.searchsorted(histogram.publish_bucket, [first, last + 1])
    buckets, starts = np.unique(histogram.publish_bucket[start:end], return_index=True)
    counted = np.add.reduceat(histogram.count[start:end], starts) if len(starts) else starts
    oldest = np.minimum.reduceat(histogram.min_event_us[start:end], starts) if len(starts) else starts
    seconds = []
    for bucket, tracked, event_us in zip(buckets.tolist(), counted.tolist(), oldest.tolist(), strict=True):
        left = tracked - landed.get(bucket, 0)
        if left > 0:
            seconds.append(
                Stretch(
                    start=bucket_start(bucket),
                    end=bucket_start(bucket + 1),
                    tracked=tracked,
                    landed=landed.get(bucket, 0),
                    outstanding=left,
                    oldest_event_time=None if event_us == NO_MINIMUM else from_us(event_us),
                )
            )
    return Outstanding(
        since=bucket_start(first),
        before=bucket_start(last + 1),
        tracked=int(counted.sum()),
        landed=sum(count for bucket, count in landed.items() if first <= bucket <= last),
        seconds=seconds,
    )


def landed_by_second(
    heartbeats: Heartbeats, quarantine: Quarantine, since: datetime, before: datetime
) -> dict[int, int]:
    """How many distinct messages have landed, in either table, by the second in which they were published.

    `since` and `before` are whole seconds. Only files that may hold such messages are read. Memory follows the
    messages of an hour.
    """
    landed: dict[int, int] = {}
    while since < before:
        until = min(since + AT_ONCE, before)
        landed |= _landed_between(heartbeats, quarantine, since, until)
        since = until
    return landed


def _landed_between(
    heartbeats: Heartbeats, quarantine: Quarantine, since: datetime, before: datetime
) -> dict[int, int]:
    found = [table.published_between(since, before) for table in (heartbeats, quarantine)]
    known = [rows for rows in found if rows is not None]
    if not known:
        return {}
    rows = pa.concat_tables(known)
    second = pc.divide(rows["publish_time"].cast(pa.int64()), BUCKET_US)
    ids = pa.table({"second": second, "message_id": rows["message_id"]})
    distinct = ids.group_by(["second", "message_id"], use_threads=False).aggregate([])
    counts = distinct.group_by("second", use_threads=False).aggregate([("message_id", "count")])
    return dict(zip(counts["second"].to_pylist(), counts["message_id_count"].to_pylist(), strict=True))


def _grouped(seconds: Sequence[Stretch], width: timedelta) -> Iterator[Stretch]:
    together: list[Stretch] = []
    for second in seconds:
        if together and (second.start - EPOCH) // width != (together[0].start - EPOCH) // width:
            yield _sum(together, width)
            together = []
        together.append(second)
    if together:
        yield _sum(together, width)


def _sum(seconds: Sequence[Stretch], width: timedelta) -> Stretch:
    start = seconds[0].start - (seconds[0].start - EPOCH) % width
    times = [second.oldest_event_time for second in seconds if second.oldest_event_time is not None]
    return Stretch(
        start=start,
        end=start + width,
        tracked=sum(second.tracked for second in seconds),
        landed=sum(second.landed for second in seconds),
        outstanding=sum(second.outstanding for second in seconds),
        oldest_event_time=min(times, default=None),
    )

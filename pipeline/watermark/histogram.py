"""The sparse histogram of what was published: (publish-time bucket, event-time bucket) -> count, minimum.

Histograms merge in any order and grouping (a commutative monoid with `Histogram.empty()` as its identity),
so partial ones from many readers add up. Counting a redelivery twice never changes a minimum, so counts are
upper bounds and minima are exact.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

import numpy as np
import numpy.typing as npt

from pipeline.clock import from_us, to_us

BUCKET_US = 1_000_000
"""Width of a bucket in microseconds, in both time domains; bucket k is the half-open [k, k + 1) seconds."""

NO_EVENT = np.iinfo(np.int64).min
"""The event bucket of rejected messages: their publish time is known, their event time is not."""

NO_MINIMUM = np.iinfo(np.int64).max

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell, as evidence: when its messages were published, and the least event time among them."""

    publish_bucket: int
    min_event_time: datetime
    count: int

    @property
    def published_from(self) -> datetime:
        """The start of the cell's publish-time bucket."""
        return bucket_start(self.publish_bucket)


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """Four parallel int64 arrays of one length, sorted by (publish_bucket, event_bucket), keys unique.

    `newest_publish_us` is the largest publish time of a valid message that was ever folded, exact; `oldest_event_us`
    the least event time ever folded. Both survive pruning.
    """

    publish_bucket: Ints
    event_bucket: Ints
    count: Ints
    min_event_us: Ints
    newest_publish_us: int | None = None
    oldest_event_us: int | None = None

    @classmethod
    def empty(cls) -> Self:
        """No message at all."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(nothing, nothing, nothing, nothing)

    @classmethod
    def of(cls, publish_us: Ints, event_us: Ints, rejected_publish_us: Ints | None = None) -> Self:
        """The histogram of messages: the times of the valid ones (microseconds, two arrays of one length), and
        the publish times of the rejected ones."""
        rejected = np.empty(0, dtype=np.int64) if rejected_publish_us is None else rejected_publish_us
        publish = np.concatenate([publish_us, rejected]).astype(np.int64)
        event = np.concatenate([event_us, np.full(len(rejected), NO_MINIMUM)]).astype(np.int64)
        event_bucket = np.where(event == NO_MINIMUM, NO_EVENT, event // BUCKET_US)
        return cls(
            *_grouped(publish // BUCKET_US, event_bucket, np.ones(len(publish), dtype=np.int64), event),
            newest_publish_us=int(publish_us.max()) if len(publish_us) else None,
            oldest_event_us=int(event_us.min()) if len(event_us) else None,
        )

    def __len__(self) -> int:
        return len(self.count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and (
            (self.newest_publish_us, self.oldest_event_us) == (other.newest_publish_us, other.oldest_event_us)
            and all(np.array_equal(a, b) for a, b in zip(self._columns, other._columns, strict=True))
        )

    @property
    def _columns(self) -> tuple[Ints, Ints, Ints, Ints]:
        return self.publish_bucket, self.event_bucket, self.count, self.min_event_us

    @property
    def messages(self) -> int:
        """How many messages, rejected ones included; an upper bound, since redeliveries count again."""
        return int(self.count.sum())

    def __add__(self, other: "Histogram") -> "Histogram":
        """Both together. Costs a copy, and a sort of only those cells whose publish times overlap."""
        large, small = (self, other) if len(self) >= len(other) else (other, self)
        newest = max(_present(self.newest_publish_us, other.newest_publish_us), default=None)
        oldest = min(_present(self.oldest_event_us, other.oldest_event_us), default=None)
        if not len(small):
            return replace(large, newest_publish_us=newest, oldest_event_us=oldest)
        low, high = large._span(int(small.publish_bucket[0]), int(small.publish_bucket[-1]))
        overlap = [np.concatenate([a[low:high], b]) for a, b in zip(large._columns, small._columns, strict=True)]
        merged = _grouped(overlap[0], overlap[1], overlap[2], overlap[3])
        columns = [np.concatenate([a[:low], b, a[high:]]) for a, b in zip(large._columns, merged, strict=True)]
        return Histogram(columns[0], columns[1], columns[2], columns[3], newest, oldest)

    def pruned(self, from_bucket: int) -> "Histogram":
        """Without the cells that were published before `from_bucket`."""
        kept = slice(int(np.searchsorted(self.publish_bucket, from_bucket)), None)
        if kept.start == 0:
            return self
        publish, event, count, minimum = (column[kept].copy() for column in self._columns)
        return Histogram(publish, event, count, minimum, self.newest_publish_us, self.oldest_event_us)

    def is_occupied(self, publish_bucket: int) -> bool:
        """Whether any message, valid or rejected, was published in this bucket."""
        low, high = self._span(publish_bucket, publish_bucket)
        return high > low

    def next_occupied(self, publish_bucket: int) -> int | None:
        """The first occupied publish-time bucket after this one."""
        position = int(np.searchsorted(self.publish_bucket, publish_bucket, side="right"))
        return int(self.publish_bucket[position]) if position < len(self) else None

    def newest_valid_bucket(self, before: int) -> int | None:
        """The newest publish-time bucket below `before` that holds a message with an event time."""
        end = int(np.searchsorted(self.publish_bucket, before))
        valid = np.flatnonzero(self.event_bucket[:end] != NO_EVENT)
        return int(self.publish_bucket[valid[-1]]) if len(valid) else None

    def messages_between(self, low: int, high: int) -> int:
        """How many messages with an event time were published in the buckets low to high, both included."""
        start, end = self._span(low, high)
        return int(self.count[start:end][self.event_bucket[start:end] != NO_EVENT].sum())

    def minimum_between(self, low: int, high: int) -> Cell | None:
        """The cell with the least event time of those published in the buckets low to high, both included."""
        start, end = self._span(low, high)
        if start == end:
            return None
        return self._cell(start + int(np.argmin(self.min_event_us[start:end])))

    def quantile_between(self, low: int, high: int, quantile: float) -> Cell | None:
        """The least, over the publish-time buckets low to high, of each bucket's own event-time quantile.

        Of a bucket's n messages the `floor(quantile * n)` with the least event times are passed over, and the
        cell of the next one is taken with its exact minimum: never above the true quantile.
        """
        positions, below, size, total = self._ranks(low, high)
        if not len(positions):
            return None
        skipped = np.floor(quantile * total)
        holding = positions[(below <= skipped) & (skipped < below + size)]
        return self._cell(int(holding[np.argmin(self.min_event_us[holding])]))

    def frontier_between(self, low: int, high: int, quantile: float = 0.0) -> Cell | None:
        """The greatest, over the publish-time buckets low to high, of each bucket's own greatest event time.

        A bucket's greatest event time is taken as the exact minimum of its highest cell: never above a message that
        is there. Of a bucket's n messages the `floor(quantile * n)` with the greatest event times are passed over.
        """
        positions, below, size, total = self._ranks(low, high)
        if not len(positions):
            return None
        above, skipped = total - below - size, np.floor(quantile * total)
        holding = positions[(above <= skipped) & (skipped < above + size)]
        return self._cell(int(holding[np.argmax(self.min_event_us[holding])]))

    def _ranks(self, low: int, high: int) -> tuple[Ints, Ints, Ints, Ints]:
        """The cells with event times that were published in the buckets low to high: their positions, how many
        messages of the same bucket have a lesser event bucket, their own counts, and their buckets' totals."""
        start, end = self._span(low, high)
        positions = start + np.flatnonzero(self.event_bucket[start:end] != NO_EVENT)
        buckets, size = self.publish_bucket[positions], self.count[positions]
        if not len(positions):
            return positions, size, size, size
        first = np.flatnonzero(np.diff(buckets, prepend=buckets[0] - 1))
        cells = np.diff(first, append=len(buckets))
        running = np.cumsum(size) - size
        return (
            positions,
            running - np.repeat(running[first], cells),
            size,
            np.repeat(np.add.reduceat(size, first), cells),
        )

    def _cell(self, position: int) -> Cell | None:
        if self.event_bucket[position] == NO_EVENT:
            return None
        return Cell(
            publish_bucket=int(self.publish_bucket[position]),
            min_event_time=from_us(self.min_event_us[position]),
            count=int(self.count[position]),
        )

    def new_below(self, delta: "Histogram", before: int, not_before: int) -> int:
        """How many messages of `delta` fall in cells that are not here yet and were published in the buckets
        not_before to before - 1: first deliveries that came after their publish time had been declared past."""
        low, high = delta._span(not_before, before - 1)
        here = set(zip(self.publish_bucket.tolist(), self.event_bucket.tolist(), strict=True)) if high > low else set()
        cells = zip(delta.publish_bucket[low:high].tolist(), delta.event_bucket[low:high].tolist(), strict=True)
        return sum(int(n) for cell, n in zip(cells, delta.count[low:high], strict=True) if cell not in here)

    def _span(self, low: int, high: int) -> tuple[int, int]:
        """The positions of the cells published in the buckets low to high, both included."""
        start = int(np.searchsorted(self.publish_bucket, low, side="left"))
        return start, max(start, int(np.searchsorted(self.publish_bucket, high, side="right")))


def bucket_of(moment: datetime) -> int:
    """The bucket that holds a moment."""
    return to_us(moment) // BUCKET_US


def bucket_start(bucket: int) -> datetime:
    """The first moment of a bucket."""
    return from_us(bucket * BUCKET_US)


def _grouped(publish: Ints, event: Ints, count: Ints, minimum: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    if not len(publish):
        return publish, event, count, minimum
    order = np.lexsort((event, publish))
    publish, event = publish[order], event[order]
    starts = np.flatnonzero((np.diff(publish, prepend=publish[0] - 1) != 0) | (np.diff(event, prepend=0) != 0))
    return (
        publish[starts],
        event[starts],
        np.add.reduceat(count[order], starts),
        np.minimum.reduceat(minimum[order], starts),
    )


def _present(*values: int | None) -> list[int]:
    return [value for value in values if value is not None]

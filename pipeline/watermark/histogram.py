"""A sparse histogram of published messages: it maps (publish second, event second) to a count and exact minima.

Histograms can be merged in any order and grouping. A redelivered message is counted again but changes no minimum, so
counts are upper bounds and minima are exact.

An event time later than its publish time is counted as the publish time, so that a source with a fast clock makes no
other message late. Tables, windows and `late` use event times as written.
"""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, fields
from datetime import datetime, timedelta
from typing import Self

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import duration_us, from_us, to_us
from tidemark.pipeline.figures import newest_of, oldest_of

BUCKET_US = 1_000_000
"""Width of a bucket in microseconds, for publish times and event times. Bucket `k` is the second `[k, k + 1)` since the
epoch."""

NO_EVENT = np.iinfo(np.int64).min
"""Event bucket of rejected messages, whose event time does not count."""

COPY = NO_EVENT + 1
"""Event bucket of a copy, whose message is already counted. Like a rejected message, the copy only shows that something
was published in its publish second."""

NO_MINIMUM = np.iinfo(np.int64).max
A_COPY = NO_MINIMUM - 1
"""Stands for the event time of a copy in arrays of event times. NO_MINIMUM stands for that of a rejected message."""

BEFORE_ALL, AFTER_ALL = -(1 << 62), 1 << 62

SLOT_US = BUCKET_US // 50
"""Width of a slot in microseconds: a fiftieth of a second. A cell has one bit per slot of its publish second. The bit
is set if a message was published in the slot."""

Ints = npt.NDArray[np.int64]
MERGES = (np.add, np.minimum, np.minimum, np.maximum, np.bitwise_or)
"""Functions that merge the values of two cells with the same key, in the order of the columns: count, earliest event
time, first publish time, last publish time, and slots."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of the histogram, as evidence of a decision: the second in which its messages were published, the earliest
    event time of these messages, and their number."""

    publish_bucket: int
    min_event_time: datetime
    count: int

    @property
    def published_from(self) -> datetime:
        return bucket_start(self.publish_bucket)


@dataclass(frozen=True, slots=True, eq=False)
class Histogram:
    """A histogram as parallel int64 arrays. They are sorted by (publish_bucket, event_bucket), which is unique.

    - `min_event_us`, `first_publish_us` and `last_publish_us` are exact, so a band may begin or end within a second.
    - `published_in`: bit `k` is set if a message was published in slot `k` of the publish second; 0 means unknown.
    - `newest_publish_us` is the largest publish time of any valid message, and `oldest_event_us` the earliest event
      time. Both include pruned cells.
    """

    publish_bucket: Ints
    event_bucket: Ints
    count: Ints
    min_event_us: Ints
    first_publish_us: Ints
    last_publish_us: Ints
    published_in: Ints
    _: KW_ONLY
    newest_publish_us: int | None = None
    oldest_event_us: int | None = None

    @classmethod
    def empty(cls) -> Self:
        """Return an empty histogram."""
        return cls(*np.empty((len(COLUMNS), 0), dtype=np.int64))

    @classmethod
    def of(cls, publish_us: Ints, event_us: Ints) -> Self:
        """Return the histogram of messages, given their times in microseconds. The event time is `NO_MINIMUM` for a
        rejected message and `A_COPY` for a copy."""
        return cls.of_cells(cells_of(publish_us, event_us))

    @classmethod
    def of_cells(cls, columns: Sequence[Ints]) -> Self:
        """Return the histogram with these arrays, in the order of `COLUMNS`. They must be sorted by the first two, and
        each pair of values of the first two must be unique."""
        _, event_bucket, _, min_event_us, _, last_publish_us, _ = columns
        valid = event_bucket > COPY
        if not valid.any():
            return cls(*columns)
        newest, oldest = int(last_publish_us[valid].max()), int(min_event_us[valid].min())
        return cls(*columns, newest_publish_us=newest, oldest_event_us=oldest)

    def __len__(self) -> int:
        return len(self.count)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Histogram) and (
            (self.newest_publish_us, self.oldest_event_us) == (other.newest_publish_us, other.oldest_event_us)
            and all(np.array_equal(a, b) for a, b in zip(self._columns, other._columns, strict=True))
        )

    @property
    def _columns(self) -> tuple[Ints, ...]:
        return tuple(getattr(self, name) for name in COLUMNS)

    @property
    def messages(self) -> int:
        """Number of messages, including rejected ones; an upper bound, because redeliveries are counted again."""
        return int(self.count.sum())

    @property
    def rejected(self) -> int:
        """Number of rejected messages; an upper bound, because redeliveries are counted again."""
        return int(self.count[self.event_bucket == NO_EVENT].sum())

    def __add__(self, other: "Histogram") -> "Histogram":
        """Merge two histograms. Copies the arrays, and sorts only the cells whose publish times overlap."""
        large, small = (self, other) if len(self) >= len(other) else (other, self)
        newest = newest_of(self.newest_publish_us, other.newest_publish_us)
        oldest = oldest_of(self.oldest_event_us, other.oldest_event_us)
        if not len(small):
            return Histogram(*large._columns, newest_publish_us=newest, oldest_event_us=oldest)
        columns, added = large._columns, small._columns
        low, high = large._span(int(small.publish_bucket[0]), int(small.publish_bucket[-1]))
        if low < high:
            added = tuple(grouped([np.concatenate((a[low:high], b)) for a, b in zip(columns, added, strict=True)]))
        joined = [np.concatenate((a[:low], b, a[high:])) for a, b in zip(columns, added, strict=True)]
        return Histogram(*joined, newest_publish_us=newest, oldest_event_us=oldest)

    def pruned(self, from_bucket: int) -> "Histogram":
        """Return the histogram without the cells of messages published before `from_bucket`."""
        start = int(self.publish_bucket.searchsorted(from_bucket))
        if start == 0:
            return self
        kept = [column[start:].copy() for column in self._columns]
        return Histogram(*kept, newest_publish_us=self.newest_publish_us, oldest_event_us=self.oldest_event_us)

    def only(self, kept: npt.NDArray[np.bool_]) -> "Histogram":
        """Return the histogram of the cells that the mask `kept` selects, as if no other message had ever been
        published."""
        return self.of_cells([column[kept] for column in self._columns])

    def next_occupied(self, publish_bucket: int) -> int | None:
        """Return the first publish-time bucket, not below `publish_bucket`, that has any message, even a rejected one;
        None if there is none."""
        position = int(self.publish_bucket.searchsorted(publish_bucket))
        return int(self.publish_bucket[position]) if position < len(self) else None

    def newest_valid_bucket(self, before: int) -> int | None:
        """Return the newest publish-time bucket below `before` that has a message with an event time; None if there is
        none."""
        end = int(self.publish_bucket.searchsorted(before))
        valid = self.event_bucket[:end] > COPY
        return int(self.publish_bucket[end - 1 - valid[::-1].argmax()]) if valid.any() else None

    def newest_valid_before(self, limit_us: int) -> int | None:
        """Return the newest publish time, before `limit_us`, of a message with an event time; None if there is none.

        The result is never too late. It is exact unless the publish times of a cell straddle the limit. In this
        case, it may be the start of the newest occupied slot of 20 ms that ends at or before the limit or, if there is
        no such slot, the cell's first publish time.
        """
        bucket = limit_us // BUCKET_US
        cells = self._valid(bucket, bucket)
        begun = cells[self.first_publish_us[cells] < limit_us]
        if len(begun):
            first, last = self.first_publish_us[begun], self.last_publish_us[begun]
            # The slots that end before the limit.
            before = self.published_in[begun] & ((1 << (limit_us % BUCKET_US // SLOT_US)) - 1)
            # `frexp` returns one more than the number of the highest bit. It is exact for numbers below 2 ** 53.
            newest_slot_us = bucket * BUCKET_US + (np.frexp(before)[1].astype(np.int64) - 1) * SLOT_US
            return int(np.where(last < limit_us, last, np.maximum(first, newest_slot_us)).max())
        older = self.newest_valid_bucket(before=bucket)
        return None if older is None else int(self.last_publish_us[self._valid(older, older)].max())

    def greatest_lag_us(self, publish_bucket: int) -> int:
        """Return an upper bound of `publish time - event time` of the messages published in a bucket. It exceeds the
        largest difference by at most two seconds.

        The bucket must have a message with an event time.
        """
        cells = self._valid(publish_bucket, publish_bucket)
        return int((self.last_publish_us[cells] - self.min_event_us[cells]).max())

    def since(self, publish_us: int, high: int) -> Ints:
        """Return the positions of the cells that have an event time and a message published at `publish_us` or later,
        in buckets up to `high`."""
        cells = self._valid(publish_us // BUCKET_US, high)
        return cells[self.last_publish_us[cells] >= publish_us]

    def messages_at(self, positions: Ints | npt.NDArray[np.bool_]) -> int:
        """Count the messages of the cells at these positions, or of those that a mask selects."""
        return int(self.count[positions].sum())

    def minimum_at(self, positions: Ints) -> Cell | None:
        """Return the cell with the earliest event time among these positions; None if there are no positions. Each cell
        must have an event time."""
        return self._cell(positions[self.min_event_us[positions].argmin()]) if len(positions) else None

    def quantile_between(self, low: int, high: int, quantile: float) -> Cell | None:
        """For each publish-time bucket from `low` to `high`, find the event-time quantile. Return the cell with the
        earliest of these quantiles.

        In a bucket with n messages, the `floor(quantile * n)` earliest event times are skipped. The cell with the next
        event time represents the bucket. Its earliest event time is never above the true quantile.
        """
        positions = self._valid(low, high)
        size, bucket = self.count[positions], self.publish_bucket[positions]
        first = np.diff(bucket, prepend=bucket[:1] - 1).nonzero()[0]
        cells = np.diff(first, append=len(bucket))
        running = np.cumsum(size) - size
        before = running - np.repeat(running[first], cells)  # messages of the bucket with a lesser event bucket
        skipped = np.floor(quantile * np.repeat(np.add.reduceat(size, first), cells))
        return self.minimum_at(positions[(before <= skipped) & (skipped < before + size)])

    def frontier_before(self, limit_us: int, not_before: int) -> Cell | None:
        """Return the cell with the greatest event time, among the cells with a message published before `limit_us`, in
        buckets from `not_before` on. The earliest event time of each cell is compared, so the result is never too high.
        """
        cells = self._valid(not_before, limit_us // BUCKET_US)
        holding = cells[self.first_publish_us[cells] < limit_us]
        return self._cell(holding[self.min_event_us[holding].argmax()]) if len(holding) else None

    def _cell(self, position: np.int64) -> Cell:
        event_time = from_us(self.min_event_us[position])
        return Cell(int(self.publish_bucket[position]), event_time, int(self.count[position]))

    def new_below(self, delta: "Histogram", before: int, not_before: int) -> int:
        """Count the messages of `delta` whose cells this histogram lacks, in the publish-time buckets `not_before` to
        `before - 1`.

        Copies never count as new. If this histogram has a copy in a publish second, no message of that second counts as
        new. The reason: the copy may be redelivered, and then be counted as a message with an event time.
        """
        low, high = delta._span(not_before, before - 1)
        if low == high:
            return 0
        begin, end = self._span(int(delta.publish_bucket[low]), int(delta.publish_bucket[high - 1]))
        here = set(zip(self.publish_bucket[begin:end].tolist(), self.event_bucket[begin:end].tolist(), strict=True))
        cells = zip(delta.publish_bucket[low:high].tolist(), delta.event_bucket[low:high].tolist(), strict=True)
        return sum(
            n
            for cell, n in zip(cells, delta.count[low:high].tolist(), strict=True)
            if cell not in here and cell[1] != COPY and (cell[0], COPY) not in here
        )

    def holding(self, max_lag: timedelta | None) -> "Histogram":
        """Return the histogram without the cells that lag more than `max_lag`. The messages of these cells are passed
        over: they do not hold the watermark. Rejected messages are kept.

        The lag of a cell is its first publish time minus the end of its event bucket. A lag that is computed in this
        way is up to two seconds too small. So a message that lags at most `max_lag` is never passed over.

        `newest_publish_us` is computed from the kept cells. `reachable_from` ensures that the newest of them is not
        pruned.
        """
        return self if max_lag is None else self.only(~self._is_passed_over(max_lag))

    def passed_over(self, max_lag: timedelta | None, positions: Ints | None = None) -> int:
        """Return an upper bound for the number of messages that are passed over because of `max_lag` (see `holding`),
        in all cells or in the cells at `positions`."""
        if max_lag is None:
            return 0
        over = self._is_passed_over(max_lag)
        return self.messages_at(over if positions is None else positions[over[positions]])

    def _is_passed_over(self, max_lag: timedelta) -> npt.NDArray[np.bool_]:
        is_timed = self.event_bucket > COPY
        ends_us = (np.where(is_timed, self.event_bucket, 0) + 1) * BUCKET_US
        over: npt.NDArray[np.bool_] = is_timed & (self.first_publish_us - ends_us >= duration_us(max_lag))
        return over

    def _span(self, low: int, high: int) -> tuple[int, int]:
        start = int(self.publish_bucket.searchsorted(low))
        return start, max(start, int(self.publish_bucket.searchsorted(high, "right")))

    def _valid(self, low: int, high: int) -> Ints:
        """Return the positions of cells with event times published in the buckets low to high, inclusive."""
        start, end = self._span(low, high)
        (positions,) = (self.event_bucket[start:end] > COPY).nonzero()
        positions += start
        return positions


COLUMNS = [column.name for column in fields(Histogram) if not column.kw_only]
"""Names of a histogram's arrays. The first two together are the key of a cell."""


def bucket_of(moment: datetime) -> int:
    """Return the bucket that holds a moment."""
    return to_us(moment) // BUCKET_US


def bucket_start(bucket: int) -> datetime:
    """Return the first moment of a bucket."""
    return from_us(bucket * BUCKET_US)


def cells_of(publish_us: Ints, event_us: Ints, *keys: Ints) -> list[Ints]:
    """Count messages, and return the columns of the resulting cells. `event_us` is `NO_MINIMUM` for a rejected message
    and `A_COPY` for a copy. Messages with different `keys` are counted in different cells; the key columns come
    first."""
    is_timed = event_us < A_COPY
    counted_us = np.where(is_timed, clamped(event_us, publish_us), NO_MINIMUM)
    event_bucket = np.where(is_timed, counted_us // BUCKET_US, np.where(event_us == A_COPY, COPY, NO_EVENT))
    slots = np.left_shift(np.int64(1), publish_us % BUCKET_US // SLOT_US)
    cells = [publish_us // BUCKET_US, event_bucket, np.ones_like(publish_us), counted_us, publish_us, publish_us, slots]
    return grouped([*keys, *cells])


def clamped(event_us: Ints, publish_us: Ints) -> Ints:
    """Return the event times. An event time later than its publish time is replaced with the publish time."""
    return np.minimum(event_us, publish_us)


def grouped(columns: Sequence[Ints], merges: Sequence[np.ufunc] = MERGES) -> list[Ints]:
    """Merge rows with equal keys, and sort by key. `merges` are the functions for the last columns, one each; the other
    columns are the key."""
    keys, values = columns[: -len(merges)], columns[-len(merges) :]
    if not len(keys[0]):
        return list(columns)
    order = np.lexsort(tuple(reversed(keys)))
    ordered = [key[order] for key in keys]
    begins = np.ones(len(order), dtype=bool)
    begins[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in ordered])
    starts = np.flatnonzero(begins)
    merged = [merge.reduceat(value[order], starts) for merge, value in zip(merges, values, strict=True)]
    return [*(key[starts] for key in ordered), *merged]

"""Counting tracked messages: their times become a histogram."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader, Rejection, Undecided
from tidemark.pipeline.contract.judging import Bools, Judged, Part, judge, judged_parts, publisher_ids
from tidemark.pipeline.contract.messages import Attributes, Messages
from tidemark.pipeline.ingest.copies import RememberedCopies, keys_of
from tidemark.pipeline.watermark.histogram import A_COPY, NO_MINIMUM, Histogram, Ints, cells_of

AT_ONCE = 200
"""Laggards whose payloads are decoded together. Objects that live on cost the garbage collector more than the decoding
of a few at a time."""

NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Counted:
    """How many messages were looked at, what they add to the histogram, the keys and publish times of those that may
    have copies, and by its position each message that is undecided, which counts for nothing."""

    messages: int
    histogram: Histogram
    keys: Ints = field(default_factory=NONE.copy)
    publish_us: Ints = field(default_factory=NONE.copy)
    undecided: Mapping[int, Undecided] = field(default_factory=dict)


def counted_parts(
    messages: Messages,
    reader: HeartbeatReader,
    copies: RememberedCopies,
    asking: Asking,
    laggard: timedelta | None = None,
) -> Iterator[Counted]:
    """Count messages, in parts that bound memory and work, in order. A rejected one counts by its publish time alone,
    and so does a copy of a remembered one. Where messages hold several heartbeats, each counts, and a rejection beside
    them.

    A message that lags more than `laggard` is judged by its payload as well, where it is there: one without a payload
    may have lost it to a transform, and counts in full. So does one whose payload is undecided.
    """
    if reader.contract.needs_payload:
        for part in judged_parts(messages, reader, asking):
            yield _counted_part(part, reader, copies)
        return
    judged, published_us = judge(messages.attributes, None, messages.published_us, reader), messages.published_us
    is_good = judged.is_heartbeat.copy()
    if laggard is not None and reader.contract.payload.is_read:
        late = np.flatnonzero(is_good & (published_us - judged.event_us > duration_us(laggard)))
        is_good[late] = ~_are_unreadable(messages, late, reader, asking)
    rows = _Rows(judged, is_good, messages.attributes, None, published_us, messages.payloads)
    yield Counted(len(messages), *rows.counted(reader, copies))


def _are_unreadable(messages: Messages, late: Ints, reader: HeartbeatReader, asking: Asking) -> Bools:
    """Which of these messages have a payload that cannot be read."""
    found = np.zeros(len(late), dtype=np.bool_)
    has_payload = np.fromiter((bool(messages.payloads[row]) for row in late), dtype=np.bool_, count=len(late))
    left = np.flatnonzero(has_payload)
    while len(left):
        rest = Messages(messages.table.take(pa.array(late[left[:AT_ONCE]])))
        payloads = reader.decode(rest, asking).payloads
        found[left[: len(payloads)]] = [isinstance(payload, Rejection) for payload in payloads]
        left = left[len(payloads) :]
    return found


def _counted_part(part: Part, reader: HeartbeatReader, copies: RememberedCopies) -> Counted:
    judged, elements, messages = part.judged, part.elements, part.messages
    published_us, data, first, end = messages.published_us, messages.payloads, 0, len(messages)
    is_counted = np.ones(len(judged.is_heartbeat), dtype=np.bool_)
    is_counted[list(judged.undecided)] = False
    undecided = judged.undecided
    if elements is not None:
        first, end = elements.first, elements.end
        published_us, data = published_us[elements.owners], [data[owner] for owner in elements.owners]
        is_counted &= elements.counted(judged.is_heartbeat)
        undecided = {elements.owners[row] - first: why for row, why in undecided.items()}
    rows = _Rows(judged, judged.is_heartbeat, part.attributes, part.payloads, published_us, data)
    histogram, keys, publish_us = rows.counted(reader, copies, is_counted)
    return Counted(end - first, histogram, keys, publish_us, undecided)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Judged rows: which of them are good, and where their ids and payloads are found."""

    judged: Judged
    is_good: Bools
    attributes: Attributes
    payloads: Sequence[Any] | None
    published_us: Ints
    data: Sequence[bytes | None]

    def counted(
        self, reader: HeartbeatReader, copies: RememberedCopies, is_counted: Bools | None = None
    ) -> tuple[Histogram, Ints, Ints]:
        """What they add to the histogram, and the keys and publish times of those that may have copies: those with an
        id of their publisher."""
        every = slice(None) if is_counted is None else is_counted
        event_us, published_us = np.where(self.is_good, self.judged.event_us, NO_MINIMUM), self.published_us
        if not copies.is_on:
            return _histogram(published_us[every], event_us[every]), NONE, NONE
        ids = publisher_ids(reader.contract, self.attributes, self.payloads)
        named = self.is_good & ids.is_valid().to_numpy(zero_copy_only=False)
        if not named.any():
            return _histogram(published_us[every], event_us[every]), NONE, NONE
        streams, written = self.judged.stream_ids.to_pylist(), ids.to_pylist()
        keys = keys_of(streams, written, self.judged.event_us.tolist(), self.data)
        are_copies = named & copies.are_copies(keys, published_us)
        first = named & ~are_copies
        event_us = np.where(are_copies, A_COPY, event_us)
        return _histogram(published_us[every], event_us[every]), keys[first], published_us[first]


def _histogram(publish_us: Ints, event_us: Ints) -> Histogram:
    return Histogram.of_cells(cells_of(publish_us, event_us))

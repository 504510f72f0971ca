"""Counts tracked messages: turns their times into a histogram."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

import numpy as np
import pyarrow as pa

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader, Rejection, Undecided
from tidemark.pipeline.contract.judging import Bools, JudgedPart, judge, judged_parts, publisher_ids
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.ingest.copies import RememberedCopies, keys_of
from tidemark.pipeline.watermark.histogram import A_COPY, NO_MINIMUM, Histogram, Ints, cells_of

AT_ONCE = 200
"""Number of laggards whose payloads are decoded together. Small batches are cheaper: long-lived objects cost the
garbage collector more than the decoding."""

NONE: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of counting: the number of messages, their histogram, the keys and publish times of those that may
    have copies, and the undecided messages by position, which are not in the histogram."""

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
    """Count messages in order, in parts that bound memory and work. A rejected message, or a copy of a remembered one,
    counts by its publish time alone. If messages hold several heartbeats, each counts, and so does a rejection beside
    them.

    A message that lags more than `laggard` is also judged by its payload, if it has one. It counts in full without a
    payload, which a transform may have dropped, or if its payload is undecided.
    """
    if reader.contract.needs_payload:
        for part in judged_parts(messages, reader, asking):
            yield _counted_part(part, reader, copies)
        return
    judged = judge(messages.attributes, None, messages.published_us, reader)
    if laggard is not None and reader.contract.payload.is_read:
        lag_us = messages.published_us - judged.event_us
        late = np.flatnonzero(judged.is_heartbeat & (lag_us > duration_us(laggard)))
        judged.is_heartbeat[late] = ~_are_unreadable(messages, late, reader, asking)
    yield _counted_part(JudgedPart(messages, messages.attributes, (), judged), reader, copies)


def _are_unreadable(messages: Messages, late: Ints, reader: HeartbeatReader, asking: Asking) -> Bools:
    """Return a mask of the late messages whose payload cannot be read."""
    found = np.zeros(len(late), dtype=np.bool_)
    has_payload = np.fromiter((bool(messages.payloads[row]) for row in late), dtype=np.bool_, count=len(late))
    left = np.flatnonzero(has_payload)
    while len(left):
        rest = Messages(messages.table.take(pa.array(late[left[:AT_ONCE]])))
        payloads = reader.decode(rest, asking).payloads
        found[left[: len(payloads)]] = [isinstance(payload, Rejection) for payload in payloads]
        left = left[len(payloads) :]
    return found


def _counted_part(part: JudgedPart, reader: HeartbeatReader, copies: RememberedCopies) -> Counted:
    judged, elements, messages = part.judged, part.elements, part.messages
    is_good, event_us, undecided = judged.is_heartbeat, judged.event_us, judged.undecided
    published_us, data, first, end = messages.published_us, messages.payloads, 0, len(messages)
    is_counted = np.ones(len(is_good), dtype=np.bool_)
    is_counted[list(undecided)] = False
    if elements is not None:
        first, end = elements.first, elements.end
        published_us, data = published_us[elements.owners], [data[owner] for owner in elements.owners]
        is_counted &= elements.counted(is_good)
        undecided = {elements.owners[row] - first: why for row, why in undecided.items()}
    is_first, keys, event_us = NONE, NONE, np.where(is_good, event_us, NO_MINIMUM)
    if copies.is_on:
        ids = publisher_ids(reader.contract, part.attributes, part.payloads)
        named = is_good & ids.is_valid().to_numpy(zero_copy_only=False)
        if named.any():
            keys = keys_of(judged.stream_ids.to_pylist(), ids.to_pylist(), judged.event_us.tolist(), data)
            are_copies = named & copies.are_copies(keys, published_us)
            is_first, event_us = np.flatnonzero(named & ~are_copies), np.where(are_copies, A_COPY, event_us)
    histogram = Histogram.of_cells(cells_of(published_us[is_counted], event_us[is_counted]))
    return Counted(end - first, histogram, keys[is_first], published_us[is_first], undecided)

"""Counts the messages of the tracking subscription in a histogram, and recognizes copies.

A copy is a message that a publisher sent again, with the same stream, id, event time, payload and schema. Once the
tracking log has the first message, its copies do not hold back the watermark. The first message does, until it has
landed.
"""

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader, Rejection, Undecided
from tidemark.pipeline.contract.judging import Judged, judge, judged_parts, publisher_ids
from tidemark.pipeline.contract.messages import Bools, Messages
from tidemark.pipeline.contract.payloads.decoder import READ_BY, Decoded
from tidemark.pipeline.watermark.histogram import A_COPY, NO_MINIMUM, Histogram, Ints, grouped

MOST_REMEMBERED = 1_000_000
"""Maximum number of messages remembered to recognize copies. They take 16 MB, and cover ten minutes of traffic at
1,600 messages per second."""

ATTEMPTS_NOTED = 4
"""Maximum number of attempts (counted batches) that a process keeps until it knows that they are in the log. One is not
enough, because the next batch is counted before the previous one is in the log."""


class RememberedCopies:
    """The messages that this process has recorded in the tracking log, each with its smallest publish time. They serve
    to recognize copies.

    Guarantee: `are_copies` is true only if the log has the same message with an earlier or equal publish time. Only the
    newest `at_most` messages are remembered, and none that is more than `within` older than the newest. The next copy
    of a forgotten message counts as a first message, which at worst holds the watermark back longer.

    A message is identified by a 64-bit hash of its key, salted per process. With a million messages remembered, the
    probability that a message is mistaken for a copy is below 1 in 10 trillion. Such a message may be late.
    """

    def __init__(self, within: timedelta = timedelta(0), at_most: int = MOST_REMEMBERED) -> None:
        self._within_us, self._at_most = duration_us(within), at_most
        self.is_on = bool(within) and at_most > 0
        self._keys, self._publish_us = np.empty((2, 0), dtype=np.int64)
        self._noted: dict[str, tuple[Ints, Ints]] = {}

    def are_copies(self, keys: Ints, publish_us: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask that is true for each message that is a copy: the same message is remembered with an earlier or
        equal publish time."""
        if not len(self._keys):
            return np.zeros(len(keys), dtype=np.bool_)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known: npt.NDArray[np.bool_] = (self._keys[place] == keys) & (self._publish_us[place] <= publish_us)
        return known

    def note(self, keys: Ints, publish_us: Ints) -> str:
        """Keep a counted batch, without its copies, until `settle` confirms that the batch is in the log. Return a new
        name for this attempt."""
        attempt = uuid.uuid4().hex
        if self.is_on and len(keys):
            self._noted[attempt] = keys, publish_us
        return attempt

    def settle(self, attempts: Collection[str]) -> None:
        """Remember the messages of these attempts (counted batches), which are now in the log. Of the other attempts,
        keep the newest ATTEMPTS_NOTED."""
        for attempt in [name for name in self._noted if name in attempts]:
            self._remember(*self._noted.pop(attempt))
        for name in list(self._noted)[:-ATTEMPTS_NOTED]:
            del self._noted[name]

    def _remember(self, keys: Ints, publish_us: Ints) -> None:
        keys, publish_us = np.concatenate([self._keys, keys]), np.concatenate([self._publish_us, publish_us])
        oldest_us = int(publish_us.max()) - self._within_us
        # The sort is quick, because the remembered keys are sorted already.
        keys, publish_us = grouped([keys, publish_us], [np.minimum])
        kept = publish_us >= oldest_us
        if np.count_nonzero(kept) > self._at_most:
            kept = np.zeros(len(keys), dtype=np.bool_)
            kept[np.argpartition(publish_us, -self._at_most)[-self._at_most :]] = True
        self._keys, self._publish_us = (keys, publish_us) if kept.all() else (keys[kept], publish_us[kept])


def keys_of(*columns: Iterable[Any]) -> Ints:
    """Return one hash per message, over its values in `columns`: stream, id, event time and payload. With a schema or
    an envelope, `columns` also has the attributes in READ_BY. The payload and these attributes count, because base may
    accept one message and reject another that differs only in them."""
    return np.fromiter(map(hash, zip(*columns, strict=True)), dtype=np.int64)


NO_FIRSTS: Ints = np.empty((2, 0), dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Counted:
    """The result of counting messages.

    - `firsts` has two rows: the keys (from `keys_of`) and the publish times of the heartbeats that have a publisher id
      and are not copies.
    - `undecided` contains the messages that cannot be judged yet, by position. They are not in the histogram.
    - `left` is always empty: unlike landing, counting leaves no message for later.
    """

    left: ClassVar[Sequence[int]] = ()

    messages: int
    histogram: Histogram
    firsts: Ints
    undecided: Mapping[int, Undecided]


def counted_parts(
    messages: Messages, reader: HeartbeatReader, copies: RememberedCopies, asking: Asking, laggard: timedelta | None
) -> Iterator[Counted]:
    """Count messages in order, in parts whose memory is bounded.

    A rejected message, or a copy of a remembered message, is counted with its publish time only. If a message holds
    several heartbeats, each heartbeat is counted, and its rejected elements together count as one message.

    If the contract needs only attributes, a payload is judged only if its message lags more than `laggard` (None:
    never). If it were not judged, the message would hold back the watermark even if base rejects the payload. If the
    payload cannot be judged yet, or a transform dropped it, the message is counted with its event time.
    """
    if reader.contract.needs_payload:
        for judged in judged_parts(messages, reader, asking):
            yield _counted(judged, reader, copies)
        return
    judged = judge(messages, Decoded(messages.attributes, ()), reader)
    if laggard is not None and reader.contract.payload.is_read:
        lag_us = messages.published_us - judged.event_us
        late = np.flatnonzero(judged.is_heartbeat & (lag_us > duration_us(laggard)))
        judged.is_heartbeat[late] = ~_are_unreadable(messages, late, reader, asking)
    yield _counted(judged, reader, copies)


def _are_unreadable(messages: Messages, late: Ints, reader: HeartbeatReader, asking: Asking) -> Bools:
    found = np.zeros(len(late), dtype=np.bool_)
    has_payload = pc.fill_null(pc.greater(pc.binary_length(messages.table["payload"]), 0), False).to_numpy()[late]
    are_all = len(late) == len(messages) and has_payload.all()
    asked = messages if are_all else Messages(messages.table.take(pa.array(late[has_payload])))
    found[has_payload] = [isinstance(payload, Rejection) for payload in reader.decoder.each(asked, asking)]
    return found


def _counted(judged: Judged, reader: HeartbeatReader, copies: RememberedCopies) -> Counted:
    elements, messages = judged.elements, judged.messages
    is_good, event_us, undecided = judged.is_heartbeat, judged.event_us, judged.undecided
    published_us = messages.published_us
    is_counted = np.ones(len(is_good), dtype=np.bool_)
    is_counted[list(undecided)] = False
    if elements is not None:
        published_us = published_us[elements.owners]
        is_counted &= elements.counted(is_good)
        undecided = {int(elements.owners[row]): why for row, why in undecided.items()}
    firsts, event_us = NO_FIRSTS, np.where(is_good, event_us, NO_MINIMUM)
    if copies.is_on:
        ids = publisher_ids(reader.contract, judged)
        named = is_good & ids.is_valid().to_numpy(zero_copy_only=False)
        if named.any():
            written = reader.contract.payload
            read_by = READ_BY if written.has_schema or written.envelope else ()
            said = (judged.attributes.column(name).to_pylist() for name in read_by)
            sent = messages.payloads
            data = sent if elements is None else [sent[owner] for owner in elements.owners.tolist()]
            keys = keys_of(judged.stream_ids.to_pylist(), ids.to_pylist(), judged.event_us.tolist(), data, *said)
            are_copies = named & copies.are_copies(keys, published_us)
            firsts = np.stack([keys, published_us])[:, named & ~are_copies]
            event_us = np.where(are_copies, A_COPY, event_us)
    histogram = Histogram.of(published_us[is_counted], event_us[is_counted])
    return Counted(len(messages), histogram, firsts, undecided)

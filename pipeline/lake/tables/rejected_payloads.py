"""Messages in `quarantine` with readable times and a payload that was rejected: by these times they hold the watermark
as any message does."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract, Rejection, RejectionReason
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.lake.tables.requeued import NO_IDS, without

COLUMNS = ("message_id", "reason", "publish_time", "attributes")

MOST = 100_000
"""Rows that are read by the contract at most, so that a flood of them does not stop a command."""


@dataclass(frozen=True, slots=True)
class RejectedPayload:
    """A message's stream, and its times in microseconds: the event time as it counts for the watermark."""

    stream_id: str
    publish_us: int
    event_us: int

    @property
    def lag_us(self) -> int:
        """How long before it was published it happened."""
        return self.publish_us - self.event_us


def rejected_payloads(
    quarantine: Quarantine,
    contract: MessageContract,
    since: datetime,
    before: datetime,
    requeued: pa.Array = NO_IDS,
) -> list[RejectedPayload]:
    """The messages that were published in `[since, before)` and wait, each once; of more than MOST, those published
    first. Those with the ids `requeued` wait no more. None where stream or event time is in the payload: then it has no
    times. Raises LakeError."""
    rows = None if contract.needs_payload else quarantine.published_between(since, before, COLUMNS)
    if rows is None:
        return []
    rows = without(rows.filter(pc.equal(rows["reason"], RejectionReason.UNREADABLE_PAYLOAD.value)), requeued)
    if len(rows) > MOST:
        rows = rows.take(pc.select_k_unstable(rows, MOST, [("publish_time", "ascending")]))
    reader, found = HeartbeatReader(contract), dict[str, RejectedPayload]()
    for row in rows.select(["message_id", "publish_time", "attributes"]).to_pylist():
        publish_us = to_us(row["publish_time"])
        heartbeat = reader.read(dict(row["attributes"] or ()), None, publish_us)
        if not isinstance(heartbeat, Rejection):  # by the contract of today
            event_us = min(heartbeat.event_time_us, publish_us)
            found[row["message_id"]] = RejectedPayload(heartbeat.stream_id, publish_us, event_us)
    return list(found.values())


def by_stream(messages: Iterable[RejectedPayload]) -> Mapping[str, int]:
    """How many of each stream, the most first."""
    return dict(Counter(message.stream_id for message in messages).most_common())

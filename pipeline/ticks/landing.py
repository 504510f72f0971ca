"""One tick of the base subscription: messages become rows of `heartbeats`, or of `quarantine` with a reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import numpy as np

from pipeline.clock import Clock, from_us, to_us
from pipeline.heartbeat import HeartbeatReader, Rejection, RejectionReason, read_payload
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.pubsub.subscription import Acknowledged, Subscription
from pipeline.ticks.budget import Budget, batches
from pipeline.ticks.judging import Payload, attributes_of, field_column, judge, publish_time_us


@dataclass(frozen=True, slots=True)
class Landed:
    """What a landing tick did. `late` counts landings below the watermark of their moment, copies included;
    `of_another_kind` counts, by field, values that are of another kind than configured (they count as null)."""

    heartbeats: int = 0
    rejected: Counter[RejectionReason] = field(default_factory=Counter)
    late: int = 0
    of_another_kind: Counter[str] = field(default_factory=Counter)
    oldest_event_time: datetime | None = None
    newest_event_time: datetime | None = None
    acknowledged: Acknowledged = field(default_factory=Acknowledged)

    @property
    def messages(self) -> int:
        """All that were made durable, rejected ones included."""
        return self.heartbeats + self.rejected.total()

    def __add__(self, other: "Landed") -> "Landed":
        oldest = [moment for moment in (self.oldest_event_time, other.oldest_event_time) if moment is not None]
        newest = [moment for moment in (self.newest_event_time, other.newest_event_time) if moment is not None]
        return Landed(
            heartbeats=self.heartbeats + other.heartbeats,
            rejected=self.rejected + other.rejected,
            late=self.late + other.late,
            of_another_kind=self.of_another_kind + other.of_another_kind,
            oldest_event_time=min(oldest, default=None),
            newest_event_time=max(newest, default=None),
            acknowledged=self.acknowledged + other.acknowledged,
        )


class Keeper(Protocol):
    """Where what was sorted out is made durable."""

    def keep(self, sorted_out: "SortedOut") -> tuple[str, ...]:
        """Keep a batch; durable on return. The names of the objects that hold its heartbeats and that nothing else
        lists; none where they are in a table. Raises LakeError."""
        ...


class Tables:
    """Keeps heartbeats in `heartbeats`, and rejected messages in `quarantine`."""

    def __init__(self, heartbeats: Heartbeats, quarantine: Quarantine) -> None:
        self._heartbeats = heartbeats
        self._quarantine = quarantine

    def keep(self, sorted_out: "SortedOut") -> tuple[str, ...]:
        """A transaction for each table that gets rows."""
        if sorted_out.accepted["message_id"]:
            self._heartbeats.append(sorted_out.accepted)
        if sorted_out.refused["message_id"]:
            self._quarantine.append(sorted_out.refused)
        return ()


def land(
    subscription: Subscription,
    *,
    heartbeats: Heartbeats,
    quarantine: Quarantine,
    log: TrackingLog,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
) -> Landed:
    """Pull, make durable, acknowledge, and report what landed.

    Guarantee: what is acknowledged on base is in `heartbeats` or in `quarantine`. Any number of readers may run
    at once. Raises PubSubError or LakeError; then nothing that is not durable was acknowledged.
    """
    landed, tables = Landed(), Tables(heartbeats, quarantine)
    log.newest_watermark()  # before anything is pulled: with a damaged log nothing could be judged
    for batch in batches(subscription, budget, clock):
        with subscription.leased(batch.ack_ids):
            sorted_out = SortedOut.of(batch.messages, reader, log.newest_watermark(), clock.now())
            tables.keep(sorted_out)
            acknowledged = subscription.acknowledge(batch.ack_ids)
        landed += sorted_out.report(acknowledged)
        del batch, sorted_out
    return landed


@dataclass(frozen=True, slots=True)
class SortedOut:
    """A batch as columns: what is a heartbeat, and what is not, with the reason."""

    accepted: dict[str, list[Any]]
    refused: dict[str, list[Any]]
    of_another_kind: Counter[str]

    @classmethod
    def of(
        cls, messages: Sequence[Any], reader: HeartbeatReader, watermark: datetime | None, landed_at: datetime
    ) -> "SortedOut":
        """Judge messages by the contract, once. A heartbeat with an event time below `watermark` is late."""
        contract = reader.contract
        published_us, attributes = [publish_time_us(message) for message in messages], attributes_of(messages)
        payloads: list[Payload] = (
            [read_payload(message.data) for message in messages] if contract.payload_is_json else [{}] * len(messages)
        )
        judged = judge(attributes, payloads, published_us, reader)
        whole = {
            "message_id": [message.message_id for message in messages],
            "publish_time": published_us,
            "ordering_key": [message.ordering_key or None for message in messages],
            "attributes": attributes,
            "payload": [message.data for message in messages],
            "landed_at": [to_us(landed_at)] * len(messages),
        }
        rows = np.flatnonzero(judged.is_heartbeat).tolist()
        event_us = judged.event_us[judged.is_heartbeat]
        is_late = np.zeros(len(rows), dtype=np.bool_) if watermark is None else event_us < to_us(watermark)
        accepted: dict[str, list[Any]] = {
            "stream_id": _picked(judged.stream_ids, rows),
            "event_time": event_us.tolist(),
            "publisher_id": _picked([held.get(contract.publisher_id_attribute) or None for held in attributes], rows),
            **{name: _picked(column, rows) for name, column in whole.items()},
            "late": is_late.tolist(),
        }
        known = [payload for payload in _picked(payloads, rows) if not isinstance(payload, Rejection)]
        of_another_kind: Counter[str] = Counter()
        for name, kind in contract.fields.items():
            accepted[name], others = field_column(known, name, kind)
            if others:
                of_another_kind[name] = others
        refused_rows = sorted(judged.rejections)
        refused: dict[str, list[Any]] = {
            "reason": [judged.rejections[row].reason.value for row in refused_rows],
            "detail": [judged.rejections[row].detail for row in refused_rows],
            **{name: _picked(column, refused_rows) for name, column in whole.items()},
        }
        return cls(accepted, refused, of_another_kind)

    @property
    def oldest_publish_time(self) -> datetime | None:
        """The least publish time of all messages, or None without any."""
        oldest = min((*self.accepted["publish_time"], *self.refused["publish_time"]), default=None)
        return None if oldest is None else from_us(oldest)

    def report(self, acknowledged: Acknowledged) -> Landed:
        """What the batch amounts to, once it is durable and acknowledged."""
        event_us = self.accepted["event_time"]
        return Landed(
            heartbeats=len(event_us),
            rejected=Counter(RejectionReason(reason) for reason in self.refused["reason"]),
            late=sum(self.accepted["late"]),
            of_another_kind=self.of_another_kind,
            oldest_event_time=from_us(min(event_us)) if event_us else None,
            newest_event_time=from_us(max(event_us)) if event_us else None,
            acknowledged=acknowledged,
        )


def _picked(column: list[Any], rows: Sequence[int]) -> list[Any]:
    return column if len(rows) == len(column) else [column[row] for row in rows]

"""One tick of the base subscription: messages become rows of `heartbeats`, or of `quarantine` with a reason."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from pipeline.clock import Clock, from_us, to_us
from pipeline.heartbeat import Heartbeat, HeartbeatReader, Rejection, RejectionReason, read_field, read_payload
from pipeline.lake.heartbeats import Heartbeats
from pipeline.lake.quarantine import Quarantine
from pipeline.lake.tracking_log import TrackingLog
from pipeline.pubsub.subscription import Acknowledged, Subscription
from pipeline.ticks.budget import Budget, batches
from pipeline.ticks.tracking import publish_time_us


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
    log.catch_up()  # before anything is pulled: with a damaged log nothing could be judged, and all would come again
    for batch in batches(subscription, budget, clock):
        with subscription.leased(batch):
            sorted_out = SortedOut.of(batch.messages, reader, log.catch_up().watermark, clock.now())
            tables.keep(sorted_out)
            acknowledged = subscription.acknowledge(batch)
        landed += sorted_out.report(acknowledged)
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
        fields = reader.contract.fields
        publisher_id = reader.contract.publisher_id_attribute
        watermark_us = None if watermark is None else to_us(watermark)
        whole = ("message_id", "publish_time", "ordering_key", "attributes", "payload", "landed_at")
        accepted: dict[str, list[Any]] = {
            name: [] for name in ("stream_id", "event_time", "publisher_id", *whole, "late", *fields)
        }
        refused: dict[str, list[Any]] = {name: [] for name in ("reason", "detail", *whole)}
        of_another_kind: Counter[str] = Counter()
        landed_at_us = to_us(landed_at)
        for message in messages:
            published = publish_time_us(message)
            payload = read_payload(message.data) if reader.contract.payload_is_json else {}
            known = None if isinstance(payload, Rejection) else payload
            if isinstance(payload, Rejection) and reader.contract.needs_payload:
                heartbeat: Heartbeat | Rejection = payload
            else:
                heartbeat = reader.read(message.attributes, known, published)
            if isinstance(heartbeat, Heartbeat) and isinstance(payload, Rejection):
                heartbeat = payload
            columns = refused if isinstance(heartbeat, Rejection) else accepted
            columns["message_id"].append(message.message_id)
            columns["publish_time"].append(published)
            columns["ordering_key"].append(message.ordering_key or None)
            columns["attributes"].append(list(message.attributes.items()))
            columns["payload"].append(message.data)
            columns["landed_at"].append(landed_at_us)
            if isinstance(heartbeat, Rejection):
                refused["reason"].append(heartbeat.reason.value)
                refused["detail"].append(heartbeat.detail)
                continue
            accepted["stream_id"].append(heartbeat.stream_id)
            accepted["event_time"].append(heartbeat.event_time_us)
            accepted["publisher_id"].append(message.attributes.get(publisher_id) or None)
            accepted["late"].append(watermark_us is not None and heartbeat.event_time_us < watermark_us)
            for name, kind in fields.items():
                value = read_field(known or {}, name, kind)
                accepted[name].append(value)
                if value is None and (known or {}).get(name) is not None:
                    of_another_kind[name] += 1
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

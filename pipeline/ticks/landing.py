"""One tick of the base subscription: messages become rows of `heartbeats`, or of `quarantine` with a reason."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow.compute as pc

from pipeline.clock import Clock
from pipeline.heartbeat import HeartbeatReader, RejectionReason
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.pubsub.subscription import Acknowledged, PulledBatch, Subscription
from pipeline.ticks.budget import Budget, for_each_batch
from pipeline.ticks.judging import JudgedBatch


@dataclass(frozen=True, slots=True)
class Landed:
    """The result of a landing tick.

    `late` counts landings below the watermark of their moment, copies included. `of_another_kind` counts by field the
    values of another kind than configured, which are landed as null. `oldest_publish_time` is of rejected ones as well.
    """

    heartbeats: int = 0
    rejected: Counter[RejectionReason] = field(default_factory=Counter)
    late: int = 0
    of_another_kind: Counter[str] = field(default_factory=Counter)
    oldest_event_time: datetime | None = None
    newest_event_time: datetime | None = None
    oldest_publish_time: datetime | None = None
    acknowledged: Acknowledged = field(default_factory=Acknowledged)

    @classmethod
    def of(cls, judged: JudgedBatch, acknowledged: Acknowledged) -> "Landed":
        """The result of one batch, once it is durable."""
        events = pc.min_max(judged.heartbeats["event_time"]).as_py()
        return cls(
            heartbeats=len(judged.heartbeats),
            rejected=Counter(RejectionReason(reason) for reason in judged.rejected["reason"].to_pylist()),
            late=pc.sum(judged.heartbeats["late"]).as_py() or 0,
            of_another_kind=judged.of_another_kind,
            oldest_event_time=events["min"],
            newest_event_time=events["max"],
            oldest_publish_time=judged.oldest_publish_time,
            acknowledged=acknowledged,
        )

    @property
    def messages(self) -> int:
        """Messages made durable, rejected ones included."""
        return self.heartbeats + self.rejected.total()

    def __add__(self, other: "Landed") -> "Landed":
        newest = (self.newest_event_time, other.newest_event_time)
        return Landed(
            heartbeats=self.heartbeats + other.heartbeats,
            rejected=self.rejected + other.rejected,
            late=self.late + other.late,
            of_another_kind=self.of_another_kind + other.of_another_kind,
            oldest_event_time=_oldest(self.oldest_event_time, other.oldest_event_time),
            newest_event_time=max((moment for moment in newest if moment is not None), default=None),
            oldest_publish_time=_oldest(self.oldest_publish_time, other.oldest_publish_time),
            acknowledged=self.acknowledged + other.acknowledged,
        )


def _oldest(*moments: datetime | None) -> datetime | None:
    return min((moment for moment in moments if moment is not None), default=None)


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
    log.newest_watermark()  # before anything is pulled: with a damaged log nothing could be judged

    def land_batch(batch: PulledBatch) -> Landed:
        with subscription.leased(batch.ack_ids):
            judged = JudgedBatch.of(batch.messages, reader, log.newest_watermark(), clock.now())
            if len(judged.heartbeats):
                heartbeats.append(judged.heartbeats)
            if len(judged.rejected):
                quarantine.append(judged.rejected)
            return Landed.of(judged, subscription.acknowledge(batch.ack_ids))

    return sum(for_each_batch(subscription, budget, clock, land_batch), Landed())

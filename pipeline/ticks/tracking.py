"""One tick of the tracking subscription: what was published becomes the histogram, and the watermark is decided."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np

from pipeline.clock import Clock
from pipeline.durations import rough
from pipeline.errors import ReadingUnavailable, SnapshotRefused
from pipeline.heartbeat import HeartbeatReader, read_payload
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog
from pipeline.pubsub.subscription import Acknowledged, PulledBatch, Subscription
from pipeline.ticks.budget import Budget, for_each_batch
from pipeline.ticks.judging import attributes_of, judge, publish_time_us
from pipeline.watermark.decision import Decision
from pipeline.watermark.histogram import Histogram
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import Reading
from pipeline.watermark.rules import RULES, Rule
from pipeline.watermark.state import Beginning, Snapshot, WatermarkState

NO_TIME, TOLERATED = timedelta(0), timedelta(seconds=2)
"""A clock may be behind the server's by as much before a tick says so."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """Messages that became part of the histogram, and the log entries that hold them."""

    messages: int = 0
    snapshots: int = 0
    acknowledged: Acknowledged = field(default_factory=Acknowledged)

    def __add__(self, other: "Persisted") -> "Persisted":
        return Persisted(
            self.messages + other.messages,
            self.snapshots + other.snapshots,
            self.acknowledged + other.acknowledged,
        )


@dataclass(frozen=True, slots=True)
class Tracked:
    """The result of a tracking tick. `problems` are sentences about steps that the next tick tries again."""

    decision: Decision
    state: WatermarkState
    persisted: Persisted
    problems: tuple[str, ...]


def track(
    subscription: Subscription,
    *,
    tracking_backlog: Backlog,
    base_backlog: Backlog,
    log: TrackingLog,
    reader: HeartbeatReader,
    policy: Policy,
    budget: Budget,
    clock: Clock,
    rules: Sequence[Rule] = RULES,
    until_gone: bool = False,
) -> Tracked:
    """Pull, persist, acknowledge; read T and B; fold the log; decide, and make the decision durable. Pull until a batch
    is nearly empty, or within the budget `until_gone`: until a reading says that there is no backlog.

    Guarantee: what is acknowledged on tracking is in the log. Any number of trackers may run at once. Raises
    PubSubError or LakeError; then nothing unpersisted was acknowledged, and the next tick goes on from the log.
    """
    begin_where_new(log, tracking_backlog, clock)
    persisted = persist(
        subscription,
        log=log,
        reader=reader,
        budget=budget,
        clock=clock,
        backlog=tracking_backlog if until_gone else None,
    )
    # Tracking first: a message seen outstanding on base and older than T must then be in the histogram.
    tracking, tracking_problem = _reading(tracking_backlog)
    base, base_problem = _reading(base_backlog)
    decided = log.decide(lambda state: state.decide(base, tracking, policy, clock.now(), rules))
    return Tracked(
        decision=decided.decision,
        state=log.compact_if_due(),
        persisted=persisted,
        problems=(
            *persisted.acknowledged.problems,
            *(problem for problem in (tracking_problem, base_problem) if problem),
            *_clock_problem(tracking, base),
        ),
    )


def begin_where_new(log: TrackingLog, tracking_backlog: Backlog, clock: Clock) -> None:
    """Write the log's first entry if it has none. Nothing may be acknowledged on tracking before that.

    The entry names the publish time from which on the histogram will be complete: that of the oldest message that
    tracking holds, or the latest that it can be. If that message is too old to be read, it is the age at which reading
    becomes possible. Assumption: nobody has acknowledged since the reading.
    """
    if log.catch_up_to_append().complete_from is not None:
        return
    try:
        known_from = tracking_backlog.read().no_later_than
    except SnapshotRefused:
        known_from = clock.now() - (LIFETIME - REFUSED_WITHIN)
    log.begin(Beginning(known_from))


def persist(
    subscription: Subscription,
    *,
    log: TrackingLog,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
    backlog: Backlog | None = None,
) -> Persisted:
    """Pull, make each batch's histogram an entry of the log, acknowledge, and report. With tracking's `backlog` it goes
    on until that is gone; without, until a batch is nearly empty.

    Guarantee: what is acknowledged on tracking is in the log. Any number of readers may run at once. Assumption: the
    log has begun. Raises PubSubError or LakeError; then nothing unpersisted was acknowledged.
    """

    def persist_batch(batch: PulledBatch) -> Persisted:
        with subscription.leased(batch.ack_ids):
            log.append(Snapshot(histogram_of(batch.messages, reader)))
            return Persisted(len(batch), 1, subscription.acknowledge(batch.ack_ids))

    return sum(for_each_batch(subscription, budget, clock, persist_batch, backlog), Persisted())


def histogram_of(messages: Sequence[Any], reader: HeartbeatReader) -> Histogram:
    """The histogram of pulled messages; a rejected one counts by its publish time alone."""
    published_us = [publish_time_us(message) for message in messages]
    needs_payload = reader.contract.needs_payload
    payloads = [read_payload(message.data) for message in messages] if needs_payload else None
    judged = judge(attributes_of(messages), payloads, published_us, reader)
    published = np.array(published_us, dtype=np.int64)
    return Histogram.of(
        published[judged.is_heartbeat], judged.event_us[judged.is_heartbeat], published[~judged.is_heartbeat]
    )


def _clock_problem(*readings: Reading | None) -> tuple[str, ...]:
    """What to do about a clock that is provably behind the server's."""
    behind = max((reading.clock_is_behind_by for reading in readings if reading is not None), default=NO_TIME)
    if behind <= TOLERATED:
        return ()
    return (
        f"this machine's clock is at least {rough(behind)} behind Pub/Sub's; synchronize it (chrony, "
        "systemd-timesyncd): windows are computed only once their end is past by it",
    )


def _reading(backlog: Backlog) -> tuple[Reading | None, str | None]:
    """A reading, or the reason why there is none now. Lasting problems (a permission, the network) are raised."""
    try:
        return backlog.read(), None
    except ReadingUnavailable as error:
        return None, str(error)

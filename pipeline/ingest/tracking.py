"""One tick of the tracking subscription: what was published becomes the histogram, and the watermark is decided."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import Clock, duration_us, from_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, Rejection
from tidemark.pipeline.durations import rough
from tidemark.pipeline.errors import ReadingPostponed, ReadingUnavailable, SnapshotRefused
from tidemark.pipeline.ingest.budget import Budget, for_each_batch
from tidemark.pipeline.ingest.copies import MOST_REMEMBERED, RememberedCopies, keys_of
from tidemark.pipeline.ingest.elements import expanded
from tidemark.pipeline.ingest.judging import Judged, Payload, judge, publish_times_us, publisher_ids
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.log.watermark_object import WatermarkObject
from tidemark.pipeline.pubsub.backlog import LIFETIME, REFUSED_WITHIN, Backlog
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.pubsub.subscription import Acknowledged, PulledBatch, Subscription
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import A_COPY, NO_MINIMUM, Histogram, Ints, cells_of
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.state import Beginning, Snapshot, WatermarkState

EVERY = slice(None)
"""Every row."""
NO_TIME, TOLERATED = timedelta(0), timedelta(seconds=2)
"""A clock may be behind the server's by as much before a tick says so."""

AT_ONCE = 200
"""Laggards whose payloads are decoded together. Objects that live on cost the garbage collector more than the decoding
of a few at a time. With a schema it is all of them, as what is looked up in vain is bounded by call."""


@dataclass(frozen=True, slots=True)
class Persisted:
    """Messages that became part of the histogram, the log entries that hold them, and their least publish time."""

    messages: int = 0
    snapshots: int = 0
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    oldest_publish_time: datetime | None = None

    def __add__(self, other: "Persisted") -> "Persisted":
        published = (self.oldest_publish_time, other.oldest_publish_time)
        return Persisted(
            self.messages + other.messages,
            self.snapshots + other.snapshots,
            self.acknowledged + other.acknowledged,
            min((moment for moment in published if moment is not None), default=None),
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
    copies: RememberedCopies | None = None,
    rules: Sequence[Rule] = RULES,
    until_gone: bool | Backlog = False,
    spending: Spending | None = None,
    watermark_object: WatermarkObject | None = None,
) -> Tracked:
    """Pull, persist, acknowledge; read T and B; fold the log; decide, and make the decision durable. Pull until a batch
    is nearly empty, or within the budget `until_gone`: until a reading says that there is no backlog (True: one of
    `tracking_backlog`).

    Guarantee: what is acknowledged on tracking is in the log. Any number of trackers may run at once. Raises
    PubSubError or LakeError; then nothing unpersisted was acknowledged, and the next tick goes on from the log.
    `copies` is what the process remembers from tick to tick; without it every copy counts in full. `spending` learns
    what the log and the tick tell, and the decision notes what was used. `watermark_object` is told of the decision
    last; if that fails, it is one of the problems.
    """
    state = begin_where_new(log, tracking_backlog, clock)
    if spending is not None:
        spending.learn(state)
    persisted = persist(
        subscription,
        log=log,
        reader=reader,
        budget=budget,
        clock=clock,
        backlog=tracking_backlog if until_gone is True else until_gone or None,
        copies=copies,
        laggard=policy.band,
    )
    if spending is not None:
        spending.reached(subscription.path, persisted.oldest_publish_time)
    # Tracking first: a message seen outstanding on base and older than T must then be in the histogram.
    tracking, tracking_problem = _reading(tracking_backlog)
    base, base_problem = _reading(base_backlog)
    with spending.noted() if spending is not None else nullcontext() as usage:
        decided = log.decide(
            lambda state: replace(state.decide(base, tracking, policy, clock.now(), rules), usage=usage)
        )
    state = log.compact_if_due()
    untold = None if watermark_object is None else watermark_object.tell(state)
    return Tracked(
        decision=decided.decision,
        state=state,
        persisted=persisted,
        problems=(
            *persisted.acknowledged.problems,
            *(problem for problem in (tracking_problem, base_problem, untold) if problem),
            *_clock_problem(tracking, base),
        ),
    )


def begin_where_new(log: TrackingLog, tracking_backlog: Backlog, clock: Clock) -> WatermarkState:
    """Write the log's first entry if it has none, and return the state. Nothing may be acknowledged on tracking before
    that.

    The entry names the publish time from which on the histogram will be complete: that of the oldest message that
    tracking holds, or the latest that it can be. If that message is too old to be read, it is the age at which reading
    becomes possible. Assumption: nobody has acknowledged since the reading.
    """
    state = log.catch_up_to_append()
    if state.complete_from is not None:
        return state
    try:
        known_from = tracking_backlog.read().no_later_than
    except SnapshotRefused:
        known_from = clock.now() - (LIFETIME - REFUSED_WITHIN)
    return log.begin(Beginning(known_from))


def persist(
    subscription: Subscription,
    *,
    log: TrackingLog,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
    backlog: Backlog | None = None,
    copies: RememberedCopies | None = None,
    laggard: timedelta | None = None,
) -> Persisted:
    """Pull, make each batch's histogram an entry of the log, acknowledge, and report. With tracking's `backlog` it goes
    on until that is gone; without, until a batch is nearly empty.

    Guarantee: what is acknowledged on tracking is in the log. Any number of readers may run at once. Assumption: the
    log has begun. Raises PubSubError or LakeError; then nothing unpersisted was acknowledged. A message that lags more
    than `laggard` is judged by its payload as well.
    """
    remembered = RememberedCopies() if copies is None else copies

    def persist_batch(batch: PulledBatch) -> Persisted:
        with subscription.leased(batch.ack_ids):
            counted = count(batch.messages, reader, remembered, laggard)
            log.append(Snapshot(counted.histogram))
            remembered.remember(counted.keys, counted.publish_us)
            oldest = int(counted.histogram.first_publish_us.min()) if len(batch) else None
            acknowledged = subscription.acknowledge(batch.ack_ids)
            return Persisted(len(batch), 1, acknowledged, None if oldest is None else from_us(oldest))

    return sum(for_each_batch(subscription, budget, clock, persist_batch, backlog), Persisted())


@dataclass(frozen=True, slots=True)
class Counted:
    """What a batch adds to the histogram, and the keys and publish times of the messages that may have copies."""

    histogram: Histogram
    keys: Ints
    publish_us: Ints


def count(
    messages: Sequence[Any], reader: HeartbeatReader, copies: RememberedCopies, laggard: timedelta | None = None
) -> Counted:
    """Count pulled messages. A rejected one counts by its publish time alone, and so does a copy of a remembered one.
    Where messages hold several heartbeats, each counts, and a rejection beside them.

    A message that lags more than `laggard` is judged by its payload as well, where it is there: one without a payload
    may have lost it to a transform, and counts in full.
    """
    published_us, contract = publish_times_us(messages), reader.contract
    attributes: Sequence[Any] = [message.attributes for message in messages]  # protobuf's maps: few keys are looked up
    payloads: Sequence[Payload] | None = None
    if contract.needs_payload:
        attributes, payloads = reader.decode(attributes, [message.data for message in messages])
    if contract.each is not None and payloads is not None:
        return _count_elements(messages, attributes, payloads, reader, copies)
    judged = judge(attributes, payloads, published_us, reader)
    published, event_us = np.array(published_us, dtype=np.int64), judged.event_us
    is_good = judged.is_heartbeat.copy()
    if laggard is not None and contract.payload.is_read and not contract.needs_payload:
        late = np.flatnonzero(is_good & (published - event_us > duration_us(laggard))).tolist()
        at_once = AT_ONCE if not contract.payload.has_schema else len(late) or 1
        for rows in (late[first : first + at_once] for first in range(0, len(late), at_once)):
            held = {row: data for row in rows if (data := messages[row].data)}
            decoded = reader.decode([attributes[row] for row in held], list(held.values()))
            is_good[list(held)] = [not isinstance(payload, Rejection) for payload in decoded.payloads]
    ids = publisher_ids(contract, attributes, payloads) if copies.is_on else []
    data = [message.data for message in messages] if any(ids) else []
    return _counted(judged, is_good, published, ids, data, copies)


def _count_elements(
    messages: Sequence[Any],
    attributes: Sequence[Any],
    payloads: Sequence[Payload],
    reader: HeartbeatReader,
    copies: RememberedCopies,
) -> Counted:
    """Count messages that hold several heartbeats. Of keys, at most about MOST_REMEMBERED are told."""
    contract, published_us = reader.contract, publish_times_us(messages)
    data = [message.data for message in messages]
    histogram, keys, publish_us, told = Histogram.empty(), list[Ints](), list[Ints](), 0
    for rows in expanded(contract.each, attributes, payloads) if contract.each is not None else ():
        attributes_of_rows, published = rows.of(attributes), rows.of(published_us)
        judged = judge(attributes_of_rows, rows.payloads, published, reader)
        ids = publisher_ids(contract, attributes_of_rows, rows.payloads) if copies.is_on else []
        of_rows = judged.is_heartbeat, np.array(published, dtype=np.int64), ids, rows.of(data)
        counted = _counted(judged, *of_rows, copies, rows.counted(judged.is_heartbeat))
        histogram += counted.histogram
        if told < MOST_REMEMBERED:
            keys.append(counted.keys)
            publish_us.append(counted.publish_us)
            told += len(counted.keys)
    return Counted(histogram, np.concatenate(keys), np.concatenate(publish_us))


def _counted(
    judged: Judged,
    is_good: npt.NDArray[np.bool_],
    published: Ints,
    ids: Sequence[str | None],
    data: Sequence[bytes],
    copies: RememberedCopies,
    counted: npt.NDArray[np.bool_] | slice = EVERY,
) -> Counted:
    """Count the rows `counted`. Those with an id of their publisher and its payload in `data` may have copies."""
    counted_us = np.where(is_good, judged.event_us, NO_MINIMUM)
    if not any(ids):
        return Counted(_histogram(published[counted], counted_us[counted]), *np.empty((2, 0), dtype=np.int64))
    named = is_good & np.fromiter(map(bool, ids), dtype=np.bool_, count=len(ids))
    keys = keys_of(judged.stream_ids, ids, judged.event_us.tolist(), data)
    are_copies = named & copies.are_copies(keys, published)
    first = named & ~are_copies
    event_us = np.where(are_copies, A_COPY, counted_us)
    return Counted(_histogram(published[counted], event_us[counted]), keys[first], published[first])


def histogram_of(messages: Sequence[Any], reader: HeartbeatReader) -> Histogram:
    """The histogram of pulled messages, each of which counts in full."""
    return count(messages, reader, RememberedCopies()).histogram


def _histogram(publish_us: Ints, event_us: Ints) -> Histogram:
    return Histogram.of_cells(cells_of(publish_us, event_us))


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
    """A reading, or the reason why there is none now; that none is due is no problem. Lasting problems (a permission,
    the network) are raised."""
    try:
        return backlog.read(), None
    except ReadingPostponed as error:
        return None, None if error.__cause__ is None else str(error)
    except ReadingUnavailable as error:
        return None, str(error)

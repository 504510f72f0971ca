"""A round of many readers: each takes messages and makes them durable apart from the others, then one transaction makes
them visible, one entry of the log counts them, and only after that they are acknowledged.

So the number of commits and of log entries follows the number of rounds, not the traffic. The order is the guarantee:
take, add, acknowledge. What is acknowledged is visible to every run that begins later, so the watermark needs to know
nothing of rounds.
"""

import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa

from tidemark.pipeline.clock import Clock, from_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.budget import Budget
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.judging import JudgedBatch
from tidemark.pipeline.ingest.landing import Landed
from tidemark.pipeline.ingest.tracking import Counted, Persisted, count
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.pubsub.subscription import Acknowledged, PulledBatch, Subscription
from tidemark.pipeline.watermark.histogram import Histogram, Ints
from tidemark.pipeline.watermark.state import Snapshot
from tidemark.pipeline.watermark.usage import Usage

FILE_BYTES = 64 << 20
"""A reader writes what it holds into files when it is larger than this: so much is in memory, and a few times as much
while it is written."""

ACKNOWLEDGED_AT_ONCE = 8
"""Calls that acknowledge side by side. Each takes a few milliseconds, most of them waiting."""

NOTHING_USED = Usage()

ACKNOWLEDGED_IN_A_CALL = 10_000
"""Acknowledgements that one of these threads sends, in calls of what a call may hold."""


@dataclass(frozen=True, slots=True)
class TakenHeartbeats:
    """What one reader of base has taken in a round: durable files that no version of a table lists yet, and the ids
    that acknowledge their messages. `landed` counts them; nothing is acknowledged."""

    landed: Landed = field(default_factory=Landed)
    heartbeats: Sequence[NewFile] = ()
    rejected: Sequence[NewFile] = ()
    ack_ids: Sequence[str] = ()
    usage: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class TakenTimes:
    """What one reader of tracking has taken in a round: the histogram of its messages, which is nowhere else yet, and
    the ids that acknowledge them. `attempt` names what the reader would remember once the histogram is durable."""

    histogram: Histogram
    messages: int = 0
    ack_ids: Sequence[str] = ()
    attempt: str = ""
    usage: Usage = field(default_factory=Usage)


def take_heartbeats(
    subscription: Subscription,
    *,
    heartbeats: NewFiles,
    quarantine: NewFiles,
    watermark: datetime | None,
    reader: HeartbeatReader,
    budget: Budget,
    clock: Clock,
) -> TakenHeartbeats:
    """Pull from base until the budget is spent, judge, and write files. Nothing is acknowledged, and leases are kept
    until this returns.

    Any number of readers may run at once. A reader that dies, or whose answer is lost, has done nothing: its messages
    come again, and its files are orphans. A heartbeat below `watermark` is late. Raises PubSubError or LakeError.
    """
    taken = TakenHeartbeats()
    good, bad = _Files(heartbeats), _Files(quarantine)
    ack_ids: list[str] = []
    size = 0
    with ExitStack() as leases:
        for batch in _batches(subscription, budget, clock):
            leases.enter_context(subscription.leased(batch.ack_ids))
            ack_ids.extend(batch.ack_ids)
            size += batch.size_bytes
            for judged in JudgedBatch.parts_of(batch.messages, reader, watermark, clock.now()):
                good.hold(judged.heartbeats)
                bad.hold(judged.rejected)
                taken = replace(taken, landed=taken.landed + Landed.of(judged))
        used = Usage(landed=len(ack_ids), landed_bytes=size)
        return replace(taken, heartbeats=good.written(), rejected=bad.written(), ack_ids=ack_ids, usage=used)


class _Files:
    """Rows of a table on their way into files."""

    def __init__(self, files: NewFiles) -> None:
        self._files = files
        self._held: list[pa.Table] = []
        self._size = 0
        self._written: list[NewFile] = []

    def hold(self, rows: pa.Table) -> None:
        if not len(rows):
            return
        self._held.append(rows)
        self._size += rows.nbytes
        if self._size >= FILE_BYTES:
            self.written()

    def written(self) -> Sequence[NewFile]:
        if self._held:
            self._written += self._files.write(pa.concat_tables(self._held))
        self._held, self._size = [], 0
        return self._written


def take_times(
    subscription: Subscription,
    *,
    reader: HeartbeatReader,
    remembered: "Provisional",
    laggard: timedelta | None,
    budget: Budget,
    clock: Clock,
) -> TakenTimes:
    """Pull from tracking until the budget is spent, and count. Nothing is acknowledged, and leases are kept until this
    returns. Any number of readers may run at once. A message that lags more than `laggard` is judged by its payload as
    well. Raises PubSubError."""
    histogram, ack_ids, parts, size = Histogram.empty(), list[str](), list[Counted](), 0
    with ExitStack() as leases:
        for batch in _batches(subscription, budget, clock):
            leases.enter_context(subscription.leased(batch.ack_ids))
            ack_ids.extend(batch.ack_ids)
            size += batch.size_bytes
            counted = count(batch.messages, reader, remembered.copies, laggard)
            histogram += counted.histogram
            parts.append(counted)
    used = Usage(tracked=len(ack_ids), tracked_bytes=size)
    return TakenTimes(histogram, len(ack_ids), ack_ids, remembered.note(parts), used)


def _batches(subscription: Subscription, budget: Budget, clock: Clock) -> Iterator[PulledBatch]:
    """Batches until the budget is spent, however little comes: a round is as long as its budget says."""
    until = clock.monotonic() + budget.max_time.total_seconds()
    messages, size = budget.max_messages, budget.max_bytes
    while messages > 0 and size > 0 and (left := until - clock.monotonic()) > 0:
        wanted = min(budget.batch_messages, messages)
        batch = subscription.pull(wanted, size, left, messages - wanted)
        messages -= len(batch)
        size -= batch.size_bytes
        if len(batch):
            yield batch


class Provisional:
    """The copies that a process remembers, and those that it may remember once their round is durable.

    Guarantee: a message is remembered only after its histogram is an entry of the log: by the attempt that was counted
    there. What other attempts have counted, of which Spark may start several, is dropped.
    """

    def __init__(self, copies: RememberedCopies) -> None:
        self.copies = copies
        self._noted: dict[str, tuple[Ints, Ints]] = {}

    def note(self, counted: Sequence[Counted]) -> str:
        """Note what an attempt has counted in full; the attempt's name."""
        attempt = uuid.uuid4().hex
        if self.copies.is_on and counted:
            keys, publish_us = (
                np.concatenate([getattr(one, name) for one in counted]) for name in ("keys", "publish_us")
            )
            self._noted[attempt] = keys, publish_us
        return attempt

    def settle(self, attempts: frozenset[str]) -> None:
        """Remember what these attempts have counted, which is in the log now, and drop what is older."""
        for attempt in [name for name in self._noted if name in attempts]:
            self.copies.remember(*self._noted.pop(attempt))
        for name in list(self._noted)[:-ATTEMPTS_NOTED]:
            del self._noted[name]


ATTEMPTS_NOTED = 4
"""Attempts of a process that may still be settled: one round is under way while the one before is."""


@dataclass(frozen=True, slots=True)
class Settled:
    """What a round has landed and tracked, all of it visible, in the log, and acknowledged as far as that went. `used`
    is what the next entry of the log has to note, because this round had none."""

    landed: Landed = field(default_factory=Landed)
    persisted: Persisted = field(default_factory=Persisted)
    used: Usage = field(default_factory=Usage)

    def __add__(self, other: "Settled") -> "Settled":
        return Settled(self.landed + other.landed, self.persisted + other.persisted, self.used + other.used)


def settle(
    of_base: Sequence[TakenHeartbeats],
    of_tracking: Sequence[TakenTimes],
    *,
    base: Subscription,
    tracking: Subscription,
    heartbeats: NewFiles,
    quarantine: NewFiles,
    log: TrackingLog,
    clock: Clock,
    says: Mapping[str, str],
    used: Usage = NOTHING_USED,
) -> Settled:
    """Make what the readers of a round have taken visible, then acknowledge it: one entry of the log, one transaction
    of each table. Leases are kept meanwhile. The entry notes what the readers used, and what rounds before have `used`.

    Guarantee: what is acknowledged on tracking is in the log; what is acknowledged on base is visible in `heartbeats`
    or `quarantine`. Any number of rounds may be settled at once, by any number of processes. Assumption: the log has
    begun. Raises PubSubError or LakeError; then nothing was acknowledged that is not visible, and what is visible and
    was not acknowledged comes again, as copies.
    """
    with ThreadPoolExecutor(ACKNOWLEDGED_AT_ONCE, thread_name_prefix="acknowledge") as pool:
        used = sum((one.usage for taken in (of_base, of_tracking) for one in taken), used)
        histogram = sum((one.histogram for one in of_tracking), Histogram.empty())
        persisted = _settle_tracking(of_tracking, tracking, log, Snapshot(histogram, used, clock.now()), pool)
        landed = _settle_base(of_base, base, heartbeats, quarantine, says, pool)
    return Settled(landed, persisted, used=NOTHING_USED if persisted.snapshots else used)


def _settle_tracking(
    taken: Sequence[TakenTimes], subscription: Subscription, log: TrackingLog, entry: Snapshot, pool: ThreadPoolExecutor
) -> Persisted:
    ack_ids = [ack_id for one in taken for ack_id in one.ack_ids]
    if not ack_ids:
        return Persisted()
    with subscription.leased(ack_ids):
        log.append(entry)
        acknowledged = _acknowledge(subscription, ack_ids, pool)
    oldest = from_us(int(entry.histogram.first_publish_us.min()))
    return Persisted(sum(one.messages for one in taken), 1, acknowledged, oldest)


def _settle_base(
    taken: Sequence[TakenHeartbeats],
    subscription: Subscription,
    heartbeats: NewFiles,
    quarantine: NewFiles,
    says: Mapping[str, str],
    pool: ThreadPoolExecutor,
) -> Landed:
    ack_ids = [ack_id for one in taken for ack_id in one.ack_ids]
    if not ack_ids:
        return Landed()
    with subscription.leased(ack_ids):
        rejected = [file for one in taken for file in one.rejected]
        quarantine.add(rejected, says)
        landed = [file for one in taken for file in one.heartbeats]
        heartbeats.add(landed, says)
        acknowledged = _acknowledge(subscription, ack_ids, pool)
    return replace(sum((one.landed for one in taken), Landed()), acknowledged=acknowledged)


def _acknowledge(subscription: Subscription, ack_ids: Sequence[str], pool: ThreadPoolExecutor) -> Acknowledged:
    chunks = [
        ack_ids[first : first + ACKNOWLEDGED_IN_A_CALL] for first in range(0, len(ack_ids), ACKNOWLEDGED_IN_A_CALL)
    ]
    return sum(pool.map(subscription.acknowledge, chunks), Acknowledged())

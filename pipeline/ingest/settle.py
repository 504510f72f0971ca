"""Settling: what readers have taken becomes visible, and only after that it is acknowledged.

One entry of the log, one transaction of each table, then acknowledge: the order is the guarantee. What is acknowledged
is visible to every run that begins later, so the watermark needs to know nothing of rounds.
"""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime

from tidemark.pipeline.clock import Clock, from_us
from tidemark.pipeline.errors import PubSubError
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.outcome import Landed, Persisted, Settled, Side, Taken, Waiting
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.pubsub.subscription import Acknowledged, Subscription
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.state import Snapshot
from tidemark.pipeline.watermark.usage import Usage

ACKNOWLEDGED_AT_ONCE = 8
"""Calls that acknowledge side by side. Each takes a few milliseconds, most of them waiting."""

ACKNOWLEDGED_IN_A_CALL = 10_000
"""Acknowledgements that one of these threads sends, in calls of what a call may hold."""

SAYS_NOTHING: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Settling:
    """Where one process settles: the log and the tables, and the subscriptions that it acknowledges on. A process that
    settles one side alone needs that side's parts. `copies` is what this process remembers, if it is its own readers
    that track."""

    log: TrackingLog
    clock: Clock
    tracking: Subscription | None = None
    base: Subscription | None = None
    heartbeats: NewFiles | None = None
    quarantine: NewFiles | None = None
    copies: RememberedCopies = field(default_factory=RememberedCopies)

    def hold(self, taken: Sequence[Taken]) -> None:
        """Keep the leases of what other processes have taken."""
        for one in taken:
            self._of(one.side).hold(one.ack_ids)

    def give_back(self, taken: Sequence[Taken]) -> None:
        """Let go of what is not settled: it comes again at once."""
        for one in taken:
            with suppress(PubSubError):
                self._of(one.side).give_back(one.ack_ids)

    def settle(
        self, taken: Sequence[Taken], says: Mapping[str, str] = SAYS_NOTHING, used: Usage | None = None
    ) -> Settled:
        """Make what readers have taken visible, then acknowledge it. The entry notes what they used, and what others
        before have `used`; without `used`, the decisions of this process note it. The commits say what they `say`.

        Guarantee: what is acknowledged on tracking is in the log; what is acknowledged on base is visible in
        `heartbeats` or `quarantine`. Any number of processes may settle at once. Assumption: the log has begun. Raises
        PubSubError, LakeError, and ContractReplaced where the lake's newest contract is not the one that judged; then
        nothing was acknowledged that is not visible, and what was not acknowledged comes again.
        """
        try:
            usage = None if used is None else sum((one.used for one in taken), used)
            persisted = self._settle_tracking([one for one in taken if one.side is Side.TRACKING], usage)
            landed = self._settle_base([one for one in taken if one.side is Side.BASE], says)
        except BaseException:
            self.give_back(taken)
            raise
        return Settled(landed, persisted, usage if usage is not None and not persisted.snapshots else Usage())

    def _settle_tracking(self, taken: Sequence[Taken], usage: Usage | None) -> Persisted:
        ack_ids, waiting = _ids(taken), sum((one.waiting for one in taken), Waiting())
        if not ack_ids:
            return Persisted(waiting=waiting)
        histogram = sum((one.histogram for one in taken), Histogram.empty())
        entry = Snapshot(histogram) if usage is None else Snapshot(histogram, usage, self.clock.now())
        self.log.append(entry, judged_by=_contract(taken))
        self.copies.settle({one.attempt for one in taken})
        acknowledged = acknowledge(self._of(Side.TRACKING), ack_ids)
        return Persisted(len(ack_ids), 1, acknowledged, _oldest(histogram), waiting)

    def _settle_base(self, taken: Sequence[Taken], says: Mapping[str, str]) -> Landed:
        ack_ids, waiting = _ids(taken), sum((one.waiting for one in taken), Waiting())
        if not ack_ids:
            return Landed(waiting=waiting)
        if self.heartbeats is None or self.quarantine is None:
            raise ValueError("messages of base are settled by a process with both tables")
        self.log.refuse_other(_contract(taken))
        self.quarantine.add([file for one in taken for file in one.rejected], says)
        self.heartbeats.add([file for one in taken for file in one.heartbeats], says)
        acknowledged = acknowledge(self._of(Side.BASE), ack_ids)
        return replace(sum((one.landed for one in taken), Landed()), acknowledged=acknowledged, waiting=waiting)

    def _of(self, side: Side) -> Subscription:
        subscription = self.tracking if side is Side.TRACKING else self.base
        if subscription is None:
            raise ValueError(f"messages of {side} are settled by a process with that subscription")
        return subscription


def acknowledge(subscription: Subscription, ack_ids: Sequence[str]) -> Acknowledged:
    """Acknowledge, many by several threads. Raises SubscriptionMissing and PermissionMissing."""
    if len(ack_ids) <= ACKNOWLEDGED_IN_A_CALL:
        return subscription.acknowledge(ack_ids)
    firsts = range(0, len(ack_ids), ACKNOWLEDGED_IN_A_CALL)
    chunks = [ack_ids[first : first + ACKNOWLEDGED_IN_A_CALL] for first in firsts]
    with ThreadPoolExecutor(ACKNOWLEDGED_AT_ONCE, thread_name_prefix="acknowledge") as pool:
        return sum(pool.map(subscription.acknowledge, chunks), Acknowledged())


def _ids(taken: Sequence[Taken]) -> list[str]:
    return [ack_id for one in taken for ack_id in one.ack_ids]


def _contract(taken: Sequence[Taken]) -> str:
    """What judged these. Raises ValueError where readers were told differently."""
    (contract,) = {one.contract for one in taken}
    return contract


def _oldest(histogram: Histogram) -> datetime | None:
    return from_us(int(histogram.first_publish_us.min())) if len(histogram) else None

"""Settles messages that readers have taken: makes them visible, and only then acknowledges them.

The guarantee follows from the order of steps. For tracking: write one entry of the log, then acknowledge. For base:
commit one transaction per table, then acknowledge. So each acknowledged message is visible to every later run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import ContractReplaced
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Ingested, Settled, Side, Taken
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.pubsub.schemas import PubSubSchemas
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.state import Snapshot
from tidemark.pipeline.watermark.usage import Usage

NO_METADATA: Mapping[str, str] = {}


@dataclass(frozen=True, slots=True)
class Settling:
    """Settles messages in one process.

    - `subscriptions` are those whose messages it settles.
    - `tables` are the writers of `heartbeats` and `quarantine`. They are needed for messages of base.
    - `copies` are the messages that this process remembers, so that its own readers of tracking recognize copies.
    """

    log: TrackingLog
    clock: Clock
    subscriptions: Mapping[Side, PubSubSubscription]
    tables: Sequence[NewFiles] = ()
    copies: RememberedCopies = field(default_factory=RememberedCopies)

    def hold(self, taken: Sequence[Taken]) -> None:
        """Extend the leases of messages that other processes have taken."""
        for one in taken:
            self.subscriptions[one.side].hold(one.ack_ids)

    def give_back(self, taken: Sequence[Taken]) -> None:
        """Give back messages that were not settled, so that they are redelivered soon."""
        for one in taken:
            self.subscriptions[one.side].give_back(one.ack_ids)

    def settle(
        self, taken: Sequence[Taken], metadata: Mapping[str, str] = NO_METADATA, used: Usage | None = None
    ) -> Settled:
        """Make taken messages visible, then acknowledge them.

        Guarantee: each message acknowledged on tracking is in the log, and each message acknowledged on base is visible
        in `heartbeats` or `quarantine`. Several processes may settle at the same time. The log must have its first
        entry.

        The commits of the tables have this `metadata`. If `used` is given, the log entry records the usage: `used`
        plus the readers' usage. If `used` is None, the entry records no usage, because this process's decisions record
        it.

        Raises PubSubError or LakeError. Raises ContractReplaced if the messages were not judged by the lake's newest
        contract. The guarantee also holds after an error, and messages that were not acknowledged are redelivered.
        """
        try:
            usage = None if used is None else sum((one.used for one in taken), used)
            persisted = self._settle(Side.TRACKING, taken, lambda tracked: self._persist(tracked, usage))
            landed = self._settle(Side.BASE, taken, lambda landed: self._add(landed, metadata))
        except BaseException:
            self.give_back(taken)
            raise
        return Settled(landed, persisted, usage if usage is not None and not persisted.snapshots else Usage())

    def _settle(self, side: Side, taken: Sequence[Taken], make_visible: Callable[[Sequence[Taken]], None]) -> Ingested:
        taken = [one for one in taken if one.side is side]
        ingested = sum((one.ingested for one in taken), Ingested())
        ack_ids = [ack_id for one in taken for ack_id in one.ack_ids]
        if not ack_ids:
            return ingested
        make_visible(taken)
        acknowledged = self.subscriptions[side].acknowledge(ack_ids)
        return replace(ingested, acknowledged=acknowledged, snapshots=1 if side is Side.TRACKING else 0)

    def _persist(self, tracked: Sequence[Taken], usage: Usage | None) -> None:
        histogram = sum((one.histogram for one in tracked), Histogram.empty())
        entry = Snapshot(histogram) if usage is None else Snapshot(histogram, usage, self.clock.now())
        self.log.append(entry, judged_by=_contract(tracked))
        self.copies.settle({one.attempt for one in tracked})

    def _add(self, landed: Sequence[Taken], metadata: Mapping[str, str]) -> None:
        heartbeats, quarantine = self.tables
        self.log.refuse_other(_contract(landed))
        quarantine.add([file for one in landed for file in one.rejected], metadata)
        heartbeats.add([file for one in landed for file in one.heartbeats], metadata)


def _contract(taken: Sequence[Taken]) -> str:
    contract, *others = {one.contract for one in taken}
    if others:
        raise ContractReplaced(
            "the readers of one round judged messages by different contracts. The messages will be redelivered. Give "
            "all executors the same tidemark version and the same schema file"
        )
    return contract


def new_files(lake: Lake, clock: Clock) -> tuple[NewFiles, NewFiles]:
    """Return the writers of the tables `heartbeats` and `quarantine`."""
    return NewFiles(lake.heartbeats(), clock), NewFiles(lake.quarantine(), clock)


def judge_of(settings: Settings, lake: Lake) -> HeartbeatReader:
    """Return the reader that judges messages by the contract in the settings, with the schemas that the lake has
    accepted."""
    accepted = lake.accepted_schemas(settings.message.schema_names)
    return HeartbeatReader(settings.contract, PubSubSchemas(settings.pubsub.server, accepted), settings.judged_by)

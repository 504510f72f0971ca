"""The readers of a round: their instructions, and the reader of each process."""

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import count

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.outcome import Side, Taken
from tidemark.pipeline.ingest.take import Budget, Keeper, Landing, Tracking, pulled, take
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.pubsub.subscription import PubSubSubscription, lease_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.usage import Usage

TICK_MESSAGES, TICK_BYTES = 250_000, 256 << 20
"""Maximum messages and bytes of one tick."""

BATCH_MESSAGES: Mapping[Side, int] = {Side.TRACKING: 25_000, Side.BASE: 20_000}
"""Messages pulled in one batch. In a tick a batch is also settled as a whole."""

ROUND_MESSAGES, READER_BYTES = 400_000, 256 << 20
"""Maximum messages of a round, divided among its readers, and maximum bytes of each reader. The round's ack ids, about
80 MB, go to the driver."""

HANDED_OVER = timedelta(minutes=2)
"""A reader's leases outlast the round by this much. The driver extends them from then on."""


PULL_SHARE, LONGEST_PULL = 0.7, timedelta(seconds=40)
"""The share of a tick spent pulling, so that the next tick is on time although the last batch must be written, and its
maximum. Dagster allows a tick 60 s, and it must persist and acknowledge in the rest."""

SHORTEST_TICK = timedelta(seconds=5)
"""The interval at which Dagster's daemon checks its sensors."""


def tick_budget(settings: Settings, side: Side) -> Budget:
    """Return the most that one tick takes."""
    pulls = min(PULL_SHARE * max(settings.watermark.tick, SHORTEST_TICK), LONGEST_PULL)
    return Budget(TICK_MESSAGES, TICK_BYTES, pulls, BATCH_MESSAGES[side])


@dataclass(frozen=True, slots=True)
class Share:
    """The instructions for the readers of a round, the same for all. Base's readers come first. `settled` names the
    trackers' attempts that are in the log."""

    settings: Settings
    time: timedelta
    landers: int
    trackers: int
    watermark: datetime | None = None
    settled: frozenset[str] = frozenset()

    @property
    def readers(self) -> int:
        """The number of readers of both sides."""
        return self.landers + self.trackers

    @property
    def sides(self) -> frozenset[Side]:
        """The sides that are read."""
        return frozenset(self.side(reader) for reader in range(self.readers))

    def side(self, reader: int) -> Side:
        """Return the subscription that a reader reads."""
        return Side.BASE if reader < self.landers else Side.TRACKING

    def budget(self, side: Side) -> Budget:
        """Return the most that one reader takes."""
        return Budget(ROUND_MESSAGES // self.readers, READER_BYTES, self.time, BATCH_MESSAGES[side])


class Reader:
    """The reader of one process, shared by all runs of the same settings: a client, the tables, and the remembered
    copies."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.contract = settings.judged_by
        self.client = subscriber_client(*settings.pubsub.server)
        self.copies = RememberedCopies(settings.copies_remembered)
        self._leases = dict[str, timedelta]()
        lake = Lake(settings.lake, settings.message.kinds, self.clock)
        self.judge = reader_of(settings.contract, settings.pubsub, lake.accepted_schemas(settings.message.schema_names))
        self.heartbeats, self.quarantine = new_files(lake, self.clock)

    def take(self, share: Share, side: Side) -> Taken:
        """Take until the round's time is over. The leases last until the driver holds them. Raises PubSubError or
        LakeError."""
        pubsub, calls = self.settings.pubsub, count()
        path = pubsub.base_path if side is Side.BASE else pubsub.tracking_path
        if path not in self._leases:
            self._leases[path] = lease_of(self.client, path, pubsub)
        pulling = PubSubSubscription(
            self.client, path, self.clock, pubsub, on_call=partial(next, calls), lease=self._leases[path]
        )
        with closing(pulling) as subscription:
            taken = taken_of(share, side, subscription, self.keeper(share, side), self.clock)
        return replace(taken, used=taken.used + Usage(pulls=next(calls)))

    def keeper(self, share: Share, side: Side) -> Keeper:
        if side is Side.BASE:
            tables = self.heartbeats, self.quarantine
            return Landing(*tables, self.judge, share.watermark, self.clock, self.contract)
        return Tracking(self.judge, self.copies, self.settings.policy.band, self.clock, self.contract)


def taken_of(share: Share, side: Side, subscription: PubSubSubscription, keeper: Keeper, clock: Clock) -> Taken:
    """Take one reader's share from a subscription, and leave its leases to the driver."""
    budget = share.budget(side)
    until = clock.monotonic() + budget.max_time.total_seconds()
    taken = take(pulled(subscription, budget, clock, None), subscription, keeper, clock, until)
    subscription.give_back(taken.ack_ids, int((share.time + HANDED_OVER).total_seconds()))
    return taken


def new_files(lake: Lake, clock: Clock) -> tuple[NewFiles, NewFiles]:
    """Return `heartbeats` and `quarantine`, as readers and settling write them."""
    heartbeats = lake.heartbeats()
    return NewFiles(heartbeats, heartbeats.schema, clock), NewFiles(lake.quarantine(), QUARANTINE, clock)

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
"""The most that one tick takes."""

BATCH_MESSAGES: Mapping[Side, int] = {Side.TRACKING: 25_000, Side.BASE: 20_000}
"""Messages that are pulled together. In a tick they are settled together as well."""

ROUND_MESSAGES, READER_BYTES = 400_000, 256 << 20
"""The most messages of a round, shared out among its readers, and bytes of each of them. Their ids, some 80 MB, go to
the driver."""

HANDED_OVER = timedelta(minutes=2)
"""A reader leases what it has taken for so much longer than a round. After that the driver keeps the leases."""


PULL_SHARE, LONGEST_PULL = 0.7, timedelta(seconds=40)
"""The share of a tick that it pulls, so that with the last batch's writing the next one is on time, and the most.
Dagster gives a tick 60 s, and it must persist and acknowledge within the rest."""

SHORTEST_TICK = timedelta(seconds=5)
"""The interval at which Dagster's daemon looks at its sensors."""


def tick_budget(settings: Settings, side: Side) -> Budget:
    """The most that one tick takes."""
    pulls = min(PULL_SHARE * max(settings.watermark.tick, SHORTEST_TICK), LONGEST_PULL)
    return Budget(TICK_MESSAGES, TICK_BYTES, pulls, BATCH_MESSAGES[side])


@dataclass(frozen=True, slots=True)
class Share:
    """The instructions for the readers of a round, all of them the same. Readers of base come first. `settled` names
    the attempts of trackers that are in the log."""

    settings: Settings
    time: timedelta
    landers: int
    trackers: int
    watermark: datetime | None = None
    settled: frozenset[str] = frozenset()

    @property
    def readers(self) -> int:
        """All of them."""
        return self.landers + self.trackers

    @property
    def sides(self) -> frozenset[Side]:
        """The sides that are read."""
        return frozenset(self.side(reader) for reader in range(self.readers))

    def side(self, reader: int) -> Side:
        """Which subscription a reader reads."""
        return Side.BASE if reader < self.landers else Side.TRACKING

    def budget(self, side: Side) -> Budget:
        """The most that one reader takes."""
        return Budget(ROUND_MESSAGES // self.readers, READER_BYTES, self.time, BATCH_MESSAGES[side])


class Reader:
    """The reader of one process, for all runs of the same settings: a client, the tables, and what it remembers."""

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
        """Take until the time of the round is over. Its leases last until the driver keeps them. Raises PubSubError or
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
        """Make the keeper of one reader's messages."""
        if side is Side.BASE:
            tables = self.heartbeats, self.quarantine
            return Landing(*tables, self.judge, share.watermark, self.clock, self.contract)
        return Tracking(self.judge, self.copies, self.settings.policy.band, self.clock, self.contract)


def taken_of(share: Share, side: Side, subscription: PubSubSubscription, keeper: Keeper, clock: Clock) -> Taken:
    """Take one reader's share from a subscription, and hand its leases over."""
    budget = share.budget(side)
    until = clock.monotonic() + budget.max_time.total_seconds()
    taken = take(pulled(subscription, budget, clock, None), subscription, keeper, clock, until)
    subscription.give_back(taken.ack_ids, int((share.time + HANDED_OVER).total_seconds()))
    return taken


def new_files(lake: Lake, clock: Clock) -> tuple[NewFiles, NewFiles]:
    """`heartbeats` and `quarantine` as readers and settling see them."""
    heartbeats = lake.heartbeats()
    return NewFiles(heartbeats, heartbeats.schema, clock), NewFiles(lake.quarantine(), QUARANTINE, clock)

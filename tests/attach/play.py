"""A seeded play of attach: somebody else reads base, tidemark reads its backlog and tracks, and the promise is checked
against the reader's own record.

One thread, one clock, the Pub/Sub model, the real tick. Whenever a tracker does something outside of itself, others go
on: publishers, the reader, Cloud Monitoring's sampling, and a second tracker's past.
"""

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from google.pubsub_v1 import types

from tests.clock import ManualClock
from tests.emulator.builders import a_subscription, a_topic
from tests.ingest.fakes import CONTRACT, Crash
from tests.ingest.model_subscription import ModelBacklog, ModelSubscription, Outside
from tests.lake.builders import InMemory
from tests.simulation.lake import Codec
from tests.watermark.builders import START
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.unacknowledged import Delivered
from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import PubSubError, ReadingUnavailable
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import Tracked, track
from tidemark.pipeline.lake.log import tracking_log
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.pubsub.backlog import SAMPLE_PERIOD, Backlog, reading_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.rules import RULES, Rule

TOPIC, BASE, TRACKING = "topic", "base", "tracking"
BAND = timedelta(seconds=10)
SECOND = timedelta(seconds=1)
LASTS, QUIET, AT_MOST = timedelta(minutes=3), timedelta(minutes=5), timedelta(hours=1)
"""How long somebody publishes; how long the world goes on once everything is acknowledged, and at most until then."""


@dataclass(frozen=True)
class Parts:
    """What a tracker is made of: as the settings have it with attach, or with a fault that the play must find."""

    copies: Callable[[], RememberedCopies] = lambda: RememberedCopies(
        Settings(pubsub=PubSubSettings(attach=True)).copies_remembered
    )
    tracking: Callable[["World", Backlog], Backlog] = lambda _, backlog: backlog
    point: Callable[[datetime, int], Reading] = reading_of
    rules: Sequence[Rule] = RULES


@dataclass
class Monitoring:
    """Cloud Monitoring's readings of base: sampled once a minute, visible up to two minutes later, in whole seconds."""

    world: "World"
    points: list[tuple[datetime, datetime, int]] = field(default_factory=list)  # visible at, end, age
    sampled_at: datetime = START

    def sample(self) -> None:
        """Take the sample that is due."""
        world, now = self.world, self.world.clock.now()
        if now - self.sampled_at < SAMPLE_PERIOD:
            return
        self.sampled_at, rng = now, world.rng
        oldest = world.model.oldest_unacked(BASE, now)
        seconds = 0.0 if oldest is None else (now - oldest).total_seconds()
        end = now + rng.uniform(0, 1) * SAMPLE_PERIOD
        self.points.append((now + rng.uniform(0, 120) * SECOND, end, int(seconds + rng.uniform(0, 1))))

    def read(self) -> Reading:
        seen = [(end, age) for visible_at, end, age in self.points if visible_at <= self.world.clock.now()]
        seen = [(end, age) for end, age in seen if end <= self.world.clock.now()]
        if not seen:
            raise ReadingUnavailable("no point yet")
        return self.world.parts.point(*max(seen))


class World(Outside):
    """All of it. `W` and what the reader never acknowledged are compared at each decision and at each publication."""

    def __init__(self, seed: int, parts: Parts | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.parts = parts or Parts()
        self.clock = ManualClock(START)
        late = rng.choice([0.0, 0.0, 0.5])
        faults = Faults(
            shuffled=rng.random() < 0.5,
            redelivered=rng.choice([0, 0.05]),
            duplicate_delivery=rng.choice([0, 0.1]),
            acknowledgement_lost=rng.choice([0, 0.05]),
            small_answer=rng.choice([0, 0.5]),
            visible_after=timedelta(seconds=late),
        )
        self.model = PubSubModel(rng=rng, faults=faults)
        self.model.create_topic(a_topic(TOPIC))
        for name in (TRACKING, BASE):
            self.model.create_subscription(a_subscription(name, TOPIC, timedelta(seconds=30)), START)
        slack = timedelta(seconds=late)
        rule = rng.choice(["band", "band", "frontier"])
        self.policy = Policy(rule=rule, band=BAND, idle="hold", base_slack=slack, reading_slack=slack)
        self.objects = InMemory({})
        self.monitoring = Monitoring(self)
        self.by_monitoring = rng.random() < 0.5
        self.never_acknowledged: dict[str, datetime] = {}  # valid messages, and their event times that count
        self.published: list[tuple[datetime, datetime, dict[str, str]]] = []
        self.held: list[Delivered] = []  # by the reader
        self.reads_again_at = START
        self.watermark: datetime | None = None
        self.decisions = 0
        self.is_quiet = False
        self.trackers = [Tracker(self) for _ in range(rng.choice([1, 1, 2]))]

    # What a subscription of the model asks of the process that uses it

    def step(self, what: str) -> None:  # noqa: ARG002
        """Others go on; now and then the tracker dies."""
        if not self.is_quiet and self.rng.random() < 0.004:
            raise Crash
        if self.rng.random() < 0.5:
            self.go_on(timedelta(seconds=self.rng.uniform(0, 0.5)))

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None:  # noqa: ARG002
        assert subscription == TRACKING

    def refuses_untruly(self) -> bool:
        return False

    # Everybody else

    def go_on(self, by: timedelta) -> None:
        """Time passes, and publishers, the reader and monitoring do what they do."""
        self.clock.advance(by)
        for _ in range(self.rng.choice([0, 0, 1, 3])):
            if not self.is_quiet:
                self.publish()
        self.read_base()
        self.monitoring.sample()

    def publish(self) -> None:
        """One message within the band: no earlier than what was published longer ago than the band. Now and then one
        that is rejected, or a copy."""
        rng, now = self.rng, self.clock.now()
        floor = max((event for at, event, _ in self.published if at < now - BAND), default=START)
        attributes = {"stream_id": rng.choice("abc"), "heartbeat_id": str(len(self.published))}
        copied = [known for at, event, known in self.published[-20:] if event >= floor and at > now - 2 * BAND]
        if copied and rng.random() < 0.2:
            attributes = rng.choice(copied)
        else:
            earliest = max(floor, now - rng.choice([1, 30, 300]) * SECOND)
            event = earliest + rng.uniform(0, 1) * (now + rng.choice([0, 5]) * SECOND - earliest)
            attributes["event_time"] = str(-(-to_us(event) // 1000))  # rounded up: not below the floor
        if rng.random() < 0.05:
            attributes = {"stream_id": "a"}
        message = types.PubsubMessage.pb()(data=b"{}", attributes=attributes)
        (message_id,) = self.model.publish(TOPIC, [message], now)
        if "event_time" in attributes:
            counts = min(from_us(int(attributes["event_time"]) * 1000), message.publish_time.ToDatetime(START.tzinfo))
            self.published.append((now, counts, attributes))
            self.never_acknowledged[message_id] = counts
            self.check()

    def read_base(self) -> None:
        """The reader pulls, pauses, crashes, gives back, and acknowledges in any order."""
        rng, now = self.rng, self.clock.now()
        if now < self.reads_again_at and not self.is_quiet:
            return
        self.held += self.model.pull(BASE, rng.randint(1, 20), now)
        rng.shuffle(self.held)
        chance = rng.random()
        if self.is_quiet or chance > 0.35:
            share = len(self.held) if self.is_quiet else rng.randint(0, len(self.held))
            done, self.held = self.held[:share], self.held[share:]
            self.model.acknowledge(BASE, [each.ack_id for each in done], now)
            left = {message.message_id for message in self.model.unacknowledged(BASE)}
            for each in done:
                if each.message.message_id not in left:
                    self.never_acknowledged.pop(each.message.message_id, None)
        elif chance > 0.2:
            self.model.modify_ack_deadline(BASE, [each.ack_id for each in self.held], 0, now)
            self.held = []
        elif chance > 0.1:
            self.reads_again_at = now + rng.uniform(1, 90) * SECOND
        else:
            self.held = []  # a crash: the leases end by themselves

    def check(self) -> None:
        """The promise: no valid message that was never acknowledged is below the watermark."""
        if self.watermark is not None:
            below = [event for event in self.never_acknowledged.values() if event < self.watermark]
            assert not below, f"{len(below)} messages below {self.watermark}, the least at {min(below)}"

    def decided(self, tracked: Tracked) -> None:
        watermark = tracked.decision.watermark
        assert self.watermark is None or (watermark is not None and watermark >= self.watermark), "W went back"
        self.watermark = watermark
        self.decisions += 1
        self.check()

    def play(self) -> None:
        """Publish, read and tick; then nobody publishes, and everything is acknowledged. Raises AssertionError."""
        codec = Codec(real=False)
        with patch.object(tracking_log, "encode", codec.encode), patch.object(tracking_log, "decode", codec.decode):
            while self.clock.now() < START + LASTS:
                self.round(timedelta(seconds=2))
            self.is_quiet, self.model.faults = True, Faults()
            quiet_since = self.clock.now()
            while self.clock.now() < quiet_since + QUIET:
                self.round(timedelta(seconds=20))
                if self.model.oldest_unacked(BASE, self.clock.now()) is not None:
                    quiet_since = self.clock.now()
                    assert quiet_since < START + AT_MOST
        assert not self.never_acknowledged
        last = max(at for at, _, _ in self.published)
        reached = min(event for at, event, _ in self.published if at > last - SECOND)
        assert self.watermark >= reached, f"{self.watermark} stays short of {reached}"

    def round(self, longest: timedelta) -> None:
        """The others go on a few times, and one tracker ticks."""
        for _ in range(5):
            self.go_on(self.rng.uniform(0, 1) * longest)
        self.rng.choice(self.trackers).tick()


class Tracker:
    """One process of `tidemark attach`, which begins anew after a crash."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._begin()

    def _begin(self) -> None:
        world = self.world
        self._log = TrackingLog(world.objects, checkpoint_every=20, clock=world.clock)
        self._subscription = ModelSubscription(world.model, TRACKING, world)
        self._reader = HeartbeatReader(CONTRACT)
        self._copies = world.parts.copies()
        snapshots = ModelBacklog(world.model, BASE, world)
        self._base: Backlog = world.monitoring if world.by_monitoring else snapshots

    def tick(self) -> None:
        """One tick; a crash or an error leaves what the next one finds."""
        world = self.world
        budget = Budget(world.rng.choice([5, 1000]), 1 << 20, timedelta(seconds=5), batch_messages=50)
        try:
            with suppress(PubSubError):
                tracking = world.parts.tracking(world, ModelBacklog(world.model, TRACKING, world))
                tracked = track(
                    Settling(self._log, world.clock, {Side.TRACKING: self._subscription}, copies=self._copies),
                    {Side.TRACKING: tracking, Side.BASE: self._base},
                    self._reader,
                    world.policy,
                    budget,
                    rules=world.parts.rules,
                )
                world.decided(tracked)
        except Crash:
            self._begin()

"""What the readers of rounds take, and where and how long they go on, without a Spark: on the Pub/Sub model."""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakSet

import pyarrow as pa
import pytest

from tests.ingest.fakes import FIELDS, World
from tests.ingest.model_subscription import ModelSubscription
from tests.watermark.builders import at
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.payloads.schemas import Encoding
from tidemark.pipeline.errors import PubSubUnreachable
from tidemark.pipeline.ingest import rounds as module
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Ingested, Settled, Side, Taken
from tidemark.pipeline.ingest.rounds import (
    DRY_ROUNDS,
    PLAN,
    TAKEN,
    Ended,
    Reader,
    RoundDone,
    Rounds,
    RunPlan,
    Share,
    read_share,
    taken_of,
    taken_of_rows,
)
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import IngestSettings, LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning

MINUTE = timedelta(minutes=1)
BOTH = [Side.BASE, Side.TRACKING]


class WorldReader(Reader):
    """What one process reads with, on a world's model."""

    def __init__(self, on: "OnTheModel") -> None:
        super().__init__(on.settings, on.world.clock)
        self._on = on

    def take(self, share: Share, side: Side) -> Taken:
        return taken_of(share, side, self._on.subscription(side), self.keeper(share, side))


@dataclass
class OnTheModel:
    """A world whose readers are one process, which reads for one reader after another. Answers travel as by Spark."""

    world: World
    settings: Settings
    plan: RunPlan = PLAN
    pulled: dict[str, Any] = field(default_factory=dict)
    kept: Kept = field(default_factory=Kept)

    def __post_init__(self) -> None:
        self.kept.get((self.settings.model_dump_json(), self.settings.judged_by), lambda: WorldReader(self))

    def subscription(self, side: Side) -> ModelSubscription:
        """A subscription as another process reaches it."""
        return ModelSubscription(self.world.model, str(side), self.world, self.pulled)

    def read(self, share: Share) -> list[Taken]:
        """What the readers of a round have taken."""
        numbers = [pa.RecordBatch.from_pydict({"id": [number]}) for number in range(len(share.sides))]
        return taken_of_rows(pa.Table.from_batches(read_share(share, numbers, self.kept), TAKEN))

    def settling(self) -> Settling:
        """The driver's side, on the same messages."""
        world = self.world
        subscriptions = {side: self.subscription(side) for side in Side}
        return Settling(world.log, world.clock, subscriptions, (world.heartbeats, world.quarantine))

    def rounds(self, **parts: Any) -> Rounds:
        """A run; `parts` replace its own."""
        world = self.world
        made = {
            "settings": self.settings,
            "run": "run",
            "readers": self.settings.ingest.readers,
            "settling": self.settling(),
            "read": self.read,
            "newest": world.lake().tracking_log().newest,
            "backlogs": {Side.TRACKING: world.tracking_backlog, Side.BASE: world.base_backlog},
            "beside": at_once,
            "plan": self.plan,
        }
        return Rounds(**{**made, **parts})


def at_once(work: Callable[[], RoundDone]) -> "Future[RoundDone]":
    """Settles a round before the next is read."""
    done = Future[RoundDone]()
    try:
        done.set_result(work())
    except Exception as error:
        done.set_exception(error)
    return done


def settings_of(world: World, message: Mapping[str, Any] | None = None, readers: int = 3) -> Settings:
    return Settings(
        pubsub=PubSubSettings(emulator_host="127.0.0.1:1"),
        message=MessageSettings.model_validate({"fields": FIELDS, **(message or {})}),
        lake=LakeSettings(uri=f"file:{world.folder}"),
        ingest=IngestSettings(readers=readers),
    )


def total(done: Sequence[RoundDone]) -> Settled:
    return sum((one.settled for one in done), Settled())


def a_share(settings: Settings, side: Side) -> Share:
    """One reader of one side."""
    return Share(settings, timedelta(seconds=1), [side])


# What a worker keeps


class Counting:
    """A reader that is counted, and takes nothing."""

    made = 0
    alive: ClassVar["WeakSet[Counting]"] = WeakSet()

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.copies = RememberedCopies()
        Counting.made += 1
        Counting.alive.add(self)

    def take(self, share: Share, side: Side) -> Taken:
        assert share.settings == self.settings
        return Taken(side)


@pytest.mark.parametrize(("settings", "made"), [([*range(1, 10)], 9), ([1] * 9, 1)], ids=["others", "the same"])
def test_a_worker_keeps_few_connections(monkeypatch: pytest.MonkeyPatch, settings: Sequence[int], made: int) -> None:
    monkeypatch.setattr(module, "Reader", Counting)
    monkeypatch.setattr(Counting, "made", 0)
    numbers = pa.RecordBatch.from_pydict({"id": [0, 1]})
    for minutes in settings:
        chosen = Settings(ingest=IngestSettings(readers=minutes))
        for _ in range(3):
            rows = pa.Table.from_batches(read_share(Share(chosen, timedelta(seconds=1), BOTH), [numbers]))
            assert [one.side for one in taken_of_rows(rows)] == [Side.BASE, Side.TRACKING]
        assert len(Counting.alive) <= 2
    assert Counting.made == made


def test_a_worker_reads_by_a_schema_file_that_was_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Reader", Counting)
    monkeypatch.setattr(Counting, "made", 0)
    schema, numbers = tmp_path / "beat.avsc", pa.RecordBatch.from_pydict({"id": [0]})
    for content, made in (("old", 1), ("old", 1), ("new", 2)):
        schema.write_text(content)
        settings = Settings(message=MessageSettings(payload=Encoding.AVRO, schema=str(schema)))  # of a new driver
        list(read_share(Share(settings, timedelta(seconds=1), BOTH), [numbers]))
        assert Counting.made == made


# What is taken


class LandsReadings(World):
    """Judges nothing by the contract of other worlds."""

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None: ...


def test_readers_land_and_count_each_reading_of_a_message(tmp_path: Path) -> None:
    world = LandsReadings(tmp_path)
    on = OnTheModel(world, settings_of(world, {"each": "payload:@", "event_time": "each:@"}))
    settling = on.settling()
    world.log.begin(Beginning(at(-1)))
    world.wait(100)
    world.topic.publish(None, payload=json.dumps([to_us(at(second)) // 1000 for second in (97, 98, 99)]).encode())
    taken = [one for side in Side for one in on.read(a_share(on.settings, side))]
    settled = settling.settle(taken)
    assert (settled.persisted.messages, settled.landed.messages, settled.landed.heartbeats) == (1, 1, 3)
    assert world.log.catch_up().histogram.count.tolist() == [1, 1, 1]


# Which side it is from, and when it ends


@dataclass
class SilentAtFirst:
    backlog: Backlog
    asked: int = 0

    def read(self) -> Reading:
        self.asked += 1
        if self.asked == 1:
            raise PubSubUnreachable("no answer")
        return self.backlog.read()


def test_one_reader_reads_both_in_turns_where_nobody_decides_and_ends_once_both_are_young(tmp_path: Path) -> None:
    world = World(tmp_path)
    on = OnTheModel(world, settings_of(world, readers=1))
    for second in range(40):
        world.topic.publish(second)
    world.wait(300)
    run = on.rounds(backlogs={Side.TRACKING: world.tracking_backlog, Side.BASE: SilentAtFirst(world.base_backlog)})
    done = list(run.rounds(10 * MINUTE, until_young=True))
    assert run.ended is Ended.CAUGHT_UP
    assert [one.share.sides.count(Side.TRACKING) for one in done] == [number % 2 for number in range(len(done))]
    assert {side: age < MINUTE for side, age in done[-2].ages.items()} == dict.fromkeys(Side, True)
    assert world.tracking.unacknowledged == world.base.unacknowledged == []


def test_messages_held_by_another_consumer_are_left_alone_after_two_poor_rounds(tmp_path: Path) -> None:
    world = World(tmp_path)
    on = OnTheModel(world, settings_of(world, readers=4))
    for second in range(50):
        world.topic.publish(second)
    held = world.model.pull("base", 30, world.clock.now())
    world.model.modify_ack_deadline("base", [one.ack_id for one in held], 600, world.clock.now())
    world.wait(120)
    run = on.rounds()
    done = list(run.rounds(10 * MINUTE, until_young=True))
    assert run.ended is Ended.RAN_DRY
    assert [one.is_dry for one in done] == [True] * (DRY_ROUNDS + 1), "the last was under way"
    assert total(done).landed.messages + len(held) == 50
    assert not RoundDone(
        0, Share(on.settings, MINUTE, 500 * BOTH), Settled(Ingested(module.ROUND_MESSAGES)), at(0), 1, 1
    ).is_dry

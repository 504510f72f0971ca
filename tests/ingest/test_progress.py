"""Whether reading catches up: what the log's decisions tell of two minutes, and what is said of it."""

from datetime import datetime
from pathlib import Path

from tests.ingest.fakes import AMPLE, World, WorldSubscription
from tests.watermark.builders import at, effective
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.progress import TOO_LONG, BacklogLook, BacklogWatch, Progress, progress_of
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.ingest.ticks import land
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState
from tidemark.pipeline.watermark.usage import Usage

NOW = 10_000.0


def look(second: float, *, used: Usage, tracking: float) -> BacklogLook:
    """At a second, a tracking subscription whose oldest message is so many seconds old."""
    return BacklogLook(record(second, base=0, tracking=tracking).decision, used)


def record(second: float, *, base: float, tracking: float) -> DecisionRecord:
    """A decision at a second, on readings of messages that were so many seconds old."""
    sides = effective(second - base, observed=second), effective(second - tracking, observed=second)
    decision = Decision(at=at(second), watermark=None, reason=Reason.ADVANCED, base=sides[0], tracking=sides[1])
    return DecisionRecord(decision, sides[0].newest, sides[1].newest, Policy())


# What two looks tell


def test_reading_that_does_not_gain_is_falling_behind() -> None:
    for before in (300 - 119, 300):  # each second read one more that is a second younger, or none
        looks = [
            look(NOW - 120, used=Usage(tracked=0), tracking=before),
            look(NOW, used=Usage(tracked=120_000), tracking=300),
        ]
        (found,) = progress_of(looks)
        assert found.is_slow
        assert found.sentence() == (
            "falling behind: 1,000 messages/s are read, and the oldest message of tracking is 5m old"
        )


# What a process watches


def standing(second: float, *, base: float) -> WatermarkState:
    return WatermarkState(number=0).after(1, record(second, base=base, tracking=0))


def test_a_watch_looks_at_each_decision_once_and_forgets_old_ones() -> None:
    watch = BacklogWatch()
    watch.look(WatermarkState())
    assert watch.looks == []
    for second in (*range(0, 900, 10), *range(300, 600, 10)):  # the clock is set back once
        for _ in range(2):
            watch.look(standing(second, base=600))
    moments: list[datetime] = [one.decision.at for one in watch.looks]
    assert moments == [at(second) for second in range(410, 600, 10)]


def test_a_side_is_too_slow_if_its_ticks_read_as_much_as_they_may_and_catching_up_takes_long() -> None:
    def watched(gained: float, *, leaves_more: bool, side: Side = Side.BASE) -> Progress | None:
        watch = BacklogWatch(came={side: Ingested(leaves_more=leaves_more)})
        watch.look(standing(NOW - 120, base=3_600 + gained))
        watch.look(standing(NOW, base=3_600))
        assert len(progress_of(watch.looks)) == 1
        return watch.too_slow()

    gained_in_time = 3_600 / TOO_LONG.total_seconds() * 120
    assert watched(gained_in_time + 1, leaves_more=True) is None
    assert watched(gained_in_time - 1, leaves_more=True) is not None
    assert watched(-60, leaves_more=True) is not None
    assert watched(-60, leaves_more=False) is None
    assert watched(-60, leaves_more=True, side=Side.TRACKING) is None, "those of the other side"


def test_a_tick_that_gets_little_of_a_backlog_leaves_more_and_one_that_gets_all_of_it_does_not(tmp_path: Path) -> None:
    """A server may be slow by all that is outstanding: then no tick spends its budget, and yet none catches up."""
    world = World(tmp_path)
    for second in range(8):
        world.topic.publish(second)
    world.wait(5)

    def landed(messages: int) -> Ingested:
        tables = world.heartbeats, world.quarantine
        settling = Settling(world.log, world.clock, {Side.BASE: Slow(world, messages)}, tables)
        return land(settling, world.reader, AMPLE, world.base_backlog)

    few, rest = landed(1), landed(AMPLE.batch_messages)
    assert (few.heartbeats, few.leaves_more) == (3, True)
    assert (rest.heartbeats, rest.leaves_more) == (5, False)
    assert not landed(1).leaves_more


class Slow(WorldSubscription):
    """Base, of which a pull brings so many messages at most."""

    def __init__(self, world: World, messages: int) -> None:
        super().__init__(world, "base")
        self._messages = messages

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        return super().pull(min(max_messages, self._messages), max_bytes, seconds, ahead)

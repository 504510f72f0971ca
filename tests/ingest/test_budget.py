"""How much one taking pulls: what ends it first ends the pulling, and a batch in hand is always handed out."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from google.pubsub_v1 import PubsubMessage

from tests.clock import ManualClock
from tests.ingest.judged import messages_of
from tests.ingest.model_subscription import Unasked
from tests.watermark.builders import at
from tidemark.pipeline.ingest.take import Batches, Budget
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.watermark.readings import Reading

BUDGET = Budget(max_messages=1000, max_bytes=10_000, max_time=timedelta(seconds=20), batch_messages=100)
MESSAGE_BYTES = 10
MESSAGE = PubsubMessage()._pb


@dataclass
class Endless(Unasked):
    """A subscription that gives the batches of a list, or full ones for ever; a pull takes two seconds."""

    clock: ManualClock
    sizes: list[int] | None = None

    def __post_init__(self) -> None:
        self.asked: list[tuple[int, int, float]] = []

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:  # noqa: ARG002
        self.asked.append((max_messages, max_bytes, seconds))
        self.clock.advance(timedelta(seconds=2))
        count = max_messages if self.sizes is None else min(self.sizes.pop(0), max_messages)
        return PulledBatch(messages_of([MESSAGE] * count), [""] * count, count * MESSAGE_BYTES)


def batches(subscription: Endless, budget: Budget = BUDGET, backlog: Backlog | None = None) -> Iterator[PulledBatch]:
    """As a tick pulls them: with a backlog it goes by readings."""
    return iter(Batches(subscription, budget, subscription.clock, backlog))


def taken(budget: Budget, sizes: list[int] | None = None) -> tuple[list[int], Endless]:
    subscription = Endless(ManualClock(at(0)), sizes)
    return [len(batch) for batch in batches(subscription, budget)], subscription


def test_the_most_messages_end_the_pulling_exactly() -> None:
    assert taken(replace(BUDGET, max_messages=250))[0] == [100, 100, 50]


def test_the_most_bytes_end_the_pulling_after_the_batch_in_hand() -> None:
    sizes, subscription = taken(replace(BUDGET, max_bytes=2_500))
    assert sizes == [100, 100, 100]
    assert [max_bytes for _, max_bytes, _ in subscription.asked] == [2500, 1500, 500]


@dataclass
class Standing:
    """Readings of a subscription whose oldest message was published so long before each of them."""

    clock: ManualClock
    ages: list[float]

    def read(self) -> Reading:
        now = self.clock.now()
        return Reading(now, now - timedelta(seconds=self.ages.pop(0)), names_a_message=True)


def taken_beside(backlog_ages: list[float], sizes: list[int]) -> tuple[list[int], int]:
    """The sizes of the batches, and how many readings were taken."""
    clock = ManualClock(at(0))
    backlog = Standing(clock, [*backlog_ages])
    found = [len(batch) for batch in batches(Endless(clock, sizes), backlog=backlog)]
    return found, len(backlog_ages) - len(backlog.ages)


def test_an_empty_batch_beside_a_backlog_does_not_end_the_tick_and_a_reading_without_one_does() -> None:
    assert taken_beside([60, 60, 2], [0, 40, 0, 100]) == ([40], 3)
    assert taken_beside([0], [4, 100]) == ([4], 1)


def test_messages_that_were_published_after_the_batch_was_begun_are_left_to_the_next_tick() -> None:
    assert taken_beside([2.1], [4, 100]) == ([4], 1)
    assert taken_beside([2.3, 0], [4, 40]) == ([4, 40], 2)


def test_what_another_consumer_holds_is_waited_for_in_three_small_batches_and_no_longer() -> None:
    assert taken_beside([60] * 9, [4, 0, 3, 100]) == ([4, 3], 2)
    assert taken_beside([60] * 9, [4, 0, 40, 4, 0, 0, 100])[0] == [4, 40, 4]


def test_the_first_batch_of_a_paced_tick_is_short_as_is_one_after_a_batch_that_was_not_full() -> None:
    clock = ManualClock(at(0))
    subscription = Endless(clock, [100, 40, 4, 0])
    list(batches(subscription, backlog=Standing(clock, [60, 60, 0])))
    assert [seconds for _, _, seconds in subscription.asked] == [0.4, 18, 1.2, 1.2]


def test_while_a_message_waits_for_its_schema_a_small_batch_tells_that_the_backlog_is_gone() -> None:
    """That message would be the oldest of every reading, however little there is besides."""
    clock = ManualClock(at(0))
    backlog = Standing(clock, [60])
    found = Batches(Endless(clock, [100, 40, 4, 100]), BUDGET, clock, backlog, waits=True)
    assert [len(batch) for batch in found] == [100, 40, 4]
    assert backlog.ages == [60]

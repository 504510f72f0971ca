"""The budget of snapshots: which readings are taken, what they are said to cost, and what survives a restart."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest

from tests.clock import ManualClock
from tests.ingest.model_subscription import pubsub_of
from tests.watermark.builders import START, seconds
from tidemark.pipeline.errors import ReadingPostponed, ReadingUnavailable
from tidemark.pipeline.ingest.take import Batches
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.pubsub.spending import LONGEST, BudgetedBacklog, Spending
from tidemark.pipeline.settings_sections import DAY
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.state import Beginning, Compacted, Snapshot, WatermarkState
from tidemark.pipeline.watermark.usage import Account, Usage

TICK, RATE, SIZE = seconds(120), 100, 300
BASE, TRACKING = pubsub_of(None).base_path, pubsub_of(None).tracking_path


class Subscribed:
    """A subscription whose oldest message was published so long ago; it counts its snapshots and their true bytes."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.age = seconds(1)
        self.readings: list[Reading] = []
        self.problem: Exception | None = None
        self.source = "snapshot"

    def read(self) -> Reading:
        if self.problem is not None:
            raise self.problem
        now = self.clock.now()
        self.readings.append(Reading(now, now - self.age, names_a_message=True, source=self.source))
        return self.readings[-1]


class House:
    """A process that ticks every two minutes; `log` is what another one, or a later one, knows of it."""

    def __init__(self, budget: int | None, log: WatermarkState | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(START)
        self.spending = Spending(self.clock, pubsub_of(budget), TICK)
        self.subscribed = {path: Subscribed(self.clock) for path in (BASE, TRACKING)}
        self.log = log or WatermarkState().after(0, Beginning(START - DAY))
        self.taken: list[Reading | None] = []
        self.monitoring: Subscribed | None = None

    def tick(self, reaches_back: timedelta | None = TICK) -> Reading | None:
        """A tick of both subscriptions: pull, read, decide. Base's reading, if there was one."""
        self.clock.advance(TICK)
        self.spending.learn(self.log)
        self.pulled(TICK)
        self.spending.reached(TRACKING, self.clock.now() - TICK)
        if reaches_back is not None:
            self.spending.reached(BASE, self.clock.now() - reaches_back)
        tracking, base = self.read(TRACKING), self.read(BASE)
        with self.spending.noted() as usage:
            decided = self.log.decide(base, tracking, Policy(), self.clock.now())
            self.log = self.log.after(self.log.number + 1, replace(decided, usage=usage))
        self.taken.append(base)
        return base

    def pulled(self, within: timedelta) -> None:
        """What was published within so long is pulled from both."""
        messages = RATE * within // seconds(1)
        size = messages * SIZE
        self.spending.count(Usage(tracked=messages, tracked_bytes=size, landed=messages, landed_bytes=size))

    def read(self, path: str, user: str = "") -> Reading | None:
        try:
            return BudgetedBacklog(
                self.subscribed[path], self.spending, path, user=user, monitoring=self.monitoring
            ).read()
        except ReadingPostponed:
            return None

    def restarted(self, budget: int | None) -> "House":
        """A new process, which knows what the log's newest compacted entry holds."""
        compacted = decode(encode(Compacted(self.log), "writer"), "entry")
        house = House(budget, WatermarkState().after(self.log.number + 1, compacted), self.clock)
        house.subscribed = self.subscribed
        return house


def test_a_day_of_a_large_backlog_stays_within_the_budget_but_for_what_is_read_each_hour() -> None:
    budget, day = 1 << 30, DAY // TICK
    house = House(budget)
    house.tick()
    for number in range(day):
        house.subscribed[BASE].age = TICK * number + seconds(1)  # nobody lands
        house.tick(reaches_back=None)
    read = [one for one in house.taken[1:] if one is not None]
    used = house.log.account.last_day(house.clock.now())
    prices = [RATE * SIZE * one.age.total_seconds() for one in read]
    beyond = [price for price, one in zip(prices, read, strict=True) if one.next_within == LONGEST]
    assert 1 < len(beyond) <= DAY // LONGEST
    assert used.snapshot_bytes - sum(beyond) < budget
    at_each_tick = sum(RATE * SIZE * TICK.total_seconds() * number for number in range(day))
    assert at_each_tick > 25 * sum(prices)
    gaps = [later.observed_at - earlier.observed_at for earlier, later in pairwise(read)]
    assert all(gap <= one.next_within + TICK for gap, one in zip(gaps, read, strict=False))


def dear(budget: int = 10_000_000) -> House:
    """A house that has just read a backlog of an hour, a tenth of a gigabyte."""
    house = House(budget)
    house.tick()
    house.subscribed[BASE].age = seconds(3600)
    house.clock.advance(LONGEST)
    house.pulled(LONGEST)
    assert house.tick(reaches_back=None).next_within == LONGEST
    assert house.read(BASE, "landing") is not None  # the first one since the process began
    return house


def test_a_restart_keeps_the_account_and_the_promise() -> None:
    house = dear()
    assert house.tick(reaches_back=None) is None
    spent = house.spending._spent()
    assert spent == pytest.approx(2 * RATE * SIZE * 3600, rel=0.1)
    again = house.restarted(10_000_000)
    again.spending.learn(again.log)
    assert again.spending._spent() == spent
    round_of_readers = Snapshot(Histogram.empty(), Usage(snapshots=1), house.clock.now())
    counted = house.log.after(house.log.number + 1, round_of_readers).account.known
    assert counted == house.log.account.known + Usage(snapshots=1)
    for _ in range(LONGEST // TICK - 2):
        assert again.tick(reaches_back=None) is None
    assert again.tick(reaches_back=None) is not None


@pytest.mark.parametrize(("days", "since"), [((0, 365, 0, 0.5), 2), ((0, 0.5, -365, 0.5), 3)])
def test_a_clock_that_was_a_year_off_for_a_tick_does_not_end_the_account(days: tuple[float, ...], since: int) -> None:
    account = Account()
    for day in days:
        account = account.after(START + timedelta(days=day), Usage(snapshots=1))
    assert account.last_day(START + timedelta(days=0.5)).snapshots == since


def test_once_the_backlog_is_gone_base_is_read_soon() -> None:
    house = dear(1 << 30)
    assert house.tick(reaches_back=seconds(3500)) is None
    house.subscribed[BASE].age = seconds(1)
    assert any(house.tick() for _ in range(10))


def test_a_single_old_message_is_not_priced_as_a_backlog_as_old() -> None:
    """Base holds one straggler, and lands everything else at each tick."""
    house = House(10 << 30)
    for number in range(200):
        house.subscribed[BASE].age = seconds(3600) + TICK * number
        assert house.tick() is not None


def test_where_a_reading_is_put_off_or_dear_monitoring_stands_in() -> None:
    house = dear()
    taken = len(house.subscribed[BASE].readings)
    house.monitoring = Subscribed(house.clock)
    house.monitoring.source = "monitoring"
    for _ in range(LONGEST // TICK + 10):
        assert house.tick(reaches_back=None).source == "monitoring"
    assert len(house.subscribed[BASE].readings) == taken


def test_without_monitoring_either_a_snapshot_is_taken_in_the_end() -> None:
    house = dear()
    house.monitoring = Subscribed(house.clock)
    house.monitoring.problem = ReadingUnavailable("a gap in the metrics")
    backlog = BudgetedBacklog(house.subscribed[BASE], house.spending, BASE, monitoring=house.monitoring)
    with pytest.raises(ReadingPostponed, match=r"snapshot_budget.*a gap in the metrics"):
        backlog.read()
    house.clock.advance(LONGEST)
    assert backlog.read().source == "snapshot"


def test_whoever_pulls_goes_by_small_batches_while_readings_are_dear() -> None:
    house = dear()
    ends = BudgetedBacklog(house.subscribed[BASE], house.spending, BASE, user="landing")
    taken = len(house.subscribed[BASE].readings)
    batches = Batches(None, None, house.clock, ends)  # type: ignore[arg-type]  # which pull nothing here
    assert [batches.looks_gone(house.clock.now(), is_small) for is_small in (True, False)] == [True, False]
    assert len(house.subscribed[BASE].readings) == taken

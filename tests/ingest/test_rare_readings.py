"""With the budget of snapshots spent: how fresh the watermark stays between two readings of base, and what it says."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.ingest.fakes import World
from tests.ingest.model_subscription import pubsub_of
from tests.watermark.builders import seconds
from tidemark.pipeline.ingest.ticks import Tracked
from tidemark.pipeline.pubsub.spending import BudgetedBacklog, Spending
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.usage import Usage

TICK, SIZE = 20, 1000
EVERY = seconds(400)
"""How often the budget lets base be read. That is longer than `max_reading_age`."""

A_READING = TICK * SIZE
"""Bytes that a snapshot of base keeps: a message is published each second, and landed at each tick."""

BUDGET = round(A_READING * 2 * timedelta(days=1) / EVERY)
RISES = Policy().band + seconds(2 * TICK)
"""The watermark passes what a reading allows once that is older than the band, and a tick sees it."""


class Unchecked(World):
    """Checks no acknowledgement: that reads the whole log."""

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None: ...


class Budgeted:
    """Ticks of a world in which base lands everything at each tick, and a reading of it costs."""

    def __init__(self, folder: Path, budget: int | None) -> None:
        self.world = world = Unchecked(folder)
        self.spending = Spending(world.clock, pubsub_of(budget), seconds(TICK))
        world.base_backlog = BudgetedBacklog(world.base_backlog, self.spending, world.base.path)
        world.tracking_backlog = BudgetedBacklog(world.tracking_backlog, self.spending, world.tracking.path)

    def tick(self) -> Tracked:
        world = self.world
        for _ in range(TICK):
            world.wait(1)
            happened = (world.clock.now() - seconds(1)).timestamp()
            world.topic.publish(str(round(happened * 1000)))
        self.spending.count(Usage(landed=TICK, landed_bytes=TICK * SIZE))
        self.spending.reached(world.base.path, world.clock.now() - seconds(TICK))
        tracked = world.track(spending=self.spending)
        delivered = world.model.pull("base", 1000, world.clock.now())
        world.model.acknowledge("base", [each.ack_id for each in delivered], world.clock.now())
        return tracked


def rare(decision: Decision) -> timedelta:
    """How long ago base was read."""
    return timedelta(0) if decision.base is None else decision.at - decision.base.newest.observed_at


def test_between_rare_readings_the_watermark_goes_as_far_as_the_last_one_allows(tmp_path: Path) -> None:
    house = Budgeted(tmp_path, BUDGET)
    decisions = [house.tick().decision for _ in range(int(3.5 * EVERY / seconds(TICK)))]
    later = [one for one in decisions if one.at > decisions[0].at + EVERY]  # by then the traffic is known
    read = [one for one in later if rare(one) < seconds(1)]
    assert 2 <= len(read) <= 4
    assert max(map(rare, later)) > Policy().max_reading_age
    assert {one.reason for one in later} <= {Reason.ADVANCED, Reason.PINNED_BY_BACKLOG, Reason.UNCHANGED}
    for one in later:
        assert one.watermark is not None
        # What the newest reading allows, less the second that each message lags and one of the histogram's.
        if rare(one) > RISES:
            assert one.watermark >= one.base.oldest_unacked - seconds(2)
        # And never more: nothing that is published after the reading is known to have landed.
        assert one.watermark <= one.base.oldest_unacked
    assert max(one.lag for one in later if one.lag is not None) < EVERY + RISES + seconds(TICK)
    assert house.spending._spent() < BUDGET

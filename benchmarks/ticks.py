"""Tracking and landing beside a loop that only pulls and acknowledges."""

from collections.abc import Callable
from datetime import timedelta

from google.pubsub_v1 import SubscriberClient

from benchmarks.machine import Machine, World
from benchmarks.measures import Measure, in_turns
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.take import BATCH_MESSAGES, Budget
from tidemark.pipeline.ingest.ticks import TICK_BYTES
from tidemark.pipeline.pubsub.leases import IDS_PER_CALL
from tidemark.pipeline.pubsub.pulls import PULL_AT_MOST

TRACK_GOAL, LAND_GOAL = 0.9, 0.7
BATCHES = 2
"""Batches of a run: each is pulled whole, as in a tick, with all that precedes it acknowledged."""

WARM_UPS = 4
"""An emulator's JVM pulls three times as fast once it has compiled what it does: the first rounds compare its ages."""

TIMES = 3
"""The factor by which rounds are repeated: a round takes a second or two, and the emulator's speed varies by half."""

WHILE = timedelta(minutes=5)
"""A run ends with its messages, not by the time that a tick has."""

CALL_SECONDS = 30.0


def measure_track(machine: Machine, rounds: int, scale: float) -> Measure:
    """Messages a second of tracking ticks, and of the bare loop over the topic's other subscription."""
    return _measure(
        machine,
        "track",
        Side.TRACKING,
        rounds,
        scale,
        TRACK_GOAL,
        lambda world, budget: world.track(budget).persisted.messages,
        lambda world: world.settings.pubsub.base_path,
        "a tracking tick (pull, histogram, append to the log, acknowledge, then read and decide)",
    )


def measure_land(machine: Machine, rounds: int, scale: float) -> Measure:
    """Messages a second of landing ticks, and of the bare loop over the topic's other subscription."""
    return _measure(
        machine,
        "land",
        Side.BASE,
        rounds,
        scale,
        LAND_GOAL,
        lambda world, budget: world.land(budget).messages,
        lambda world: world.settings.pubsub.tracking_path,
        "a landing tick (pull, judge, append to Delta, acknowledge)",
    )


def _measure(
    machine: Machine,
    stage: str,
    side: Side,
    rounds: int,
    scale: float,
    goal: float,
    tick: Callable[[World, Budget], int],
    others_path: Callable[[World], str],
    what: str,
) -> Measure:
    batch = max(1000, round(BATCH_MESSAGES[side] * scale))
    worlds: dict[int, tuple[World, int]] = {}

    def world_of(number: int) -> tuple[World, int]:
        if number not in worlds:
            world = machine.world()
            worlds[number] = world, world.publish(BATCHES * batch)
        return worlds[number]

    def ours(number: int) -> float:
        world, messages = world_of(number)
        began = machine.clock.monotonic()
        done = tick(world, Budget(messages, TICK_BYTES, WHILE, batch))
        seconds = machine.clock.monotonic() - began
        if done != messages:
            raise ServiceFailed(f"{stage} took {done} of {messages} messages; run the benchmark again")
        return messages / seconds

    def reference(number: int) -> float:
        world, messages = world_of(number)
        began = machine.clock.monotonic()
        pull_and_acknowledge(world.subscriber, others_path(world), messages, batch)
        return messages / (machine.clock.monotonic() - began)

    mine, theirs = in_turns(rounds * TIMES, ours, reference, warm_ups=WARM_UPS)
    for world, _ in worlds.values():
        machine.forget(world)
    return Measure(
        stage,
        mine,
        theirs,
        goal,
        "higher",
        "messages/s",
        f"{what} beside a bare loop of pulls and acknowledgements, both on {machine.pubsub_name}, in {BATCHES} batches "
        f"of {batch:,}",
    )


def pull_and_acknowledge(client: SubscriberClient, path: str, messages: int, batch: int) -> None:
    """The least that any reader does: pull a batch, and acknowledge it."""
    left = messages
    while left > 0:
        ack_ids: list[str] = []
        wanted = min(batch, left)
        while len(ack_ids) < wanted:
            request = {"subscription": path, "max_messages": min(PULL_AT_MOST, wanted - len(ack_ids))}
            response = client.pull(request=request, retry=None, timeout=CALL_SECONDS)._pb
            ack_ids += [received.ack_id for received in response.received_messages]
        for start in range(0, len(ack_ids), IDS_PER_CALL):
            client.acknowledge(subscription=path, ack_ids=ack_ids[start : start + IDS_PER_CALL], timeout=CALL_SECONDS)
        left -= wanted

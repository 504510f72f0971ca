"""A tick of each sensor with nothing to do, beside the requests that it cannot do without."""

from datetime import timedelta

from google.api_core import exceptions as api

from benchmarks.machine import Machine, World
from benchmarks.measures import Measure, in_turns
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.pubsub.subscription import PULL_WAIT

GOAL = 1.25
MESSAGES = 2000
IDLE = timedelta(seconds=8)


def measure_idle_tick(machine: Machine, rounds: int, _scale: float) -> Measure:
    """Seconds of an idle tracking tick and an idle landing tick, beside two readings and two empty pulls."""
    world = machine.world()
    some = Budget(world.publish(MESSAGES), 1 << 28, timedelta(minutes=1), MESSAGES)
    world.track(some)
    world.land(some)
    idle = Budget(MESSAGES, 1 << 28, IDLE, MESSAGES)

    def ours(_: int) -> float:
        began = machine.clock.monotonic()
        world.track(idle)
        world.land(idle)
        return machine.clock.monotonic() - began

    def reference(_: int) -> float:
        began = machine.clock.monotonic()
        for path in (world.settings.pubsub.tracking_path, world.settings.pubsub.base_path):
            _pull_nothing(world, path)
            world.backlog(path).read()
        return machine.clock.monotonic() - began

    mine, theirs = in_turns(rounds, ours, reference)
    machine.forget(world)
    wait = PULL_WAIT.total_seconds()
    return Measure(
        "idle_tick",
        mine,
        theirs,
        GOAL,
        "lower",
        "s",
        f"an idle tracking tick and an idle landing tick, beside two bare readings and two empty pulls, each of which "
        f"waits up to {wait:g} s for a message",
    )


def _pull_nothing(world: World, path: str) -> None:
    try:
        world.subscriber.pull(
            request={"subscription": path, "max_messages": 1000}, retry=None, timeout=PULL_WAIT.total_seconds()
        )
    except api.DeadlineExceeded:
        return

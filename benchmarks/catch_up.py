"""The whole pipeline on a backlog: tracking and landing side by side, then the windows, as a multiple of real time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta

from benchmarks.diffs import plan_of
from benchmarks.machine import HISTORY_AGE, Machine, World
from benchmarks.measures import Measure
from benchmarks.traffic import LIVE_RATE
from tidemark.pipeline.compute.micro_batch import MicroBatch, compute_windows
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import tick_budget
from tidemark.pipeline.windows import Window

WHOLE_GOAL, TRACKED_GOAL = 20.0, 30.0
MESSAGES = 100_000
TICKS_AT_MOST = 200
IDLE_TIMEOUT = timedelta(seconds=1)
"""The history is published in one go and nothing follows it, so that the last window closes by the idle rule."""


def measure_catch_up(machine: Machine, rounds: int, scale: float) -> list[Measure]:
    """Messages a second from the backlog to the computed windows, beside the live rate."""
    messages = max(5000, round(MESSAGES * scale))
    whole: list[float] = []
    tracked: list[float] = []
    _caught_up(machine, max(5000, messages // 10), is_tracked=False)  # the server has computed such windows before
    for number in range(rounds):
        for is_tracked in (number % 2 == 0, number % 2 == 1):
            (tracked if is_tracked else whole).append(_caught_up(machine, messages, is_tracked=is_tracked))
    live = [LIVE_RATE] * rounds
    what = (
        f"a backlog of about {messages:,} messages on {machine.pubsub_name} until its windows are computed, beside the "
        f"rate at which it would have come live"
    )
    return [
        Measure("catch_up", whole, live, WHOLE_GOAL, "higher", "messages/s", f"tracking, landing and Spark: {what}"),
        Measure(
            "catch_up_tracked",
            tracked,
            live,
            TRACKED_GOAL,
            "higher",
            "messages/s",
            f"landing and Spark, tracking being caught up: {what}",
        ),
    ]


def _caught_up(machine: Machine, messages: int, *, is_tracked: bool) -> float:
    """Messages a second of one backlog."""
    machine.spark  # noqa: B018 (started before the clock runs)
    world = machine.world(idle_timeout=IDLE_TIMEOUT)
    end = machine.clock.now() - HISTORY_AGE
    count = world.publish(messages)
    first, last = end - timedelta(seconds=messages / LIVE_RATE), machine.clock.now() - HISTORY_AGE
    windowing = world.settings.windowing
    windows = list(windowing.between(windowing.containing(first).start, windowing.containing(last).end))
    if is_tracked:
        _track_all(world, count)
    began = machine.clock.monotonic()
    with ThreadPoolExecutor(2) as sensors:  # the code server ticks both in one process as well
        tracking = None if is_tracked else sensors.submit(_track_all, world, count)
        landing = sensors.submit(_land_all, world, count)
        if tracking is not None:
            tracking.result()
        landing.result()
    _compute(machine, world, windows, _watermark_beyond(world, windows[-1].end))
    seconds = machine.clock.monotonic() - began
    machine.forget(world)
    return count / seconds


def _track_all(world: World, count: int) -> None:
    _ticks_until(count, "tracked", lambda left: world.track(_budget(world, Side.TRACKING, left)).persisted.messages)


def _land_all(world: World, count: int) -> None:
    _ticks_until(count, "landed", lambda left: world.land(_budget(world, Side.BASE, left)).messages)


def _ticks_until(count: int, what: str, tick: Callable[[int], int]) -> None:
    for _ in range(TICKS_AT_MOST):
        count -= tick(count)
        if count <= 0:
            return
    raise ServiceFailed(f"after {TICKS_AT_MOST} ticks {count} messages are not {what}; run the benchmark again")


def _budget(world: World, side: Side, left: int) -> Budget:
    """A tick's budget, except that the last one does not wait for messages that will not come."""
    budget = tick_budget(world.settings, side)
    return replace(budget, max_messages=min(budget.max_messages, left))


def _watermark_beyond(world: World, end: datetime) -> datetime:
    """Tick as the sensor does until the watermark has passed the end of the last window."""
    for _ in range(TICKS_AT_MOST):
        watermark = world.track(_budget(world, Side.TRACKING, 1)).decision.watermark
        if watermark is not None and watermark >= end:
            return watermark
    raise ServiceFailed(f"the watermark did not pass {end} within {TICKS_AT_MOST} ticks; run the benchmark again")


def _compute(machine: Machine, world: World, windows: list[Window], watermark: datetime) -> None:
    batch = MicroBatch(
        machine.spark,
        heartbeats=world.lake.heartbeats(),
        tables=(world.lake.stream_status(), world.lake.diffs()),
        plan=plan_of(world.settings),
        watermark=watermark,
        run="bench",
        clock=machine.clock,
        refuse_expired=lambda _: None,
    )
    compute_windows(batch, windows)

"""What grows with the rate and the backlog, and what must not: bytes of the histogram and of a tick's write."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from benchmarks.machine import Machine
from benchmarks.measures import Measure
from benchmarks.traffic import LIVE_RATE, REGULAR, MadeSubscription
from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.take import BATCH_MESSAGES
from tidemark.pipeline.ingest.ticks import tick_budget
from tidemark.pipeline.lake.log.codec import encode
from tidemark.pipeline.watermark.histogram import Histogram, Ints
from tidemark.pipeline.watermark.state import Compacted, WatermarkState

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
FLAT = 1.25
"""Ten times or fifty times as much of something may add a quarter: more digits in the counts, not more cells."""

SPAN = timedelta(minutes=5)
PIECE = timedelta(seconds=10)
TICK = timedelta(seconds=10)
BATCH = BATCH_MESSAGES[Side.TRACKING]


def measure_histogram_bytes(rounds: int, scale: float) -> list[Measure]:
    """The compacted entry of a histogram at ten and fifty times the live rate, beside the live rate's."""
    ours: dict[int, list[float]] = {}
    for number in range(rounds):
        for times in (1, 10, 50):
            ours.setdefault(times, []).append(float(_compacted_bytes(LIVE_RATE * times, SPAN * scale, number)))
    return [
        Measure(
            name,
            ours[times],
            ours[1],
            FLAT,
            "lower",
            "bytes",
            f"the compacted log entry after {SPAN * scale} of traffic at {times} times {LIVE_RATE:.0f} messages/s, "
            "beside the live rate's; each message has its own publish time within 3 s of its event time",
        )
        for name, times in (("histogram_bytes", 50), ("histogram_bytes_10x", 10))
    ]


def _compacted_bytes(rate: float, span: timedelta, seed: int) -> int:
    random = np.random.default_rng(seed)
    histogram = Histogram.empty()
    for piece in range(max(1, round(span / PIECE))):
        begin = to_us(START) + piece * duration_us(PIECE)
        event_us: Ints = random.integers(begin, begin + duration_us(PIECE), round(rate * PIECE.total_seconds()))
        publish_us: Ints = event_us + random.integers(0, duration_us(REGULAR.jitter), len(event_us))
        histogram += Histogram.of(publish_us, event_us)
    return len(encode(Compacted(WatermarkState(histogram=histogram)), "bench"))


def measure_tick_write_bytes(machine: Machine, rounds: int, _scale: float) -> list[Measure]:
    """What one tracking tick adds to the log, at ten times the rate, and with ten times the backlog, beside the live
    rate's. The ticks are real ones, on a lake on disk; their messages are made, since only so are they published when a
    live source would have."""
    live: list[float] = []
    fast: list[float] = []
    behind: list[float] = []
    for _ in range(rounds):
        live.append(_tick_bytes(machine, 1, TICK))
        fast.append(_tick_bytes(machine, 10, TICK))
        behind.append(_tick_bytes(machine, 1, TICK * 10))
    same = f"bytes that a tracking tick adds to the log, {TICK.total_seconds():g} s of traffic at 333 messages/s"
    return [
        Measure(
            "tick_write_bytes",
            fast,
            live,
            FLAT,
            "lower",
            "bytes",
            f"ten times the rate, beside the {same}",
            f"each batch of {BATCH:,} messages is an entry of its own, so that ten times the rate is two",
        ),
        Measure(
            "tick_write_bytes_backlog",
            behind,
            live,
            None,
            "lower",
            "bytes",
            f"ten times the backlog at the same rate, beside the {same}; it grows with the time that a backlog spans",
        ),
    ]


def _tick_bytes(machine: Machine, times: int, span: timedelta) -> float:
    world = machine.world()
    budget = replace(tick_budget(world.settings, Side.TRACKING), max_time=timedelta(minutes=5))
    source = replace(REGULAR, streams=REGULAR.streams * times)
    # The first tick writes the log's beginning as well; the second is as all others are.
    one = replace(budget, max_messages=1, batch_messages=1)
    world.track(one, MadeSubscription(REGULAR, START, START + TICK))
    before = _log_bytes(world.settings.lake.folder)
    world.track(budget, MadeSubscription(source, START, START + span))
    machine.forget(world)
    return float(_log_bytes(world.settings.lake.folder) - before)


def _log_bytes(lake: Path | None) -> int:
    return 0 if lake is None else sum(file.stat().st_size for file in (lake / "tracking" / "log").glob("*.parquet"))

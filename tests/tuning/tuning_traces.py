"""Invented sources by a seed: so many messages a second, and what is wrong with some; and the lake of a run."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.lake.builders import Beat, append_beats, columns_of
from tests.replay.traces import Held, write_trace
from tests.watermark.builders import START_US
from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.replay.replay import decide_again
from tidemark.pipeline.replay.trace import NEVER, Batch, ticks_of
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy

SECOND_US = 1_000_000
TICK = timedelta(seconds=10)
LAST_SECONDS = 30


@dataclass(frozen=True)
class Source:
    """Messages of `streams` streams, each published up to `jitter` seconds after its event, at random moments.

    Of all messages the share `late` is published `late_by` seconds later than that; every message of the first
    `slow` streams is, by `slow_by`. The clocks of the last `fast` streams are `fast_by` seconds ahead. Tracking
    acknowledges every `tick` seconds what was published before, landing the same half a second later, but for the share
    `left`, which it leaves for the next time.
    """

    seconds: int = 600
    rate: int = 20
    streams: int = 50
    jitter: float = 4.0
    late: float = 0.0
    late_by: float = 60.0
    slow: int = 0
    slow_by: float = 30.0
    fast: int = 0
    fast_by: float = 30.0
    tick: int = 10
    left: float = 0.5
    seed: int = 1

    def trace(self) -> "MemoryTrace":
        """The trace, in order of publish time."""
        random = np.random.default_rng(self.seed)
        count = self.seconds * self.rate
        happened = START_US + random.integers(0, self.seconds * SECOND_US, count)
        stream = random.integers(0, self.streams, count)
        delay = random.uniform(0, self.jitter, count)
        delay += np.where(random.random(count) < self.late, self.late_by, 0.0)
        delay += np.where(stream < self.slow, self.slow_by, 0.0)
        publish = happened + (delay * SECOND_US).astype(np.int64)
        event = happened + np.where(stream >= self.streams - self.fast, int(self.fast_by * SECOND_US), 0)
        order = np.argsort(publish, kind="stable")
        publish, event, stream = publish[order], event[order], stream[order]
        every = self.tick * SECOND_US
        tracked = (publish // every + 1) * every - SECOND_US
        tracked = np.where(tracked < publish, tracked + every, tracked)
        landed = tracked + np.where(random.random(count) < self.left, every, 0) + SECOND_US // 2
        return MemoryTrace(publish, event, tracked, landed, stream, self.streams)


@dataclass(frozen=True)
class MemoryTrace:
    """A trace in memory, given in batches of three thousand."""

    publish_us: Ints
    event_us: Ints
    tracked_us: Ints
    landed_us: Ints
    stream: Ints
    streams: int

    @property
    def names(self) -> tuple[str, ...]:
        """The streams' names, by their numbers."""
        return tuple(f"stream-{number:04d}" for number in range(self.streams))

    def shifted(self, by_us: int) -> "MemoryTrace":
        """The same at another time."""
        times = (self.publish_us, self.event_us, self.tracked_us, self.landed_us)
        return MemoryTrace(*(column + by_us for column in times), self.stream, self.streams)

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        codes = pa.array(self.stream, pa.int32(), mask=self.stream < 0)
        ids = pa.DictionaryArray.from_arrays(codes, list(self.names)).cast(pa.string())
        messages = Batch(self.publish_us, self.event_us, self.tracked_us, self.landed_us, ids)
        return Held(messages, 3_000).batches(streams=streams)

    def write(self, path: Path, names: Sequence[str] | None = None) -> Path:
        """The trace as a file, as `tidemark tune` reads it, with other names of the streams if there are any."""
        called = self.names if names is None else names
        streams = [called[number] for number in self.stream.tolist()]
        return write_trace(
            Batch(self.publish_us, self.event_us, self.tracked_us, self.landed_us), path, streams=streams
        )


def ending_before(trace: MemoryTrace, now_us: int) -> MemoryTrace:
    """The trace moved, by whole ticks, so that its last landing is a few seconds before now."""
    ended = int(trace.landed_us[trace.landed_us != NEVER].max())
    return trace.shifted((now_us - ended - LAST_SECONDS * SECOND_US) // (10 * SECOND_US) * (10 * SECOND_US))


def record(lake: Lake, trace: MemoryTrace, policy: Policy) -> None:
    """Write the log and `heartbeats`; every tenth message landed a second time, later, as a redelivery does."""
    log = lake.tracking_log()
    last_us = int(trace.landed_us.max())
    ticks = [
        tick for tick in ticks_of(trace, TICK, policy.idle_timeout) if to_us(tick.at) < last_us + duration_us(TICK)
    ]
    for tick, decided in zip(ticks, decide_again(ticks, policy), strict=True):
        for entry in tick.entries:
            log.append(entry)
        log.append(decided)
        log.compact_if_due()
    again = np.arange(0, len(trace.publish_us), 10)
    rows = np.concatenate([np.arange(len(trace.publish_us)), again])
    landed = np.concatenate([trace.landed_us, np.full(len(again), last_us)])
    columns = columns_of([Beat(trace.names[trace.stream[row]], 0, f"m{row}") for row in rows])
    times = {"event_time": trace.event_us[rows], "publish_time": trace.publish_us[rows], "landed_at": landed}
    append_beats(lake.heartbeats(), columns | times)

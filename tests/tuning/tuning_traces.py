"""Invented sources, by a seed: so many messages a second, and what is wrong with some of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.replay.traces import write_trace
from tests.watermark.builders import START_US
from tidemark.pipeline.replay.trace import Batch
from tidemark.pipeline.watermark.histogram import Ints

SECOND_US = 1_000_000


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
        for low in range(0, len(self.publish_us), 3_000):
            part = slice(low, low + 3_000)
            codes = pa.array(self.stream[part], pa.int32(), mask=self.stream[part] < 0)
            ids = pa.DictionaryArray.from_arrays(codes, list(self.names))
            yield Batch(
                self.publish_us[part],
                self.event_us[part],
                self.tracked_us[part],
                self.landed_us[part],
                ids if streams else None,
            )

    def write(self, path: Path, names: Sequence[str] | None = None) -> Path:
        """The trace as a file, as `tidemark tune` reads it, with other names of the streams if there are any."""
        called = self.names if names is None else names
        streams = [called[number] for number in self.stream.tolist()]
        return write_trace(
            Batch(self.publish_us, self.event_us, self.tracked_us, self.landed_us), path, streams=streams
        )

"""Invented traces, one for each seed, and a run over one.

Disorder is at most `disorder` in each: a message is published within `[lag, lag + disorder]` of its event. Times have
fractions of a second. Some messages are rejected; everything is acknowledged in the end.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.watermark.builders import START_US, seconds
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.trace import NEVER, NO_EVENT_TIME, Batch, Tick, ticks_of
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import DecisionRecord, WatermarkState

SECOND_US = 1_000_000
BAND = timedelta(seconds=10)
STREAMS = 50
REJECTED = 0.02


@dataclass(frozen=True, slots=True)
class Held:
    """A trace in memory, given out in parts. Messages whose batch names no streams are of STREAMS streams in turn."""

    messages: Batch
    part: int = 1 << 30

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        rows, ids = np.arange(len(self.messages)), self.messages.streams
        if streams and ids is None:
            ids = pa.array([str(row % STREAMS) for row in rows.tolist()], pa.string())
        whole = replace(self.messages, streams=ids if streams else None)
        for start in range(0, len(rows), self.part):
            yield whole.where((rows >= start) & (rows < start + self.part))


def steady(seed: int, *, per_second: float = 10, minutes: float = 20, disorder: timedelta = BAND) -> Batch:
    """Messages at random moments, published with a lag of a second and up to `disorder` more; tracked and landed within
    seconds."""
    rng = np.random.default_rng(seed)
    event_us = START_US + np.sort(rng.integers(0, int(minutes * 60 * SECOND_US), int(per_second * 60 * minutes)))
    publish_us = event_us + SECOND_US + rng.integers(0, duration_us(disorder), len(event_us), endpoint=True)
    event_us = np.where(rng.random(len(event_us)) < REJECTED, NO_EVENT_TIME, event_us)
    tracked_us = publish_us + rng.integers(50_000, 4 * SECOND_US, len(publish_us))
    landed_us = publish_us + rng.integers(50_000, 12 * SECOND_US, len(publish_us))
    return Batch(publish_us, event_us, tracked_us, landed_us)


def write_trace(messages: Batch, path: Path, row_group: int = 1 << 20, streams: Sequence[str] | None = None) -> Path:
    """The trace as a file for `tidemark replay`, with each message's stream."""
    times = {
        "publish_time": messages.publish_us,
        "event_time": messages.event_us,
        "tracked_at": messages.tracked_us,
        "landed_at": messages.landed_us,
    }
    ids = {
        "message_id": [f"m-{number}" for number in range(len(messages))],
        "stream_id": streams or [f"stream-{number % STREAMS:03}" for number in range(len(messages))],
    }
    columns = {name: pa.array(values, mask=values == NEVER).cast(MOMENT) for name, values in times.items()}
    pq.write_table(pa.table(ids | columns), path, row_group_size=row_group)
    return path


def record(log: TrackingLog, messages: Batch, policy: Policy, tick: float = 10) -> list[DecisionRecord]:
    """A run over a trace, as a tracker writes it down."""
    decided: list[DecisionRecord] = []
    for each in ticks_of(Held(messages), seconds(tick), policy.idle_timeout):
        for entry in each.entries:
            log.append(entry)
        decided.append(log.decide(deciding(each, policy)))
        log.compact_if_due()
    return decided


def deciding(tick: Tick, policy: Policy) -> Callable[[WatermarkState], DecisionRecord]:
    """What a tick decides."""
    return lambda state: state.decide(tick.base, tick.tracking, policy, tick.at)

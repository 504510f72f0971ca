"""A lake as a run of an invented source would have left it: the tracking log with its decisions, and what landed."""

from collections.abc import Mapping, Sequence
from datetime import timedelta

import numpy as np

from tests.lake.builders import append_beats
from tests.tuning.tuning_traces import SECOND_US, MemoryTrace
from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.replay.replay import decide_again
from tidemark.pipeline.replay.trace import NEVER, ticks_of
from tidemark.pipeline.watermark.policy import Policy

TICK = timedelta(seconds=10)
LAST_SECONDS = 30


def ending_before(trace: MemoryTrace, now_us: int) -> MemoryTrace:
    """The trace moved, by whole ticks, so that its last landing is a few seconds before now."""
    ended = int(trace.landed_us[trace.landed_us != NEVER].max())
    return trace.shifted((now_us - ended - LAST_SECONDS * SECOND_US) // (10 * SECOND_US) * (10 * SECOND_US))


def record(
    lake: Lake, trace: MemoryTrace, policy: Policy, attributes: Sequence[Mapping[str, str]] | None = None
) -> None:
    """Write the log and `heartbeats`; every tenth message landed a second time, later, as a redelivery does.

    `attributes` are those of each message; without them, none has any."""
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
    append_beats(
        lake.heartbeats(),
        {
            "stream_id": [trace.names[number] for number in trace.stream[rows]],
            "event_time": trace.event_us[rows],
            "publisher_id": [None] * len(rows),
            "message_id": [f"m{number}" for number in rows],
            "publish_time": trace.publish_us[rows],
            "ordering_key": [None] * len(rows),
            "attributes": [list(attributes[row].items()) if attributes else [] for row in rows],
            "payload": [b"{}"] * len(rows),
            "landed_at": landed,
            "late": [False] * len(rows),
        },
    )

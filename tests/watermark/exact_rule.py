"""Readings, the rule `band` and lateness on exact times, over all messages: no buckets, no fold, no pruning.

Written from the rules alone (docs/concepts/watermark.md), and on nothing of the estimator.
"""

from collections.abc import Sequence

import numpy as np

from tidemark.pipeline.replay.trace import NO_EVENT_TIME, Batch
from tidemark.pipeline.watermark.histogram import Ints


def exact_readings(messages: Batch, at_us: int) -> tuple[int, int]:
    """B and T at a moment: the least publish time that was not acknowledged, else the moment."""
    published = messages.publish_us <= at_us
    oldest = [
        int(messages.publish_us[published & (acknowledged > at_us)].min(initial=at_us))
        for acknowledged in (messages.landed_us, messages.tracked_us)
    ]
    return oldest[0], oldest[1]


def least_in_band(publish: Ints, event: Ints, base: int, tracking: int, band: int) -> int | None:
    """The earliest event time published in `[min(B, T - D), T]`, or at the anchor, or in between.

    The anchor is the newest publish time before `T - D`; None where there is none. Microseconds.
    """
    before = publish < tracking - band
    if not before.any():
        return None
    event = np.minimum(event, publish)
    start = min(base, tracking - band, int(publish[before].max()))
    return int(event[(publish >= start) & (publish <= tracking)].min())


def exact_late(messages: Batch, tick_us: Ints, watermarks: Sequence[int | None]) -> list[int]:
    """How many messages were late by each tick, counted one by one."""
    late = [0] * len(tick_us)
    for event, landed in zip(messages.event_us.tolist(), messages.landed_us.tolist(), strict=True):
        before = [number for number, at_us in enumerate(tick_us.tolist()) if at_us < landed]
        watermark = watermarks[before[-1]] if before else None
        if event == NO_EVENT_TIME or watermark is None or event >= watermark:
            continue
        for number, at_us in enumerate(tick_us.tolist()):
            late[number] += at_us >= landed
    return late

"""The rules of the watermark on exact times, over all messages at every tick: no buckets, no fold, no pruning.

Written from the rules alone (docs/concepts/watermark.md), and on nothing of the estimator. Slacks
are zero and every reading is there, so that there is neither a stale reading nor a seek.
"""

from collections.abc import Sequence

import numpy as np

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.replay.trace import NO_EVENT_TIME, Batch
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy

SECOND_US = 1_000_000


def exact_readings(messages: Batch, at_us: int) -> tuple[int, int]:
    """B and T at a moment: the least publish time that was not acknowledged, else the moment."""
    published = messages.publish_us <= at_us
    oldest = [
        int(messages.publish_us[published & (acknowledged > at_us)].min(initial=at_us))
        for acknowledged in (messages.landed_us, messages.tracked_us)
    ]
    return oldest[0], oldest[1]


def exact_watermarks(messages: Batch, tick_us: Sequence[int] | Ints, policy: Policy) -> list[int | None]:
    """The watermark at each tick, in microseconds; None before the first."""
    watermark: int | None = None
    watermarks: list[int | None] = []
    for at_us in map(int, tick_us):
        base, tracking = exact_readings(messages, at_us)
        candidate = exact_candidate(messages, at_us, base, tracking, policy)
        if candidate is not None and (watermark is None or candidate > watermark):
            watermark = candidate
        watermarks.append(watermark)
    return watermarks


def exact_candidate(messages: Batch, at_us: int, base: int, tracking: int, policy: Policy) -> int | None:
    """What the watermark may move to at this tick; None where it is held."""
    base_age, tracking_age = at_us - base, at_us - tracking
    band, near = duration_us(policy.band), duration_us(policy.near_real_time)
    seen = (messages.tracked_us <= at_us) & (messages.event_us != NO_EVENT_TIME)
    publish = messages.publish_us[seen]
    event = np.minimum(messages.event_us[seen], publish)
    if base < int(messages.publish_us.min()):  # complete_from
        return None
    if not (tracking - base >= band or tracking_age <= near) or not len(publish):
        return None
    newest = int(publish.max())
    silence = at_us - newest
    if (
        policy.idle == "advance"
        and base_age <= near
        and tracking_age <= near
        and silence > duration_us(policy.idle_timeout)
    ):
        beside = publish // SECOND_US == newest // SECOND_US
        lag = int((publish - event)[beside].max())
        return min(base, tracking) - band - min(max(lag, 0), duration_us(policy.max_idle_lag))
    if policy.rule == "frontier":
        before = publish < tracking - band
        return int(event[publish >= base].min(initial=int(event[before].max()))) if before.any() else None
    return least_in_band(publish, event, base, tracking, band)


def least_in_band(publish: Ints, event: Ints, base: int, tracking: int, band: int) -> int | None:
    """The least event time published in `[min(B, T - D), T]`, or at the anchor, or in between.

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

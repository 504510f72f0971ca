"""Each system's rule, written from its documentation or its published source, as a watermark over time.

What is open is decided in the peer's favour: calls take no time, a reader is never behind what base reads, a watermark
is never taken back, and a reader that is stopped reports nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

import numpy as np

from benchmarks.compare.traces import SECOND_US, Traffic
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR, decide_again
from tidemark.pipeline.replay.trace import NO_WATERMARK, Tick, ticks_of, watermarks_us
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rule

READERS = 4
"""Parallel readers of a peer's source: Pub/Sub hands each message to one of them."""

NEVER = np.iinfo(np.int64).max
EMIT_US = 200_000
"""Flink emits a watermark every 200 ms by default (`pipeline.auto-watermark-interval`)."""

IDLE_US = 60 * SECOND_US
"""`withIdleness` has no default; a minute, as in Flink's documentation."""

TRIGGER_US = SECOND_US
"""Spark starts a batch as soon as the last has ended, by default; a second is quick for one."""

TICK = timedelta(seconds=10)
"""tidemark's default."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark in steps: from `at_us` on it is `value_us`. A window is ready `ready_after_us` after it is passed."""

    at_us: Ints
    value_us: Ints
    ready_after_us: int = 0


def flink(traffic: Traffic, bound: timedelta, *, idleness: bool) -> Watermark:
    """Apache Flink: the greatest event time read, less the bound and a millisecond; the least of all readers.

    Sources: `BoundedOutOfOrdernessWatermarks.onPeriodicEmit`, `WatermarksWithIdleness.onPeriodicEmit` (a reader that
    read nothing for the timeout does not count) and `StatusWatermarkValve` (where all are idle, the greatest counts) in
    apache/flink; docs: "Generating Watermarks", "Dealing With Idle Sources".
    """
    at_us = _every(traffic, EMIT_US)
    less_us = _us(bound) + 1_000
    greatest, read_at = np.full((2, READERS, len(at_us)), NO_WATERMARK)
    for reader, (event_us, landed_us) in enumerate(_readers(traffic)):
        step = np.searchsorted(at_us, landed_us, side="left")
        np.maximum.at(greatest[reader], step, event_us)
        np.maximum.at(read_at[reader], step, at_us[step])
    greatest, read_at = np.maximum.accumulate(greatest, axis=1), np.maximum.accumulate(read_at, axis=1)
    value_us = greatest.min(axis=0)
    if idleness:
        active = (read_at != NO_WATERMARK) & (at_us - read_at <= IDLE_US)
        of_active = np.where(active, greatest, NEVER).min(axis=0)
        value_us = np.where(active.any(axis=0), of_active, greatest.max(axis=0))
    value_us = np.where(value_us == NO_WATERMARK, NO_WATERMARK, value_us - less_us)
    # A window [start, end) fires at the watermark end - 1 ms.
    return Watermark(at_us, np.maximum.accumulate(np.where(value_us == NO_WATERMARK, value_us, value_us + 1_000)))


def spark(traffic: Traffic, bound: timedelta) -> Watermark:
    """Apache Spark Structured Streaming: the greatest event time of the batches before, less the bound. It moves
    between batches: a batch drops what is below the mark of the batches before it, and the next one evicts the windows.

    Sources: `WatermarkTracker.updateWatermark` and `EventTimeWatermarkExec` in apache/spark; docs: "Handling Late Data
    and Watermarking" in the Structured Streaming guide.
    """
    at_us = _every(traffic, TRIGGER_US)
    greatest = np.full(len(at_us), NO_WATERMARK)
    np.maximum.at(greatest, np.searchsorted(at_us, traffic.landed_us, side="left"), traffic.event_us)
    greatest = np.maximum.accumulate(greatest)
    value_us = np.where(greatest == NO_WATERMARK, NO_WATERMARK, greatest - _us(bound))
    return Watermark(at_us, value_us, ready_after_us=TRIGGER_US)


SAMPLE_PERIOD_US, SAMPLE_UPDATE_US = 60 * SECOND_US, 5 * SECOND_US
SIGNIFICANT_MESSAGES, SIGNIFICANT_BUCKETS, PULL_BATCH = 10, 2, 1_000
"""`SAMPLE_PERIOD`, `SAMPLE_UPDATE`, `MIN_WATERMARK_MESSAGES`, `MIN_WATERMARK_SPREAD` and `PULL_BATCH_SIZE` of the
source."""


def beam(traffic: Traffic) -> Watermark:
    """Apache Beam's open-source Pub/Sub source: the earliest event time read within the last minute of processing time,
    or pulled and not yet read; the present, after a minute in which nothing was read; the earliest of all readers. The
    runner keeps it from going back. It has no bound to set.

    Source: `PubsubUnboundedSource.PubsubReader.getWatermark` and `MovingFunction` in apache/beam.
    """
    at_us, (low, high) = _every(traffic, SECOND_US), traffic.stopped_us
    at_us = at_us[(at_us < low) | (at_us >= high)]
    reported = [_beam_reader(at_us, event_us, landed_us, high) for event_us, landed_us in _readers(traffic)]
    return Watermark(at_us, np.maximum.accumulate(np.min(reported, axis=0)))


def _beam_reader(at_us: Ints, event_us: Ints, landed_us: Ints, restarted_us: int) -> Ints:
    bucket = landed_us // SAMPLE_UPDATE_US
    first = int(at_us[0] // SAMPLE_UPDATE_US)
    buckets = int(at_us[-1] // SAMPLE_UPDATE_US) - first + 1
    least, samples = np.full(buckets, NEVER), np.zeros(buckets, dtype=np.int64)
    np.minimum.at(least, bucket - first, event_us)
    np.add.at(samples, bucket - first, 1)
    # Pulled and not read: the rest of the batch that the next message to be read came in.
    rest = np.full(len(event_us) + 1, NEVER)
    for begin in range(0, len(event_us), PULL_BATCH):
        part = slice(begin, min(begin + PULL_BATCH, len(event_us)))
        rest[part] = np.minimum.accumulate(event_us[part][::-1])[::-1]
    reported, last = np.full(len(at_us), NO_WATERMARK), NO_WATERMARK
    kept = SAMPLE_PERIOD_US // SAMPLE_UPDATE_US
    for number, now in enumerate(at_us.tolist()):
        here = now // SAMPLE_UPDATE_US - first
        window = slice(max(0, here - kept + 1), here + 1)
        read = int(np.searchsorted(landed_us, now, side="right"))
        is_within_a_batch = read % PULL_BATCH and read < len(landed_us) and landed_us[read] - now <= SECOND_US
        unread = int(rest[read]) if is_within_a_batch else NEVER
        read_least = int(least[window].min())
        count = samples[window]
        received_us = int(landed_us[read - 1]) if read else NEVER
        is_new = now >= restarted_us > received_us  # a reader that was started again has received nothing yet
        if read_least == unread == NEVER and not is_new and now - SAMPLE_PERIOD_US > received_us:
            last = now
        elif (np.count_nonzero(count) >= SIGNIFICANT_BUCKETS or count.sum() >= SIGNIFICANT_MESSAGES) and (
            min(read_least, unread) != NEVER
        ):
            last = min(read_least, unread)
        reported[number] = last
    return reported


def tidemark(ticks: list[Tick], policy: Policy, rules: Sequence[Rule] = RULES) -> Watermark:
    """Decide by the estimator and the fold of production."""
    decisions = [decided.decision for decided in decide_again(ticks, policy, rules=rules)]
    at_us = np.array([to_us(decision.at) for decision in decisions], dtype=np.int64)
    return Watermark(at_us, watermarks_us([decision.watermark for decision in decisions]))


def policy_of(rule: Literal["band", "frontier"], band: timedelta, *, slack: bool) -> Policy:
    """tidemark's policy, with the slack that is the default on Google's service or without any."""
    if not slack:
        return Policy(rule=rule, band=band)
    return Policy(rule=rule, band=band, base_slack=band, reading_slack=timedelta(seconds=1))


def dataflow(ticks: list[Tick], band: timedelta) -> Watermark:
    """Dataflow's method, as Google described it: the earliest event time of `[min(B, T - D), T]`, without an anchor.

    Source: its author on Stack Overflow, question 42169004. Dataflow reads backlogs by a private call, so no slack.
    """
    return tidemark(ticks, Policy(band=band), RULES_WITHOUT_ANCHOR)


def ticks_for(traffic: Traffic) -> list[Tick]:
    """Return tidemark's ticks over the traffic, for every policy with the default idle timeout."""
    return ticks_of(traffic, TICK, Policy().idle_timeout)


def _readers(traffic: Traffic) -> list[tuple[Ints, Ints]]:
    """Deal the messages out to the readers by a fixed seed: event times and moments, in each reader's order."""
    order = np.argsort(traffic.landed_us, kind="stable")
    reader = np.random.default_rng(1).integers(0, READERS, len(order))
    return [(traffic.event_us[mine], traffic.landed_us[mine]) for mine in (order[reader == r] for r in range(READERS))]


def _every(traffic: Traffic, step_us: int) -> Ints:
    """Return moments `step_us` apart, until ten minutes after the last message was read."""
    begin = int(traffic.publish_us.min()) // step_us * step_us
    return np.arange(begin, int(traffic.landed_us.max()) + 600 * SECOND_US, step_us, dtype=np.int64)


def _us(duration: timedelta) -> int:
    return int(duration.total_seconds() * SECOND_US)

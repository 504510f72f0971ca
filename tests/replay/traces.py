"""Invented traces, each of one thing that happens to a pipeline. One seed is one trace.

Disorder is at most `disorder` in each: a message is published within `[lag, lag + disorder]` of its event. Times have
fractions of a second. Some messages are rejected; everything is acknowledged in the end.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.watermark.builders import START_US
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.trace import NEVER, NO_EVENT_TIME, Batch, Trace, late_in
from tidemark.pipeline.watermark.histogram import Ints

SECOND_US = 1_000_000
MINUTE_US = 60 * SECOND_US
BAND = timedelta(seconds=10)
STREAMS = 50
REJECTED = 0.02


@dataclass(frozen=True, slots=True)
class Held:
    """A trace in memory, given out in parts."""

    messages: Batch
    part: int = 1 << 30

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        whole = self.messages
        for start in range(0, len(whole), self.part):
            rows = slice(start, start + self.part)
            codes, names = (np.arange(len(whole)) % STREAMS)[rows], list(map(str, range(STREAMS)))
            ids = pa.DictionaryArray.from_arrays(codes.astype(np.int32), names)
            yield Batch(
                whole.publish_us[rows],
                whole.event_us[rows],
                whole.tracked_us[rows],
                whole.landed_us[rows],
                ids if streams else None,
            )


def late_per_tick(trace: Trace, tick_us: Ints, watermark_us: Ints) -> Ints:
    """`late_in` of a whole trace."""
    return np.sum([late_in(batch, tick_us, watermark_us) for batch in trace.batches()], axis=0, dtype=np.int64)


def disorder_us(messages: Batch) -> int:
    """The least disorder for which the definition holds; negative where there is order with something to spare."""
    valid = messages.event_us != NO_EVENT_TIME
    publish, event = messages.publish_us[valid], messages.event_us[valid]
    order = np.argsort(event, kind="stable")
    publish, event = publish[order], event[order]
    least_from = np.minimum.accumulate(publish[::-1])[::-1]
    later = np.searchsorted(event, event, side="right")
    has_later = later < len(event)
    return int((publish[has_later] - least_from[later[has_later]]).max(initial=-NEVER))


def steady(seed: int, *, per_second: float = 10, minutes: float = 20, disorder: timedelta = BAND) -> Batch:
    """Messages at random moments, tracked and landed within seconds."""
    rng = np.random.default_rng(seed)
    return _trace(rng, _spread(rng, per_second, 0, minutes), disorder)


def base_down(seed: int, *, per_second: float = 10, down: float = 20, disorder: timedelta = BAND) -> Batch:
    """Nothing lands for 20 minutes; then the backlog is drained within 4, out of order, while more is published."""
    rng = np.random.default_rng(seed)
    messages = _trace(rng, _spread(rng, per_second, 0, down + 15), disorder)
    return _stalled(rng, messages, "landed_us", from_minute=5, minutes=down, drained_within=4)


def both_down(seed: int, *, per_second: float = 10, down: float = 15, disorder: timedelta = BAND) -> Batch:
    """Neither subscription is read for a while; both are drained out of order, base more slowly."""
    rng = np.random.default_rng(seed)
    messages = _trace(rng, _spread(rng, per_second, 0, down + 15), disorder)
    messages = _stalled(rng, messages, "tracked_us", from_minute=5, minutes=down, drained_within=2)
    return _stalled(rng, messages, "landed_us", from_minute=5, minutes=down, drained_within=6)


def two_days_read(seed: int, *, per_second: float = 0.1, hours: float = 48, disorder: timedelta = BAND) -> Batch:
    """Two days of messages that nobody reads; then both subscriptions read them within 15 minutes, out of order."""
    rng = np.random.default_rng(seed)
    messages = _trace(rng, _spread(rng, per_second, 0, hours * 60 + 20), disorder)
    messages = _stalled(rng, messages, "tracked_us", from_minute=0, minutes=hours * 60, drained_within=10)
    return _stalled(rng, messages, "landed_us", from_minute=0, minutes=hours * 60, drained_within=15)


def two_days_published(seed: int, *, per_second: float = 20, hours: float = 48, disorder: timedelta = BAND) -> Batch:
    """Events of two days, published in their order within 15 minutes, then more as they happen."""
    rng = np.random.default_rng(seed)
    old = _spread(rng, per_second, 0, 15)
    messages = _trace(rng, np.concatenate([old, _spread(rng, per_second, 15, 25)]), disorder)
    # In publish time its disorder is what it was; the more event time passes in a second.
    beginning, end = START_US, START_US + 15 * MINUTE_US
    past = (messages.event_us < end) & (messages.event_us != NO_EVENT_TIME)
    stretched = end - (end - messages.event_us) * int(hours * 60 / 15)
    event_us = np.where(past, stretched, messages.event_us)
    assert beginning < end
    return Batch(messages.publish_us, event_us, messages.tracked_us, messages.landed_us)


def sparse(seed: int, *, every_seconds: float = 40, minutes: float = 120, disorder: timedelta = BAND) -> Batch:
    """One message every 40 seconds on average, at random moments: now two within a band, now none for minutes."""
    rng = np.random.default_rng(seed)
    return _trace(rng, _spread(rng, 1 / every_seconds, 0, minutes), disorder, rejected=0)


def silence(seed: int, *, per_second: float = 10, silent: float = 6, disorder: timedelta = BAND) -> Batch:
    """Nothing is published for six minutes."""
    rng = np.random.default_rng(seed)
    before, after = _spread(rng, per_second, 0, 10), _spread(rng, per_second, 10 + silent, 20 + silent)
    return _trace(rng, np.concatenate([before, after]), disorder)


def tracking_stalled(seed: int, *, per_second: float = 10, stalled: float = 4, disorder: timedelta = BAND) -> Batch:
    """Tracking is not read for four minutes, while base is."""
    rng = np.random.default_rng(seed)
    messages = _trace(rng, _spread(rng, per_second, 0, 20), disorder)
    return _stalled(rng, messages, "tracked_us", from_minute=8, minutes=stalled, drained_within=1)


def straggler(seed: int, *, per_second: float = 10, held: float = 10, disorder: timedelta = BAND) -> Batch:
    """One message lands ten minutes after all that were published with it."""
    rng = np.random.default_rng(seed)
    messages = _trace(rng, _spread(rng, per_second, 0, 25), disorder)
    landed_us = messages.landed_us.copy()
    valid = np.flatnonzero(messages.event_us != NO_EVENT_TIME)
    one = valid[len(valid) // 4 + int(rng.integers(0, 100))]
    landed_us[one] = messages.publish_us[one] + int(held * MINUTE_US)
    return Batch(messages.publish_us, messages.event_us, messages.tracked_us, landed_us)


def bursts(seed: int, *, size: int = 40, every_seconds: float = 7, disorder: timedelta = BAND) -> Batch:
    """Bursts of messages that share a publish time, some of them to the second."""
    rng = np.random.default_rng(seed)
    moments = START_US + np.cumsum(rng.exponential(every_seconds * SECOND_US, int(1200 / every_seconds))).astype(int)
    moments = np.where(rng.random(len(moments)) < 0.5, moments // SECOND_US * SECOND_US, moments)
    # A burst is what came in since up to `disorder` ago and is published at once.
    publish_us = np.repeat(np.sort(moments), size)
    event_us = publish_us - SECOND_US - rng.integers(0, duration_us(disorder), len(publish_us), endpoint=True)
    return _acknowledged(rng, publish_us, _some_rejected(rng, event_us, REJECTED))


NAMED: Mapping[str, Callable[..., Batch]] = {
    "steady": steady,
    "base down for 20 minutes": base_down,
    "both down": both_down,
    "two days read in 15 minutes": two_days_read,
    "two days published in 15 minutes": two_days_published,
    "a message every 40 seconds": sparse,
    "six minutes of silence": silence,
    "tracking stalled for 4 minutes": tracking_stalled,
    "a straggler for 10 minutes": straggler,
    "bursts that share a publish time": bursts,
}


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


def _spread(rng: np.random.Generator, per_second: float, from_minute: float, to_minute: float) -> Ints:
    """Random moments, in order."""
    count = int(per_second * 60 * (to_minute - from_minute))
    low, high = int(from_minute * MINUTE_US), int(to_minute * MINUTE_US)
    return START_US + np.sort(rng.integers(low, high, count))


def _trace(rng: np.random.Generator, event_us: Ints, disorder: timedelta, rejected: float = REJECTED) -> Batch:
    """Events that are published with a lag of a second and up to `disorder` more, any as likely as any other."""
    lag = rng.integers(0, duration_us(disorder), len(event_us), endpoint=True)
    return _acknowledged(rng, event_us + SECOND_US + lag, _some_rejected(rng, event_us, rejected))


def _some_rejected(rng: np.random.Generator, event_us: Ints, share: float) -> Ints:
    return np.where(rng.random(len(event_us)) < share, NO_EVENT_TIME, event_us)


def _acknowledged(rng: np.random.Generator, publish_us: Ints, event_us: Ints) -> Batch:
    """Tracked and landed within seconds, in no order."""
    tracked_us = publish_us + rng.integers(50_000, 4 * SECOND_US, len(publish_us))
    landed_us = publish_us + rng.integers(50_000, 12 * SECOND_US, len(publish_us))
    return Batch(publish_us, event_us, tracked_us, landed_us)


def _stalled(
    rng: np.random.Generator, messages: Batch, which: str, *, from_minute: float, minutes: float, drained_within: float
) -> Batch:
    """What would have been acknowledged while the subscription was not read is so afterwards, in no order."""
    begin, end = START_US + int(from_minute * MINUTE_US), START_US + int((from_minute + minutes) * MINUTE_US)
    times = {"tracked_us": messages.tracked_us, "landed_us": messages.landed_us}
    stalled = (times[which] >= begin) & (times[which] < end)
    drained = end + rng.integers(0, int(drained_within * MINUTE_US), len(messages))
    times[which] = np.where(stalled, drained, times[which])
    return Batch(messages.publish_us, messages.event_us, **times)

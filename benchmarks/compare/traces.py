"""The traffic: eleven traces, each with one difficulty. The same seed gives the same traces.

A hundred streams, together twenty messages a second, publish 0 to 8 s after the event. Tracking reads a message within
2 s, base within 4 s; peers read what base reads, at the same moment and in the same order.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.replay.trace import NO_EVENT_TIME, Batch
from tidemark.pipeline.watermark.histogram import Ints

START_US = to_us(datetime(2026, 11, 21, 12, tzinfo=UTC))
SECOND_US = 1_000_000
MINUTE = 60.0
STREAMS = 100
RATE = 20
JITTER = 8.0
HOUR = 3600.0
OUTAGE_US = (START_US + 5 * 60 * SECOND_US, START_US + 25 * 60 * SECOND_US)
DRAIN_US = 4 * 60 * SECOND_US
"""The time in which base reads the backlog of an outage; tracking needs a quarter of it."""

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages, in microseconds. `counted` excludes those of the source at fault. Windows that end from `live_from_us`
    on are timed. No reader runs from `stopped_us[0]` to `stopped_us[1]`."""

    title: str
    publish_us: Ints
    event_us: Ints
    tracked_us: Ints
    landed_us: Ints
    counted: npt.NDArray[np.bool_]
    live_from_us: int
    stopped_us: tuple[int, int] = (0, 0)

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """All messages in one batch; streams' names are not kept."""
        if streams:
            raise ValueError("these messages have no streams")
        yield Batch(self.publish_us, self.event_us, self.tracked_us, self.landed_us)

    def without_older_than(self, age: timedelta) -> "Traffic":
        """The traffic under `message.max_age`: an older message is rejected, and only its publish time counts."""
        too_old = self.publish_us - self.event_us > age.total_seconds() * SECOND_US
        return replace(self, event_us=np.where(too_old, NO_EVENT_TIME, self.event_us))


def traces(seed: int, minutes: float = 60) -> dict[str, Traffic]:
    """Return every trace by its name."""
    return {name: make(np.random.default_rng((seed, number)), minutes) for number, (name, make) in enumerate(MAKERS)}


def steady(rng: np.random.Generator, minutes: float) -> Traffic:
    return _made(rng, "steady", _happened(rng, 0, minutes * MINUTE))


def outage(rng: np.random.Generator, minutes: float) -> Traffic:
    """The worst order for a reader that watches event times: uniformly random, new messages among the old."""
    made = _made(rng, "down for 20 minutes, the backlog in random order", _happened(rng, 0, minutes * MINUTE))
    low, high = OUTAGE_US
    tracked, landed = (
        np.where((read >= low) & (read < high), high + rng.integers(0, within, len(read)), read)
        for read, within in ((made.tracked_us, DRAIN_US // 4), (made.landed_us, DRAIN_US))
    )
    return replace(made, tracked_us=tracked, landed_us=np.maximum(landed, tracked), stopped_us=OUTAGE_US)


def outage_in_order(rng: np.random.Generator, minutes: float) -> Traffic:
    """The mild order: by publish time to within 2 s of reading, which are 12 s of the backlog."""
    made = _made(rng, "down for 20 minutes, the backlog nearly in order", _happened(rng, 0, minutes * MINUTE))
    low, high = OUTAGE_US
    tracked, landed = (
        np.where(read >= low, np.maximum(read, high + (made.publish_us - low) // speed + jitter), read)
        for read, speed, jitter in (
            (made.tracked_us, 24, 0),
            (made.landed_us, 6, rng.integers(0, 2 * SECOND_US, len(made.publish_us))),
        )
    )
    return replace(made, tracked_us=tracked, landed_us=np.maximum(landed, tracked), stopped_us=OUTAGE_US)


def history(rng: np.random.Generator, minutes: float) -> Traffic:
    """Each second of the first 15 minutes publishes more than three minutes of two days."""
    past = 15 * MINUTE
    happened = _happened(rng, 0, minutes * MINUTE)
    made = _made(rng, "two days of history in 15 minutes, then live", happened)
    stretched = np.where(happened < past, past - (past - happened) * (48 * HOUR / past), happened)
    return replace(made, event_us=_us(stretched), live_from_us=START_US + int((past + MINUTE) * SECOND_US))


def sparse(rng: np.random.Generator, minutes: float) -> Traffic:
    count = int(minutes * MINUTE / 20)
    return _made(rng, "sparse: a message every 20 s", np.arange(count) * 20 + rng.uniform(0, 10, count))


def on_the_minute(rng: np.random.Generator, minutes: float) -> Traffic:
    """Two messages around each full minute, for three times as long: the first one published may be the newer one."""
    full = np.repeat(np.arange(1, 3 * minutes) * MINUTE, 2)
    return _made(rng, "two messages around each full minute", full + rng.uniform(-4, 4, len(full)))


def silence(rng: np.random.Generator, minutes: float) -> Traffic:
    happened = _happened(rng, 0, minutes * MINUTE)
    silent = (happened > 15 * MINUTE) & (happened < 25 * MINUTE)
    return _made(rng, "all sources are silent for 10 minutes", happened[~silent])


def buffered(rng: np.random.Generator, minutes: float) -> Traffic:
    """The sources lose their network, and publish what they kept within a minute, in order."""
    made = _made(rng, "all sources buffer for 10 minutes, then publish", _happened(rng, 0, minutes * MINUTE))
    lost, found = (START_US + int(minute * MINUTE * SECOND_US) for minute in (15, 25))
    later = np.maximum(0, found + (made.publish_us - lost) // 10 - made.publish_us)
    later_us = np.where(made.publish_us >= lost, later, 0)
    return replace(
        made,
        publish_us=made.publish_us + later_us,
        tracked_us=made.tracked_us + later_us,
        landed_us=made.landed_us + later_us,
    )


def late_stream(rng: np.random.Generator, minutes: float) -> Traffic:
    happened = _happened(rng, 0, minutes * MINUTE)
    stream = rng.integers(0, STREAMS, len(happened))
    return _made(rng, "one stream of 100 is a minute late", happened, delay=np.where(stream == 0, 60.0, 0.0))


def fast_clock(rng: np.random.Generator, minutes: float) -> Traffic:
    happened = _happened(rng, 0, minutes * MINUTE)
    fast = rng.integers(0, STREAMS, len(happened)) == 0
    made = _made(rng, "one clock of 100 is 4.5 minutes fast", happened)
    return replace(made, event_us=made.event_us + np.where(fast, 270 * SECOND_US, 0), counted=~fast)


def hostile(rng: np.random.Generator, minutes: float) -> Traffic:
    """Add a message that is an hour old every 9 s, to the second."""
    happened = _happened(rng, 0, minutes * MINUTE)
    old = np.arange(0, minutes * MINUTE, 9.0)
    made = _made(rng, "one source sends an hour-old event time every 9 s", np.concatenate([happened, old]))
    is_old = np.arange(len(made.event_us)) >= len(happened)
    late_us = np.where(is_old, made.publish_us - made.event_us, 0)  # it has no jitter
    return replace(
        made,
        publish_us=made.publish_us - late_us,
        tracked_us=made.tracked_us - late_us,
        landed_us=made.landed_us - late_us,
        event_us=made.event_us - np.where(is_old, int(HOUR * SECOND_US), 0),
        counted=~is_old,
    )


MAKERS: tuple[tuple[str, Callable[[np.random.Generator, float], Traffic]], ...] = (
    ("steady", steady),
    ("outage", outage),
    ("outage in order", outage_in_order),
    ("history", history),
    ("sparse", sparse),
    ("on the minute", on_the_minute),
    ("silence", silence),
    ("buffered", buffered),
    ("late stream", late_stream),
    ("fast clock", fast_clock),
    ("hostile", hostile),
)


def _happened(rng: np.random.Generator, begin: float, end: float) -> Seconds:
    return np.sort(rng.uniform(begin, end, int((end - begin) * RATE)))


def _made(rng: np.random.Generator, title: str, happened: Seconds, delay: Seconds | None = None) -> Traffic:
    count = len(happened)
    publish = happened + rng.uniform(0, JITTER, count) + (0.0 if delay is None else delay)
    return Traffic(
        title,
        publish_us=_us(publish),
        event_us=_us(happened),
        tracked_us=_us(publish + rng.uniform(0.2, 2, count)),
        landed_us=_us(publish + rng.uniform(0.2, 4, count)),
        counted=np.ones(count, dtype=np.bool_),
        live_from_us=START_US + int(MINUTE) * SECOND_US,
    )


def _us(moments: Seconds) -> Ints:
    return START_US + np.round(moments * SECOND_US).astype(np.int64)

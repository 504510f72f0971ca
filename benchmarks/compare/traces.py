"""The traffic: nine traces of one thing each. One seed is one trace.

A hundred streams, together twenty messages a second, publish 0 to 8 s after the event. Tracking reads a message within
2 s, base within 4 s; peers read what base reads, at the same moment and in the same order. After an outage the backlog
comes in any order, as Pub/Sub may deliver it.
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
Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Traffic:
    """Messages, in microseconds. `counted` are those of everybody but the culprit; windows that end from `live_from`
    on are timed."""

    title: str
    publish_us: Ints
    event_us: Ints
    tracked_us: Ints
    landed_us: Ints
    counted: npt.NDArray[np.bool_]
    live_from_us: int

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """All in one. The streams' names are not kept."""
        if streams:
            raise ValueError("these messages have no streams")
        yield Batch(self.publish_us, self.event_us, self.tracked_us, self.landed_us)

    def without_older_than(self, age: timedelta) -> "Traffic":
        """What `message.max_age` leaves: an older message is rejected, and only its publish time counts."""
        too_old = self.publish_us - self.event_us > age.total_seconds() * SECOND_US
        return replace(self, event_us=np.where(too_old, NO_EVENT_TIME, self.event_us))


def traces(seed: int, minutes: float = 60) -> dict[str, Traffic]:
    """Every trace by its name."""
    return {name: make(np.random.default_rng((seed, number)), minutes) for number, (name, make) in enumerate(MAKERS)}


def steady(rng: np.random.Generator, minutes: float) -> Traffic:
    return _made(rng, "steady", _happened(rng, 0, minutes * MINUTE))


def base_down(rng: np.random.Generator, minutes: float) -> Traffic:
    made = _made(rng, "base (or the peer's reader) is down for 20 minutes", _happened(rng, 0, minutes * MINUTE))
    return replace(made, landed_us=_stalled(rng, made.landed_us))


def both_down(rng: np.random.Generator, minutes: float) -> Traffic:
    made = _made(rng, "everything is down for 20 minutes", _happened(rng, 0, minutes * MINUTE))
    tracked = _stalled(rng, made.tracked_us, within=1)
    return replace(made, tracked_us=tracked, landed_us=np.maximum(_stalled(rng, made.landed_us), tracked))


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


def silence(rng: np.random.Generator, minutes: float) -> Traffic:
    happened = _happened(rng, 0, minutes * MINUTE)
    silent = (happened > 15 * MINUTE) & (happened < 25 * MINUTE)
    return _made(rng, "all sources are silent for 10 minutes", happened[~silent])


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
    """A message that is an hour old every 9 s, to the second."""
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
    ("base down", base_down),
    ("both down", both_down),
    ("history", history),
    ("sparse", sparse),
    ("silence", silence),
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


def _stalled(
    rng: np.random.Generator, read_us: Ints, *, begin: float = 5, lasts: float = 20, within: float = 4
) -> Ints:
    """What would have been read in an outage is read after it, in any order, within some minutes."""
    low, high = (START_US + int(minute * MINUTE * SECOND_US) for minute in (begin, begin + lasts))
    drained = high + rng.integers(0, int(within * MINUTE * SECOND_US), len(read_us))
    return np.where((read_us >= low) & (read_us < high), drained, read_us)


def _us(moments: Seconds) -> Ints:
    return START_US + np.round(moments * SECOND_US).astype(np.int64)

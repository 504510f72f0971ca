"""How far out of order a topic is, message by message, and which streams are to blame: two passes, memory by time.

A message's *disorder* is its publish time less that of the first message with a greater event time, or nothing if it
was published before that: the largest of all is the topic's disorder, as `docs/watermark.md` defines it. It does not
say whose clock is wrong: one clock that runs a minute fast puts everybody else a minute out of order. So each message
is also compared with the *typical* one, the median of `publish time - event time` of those that happened within
the same five seconds. (Not of those that were published then: in a history that is published in one go, they are far
apart.)

- it is *slow* by what it is behind the typical one, but at most by its disorder;
- it is *fast* by what it is ahead of the typical one, but at most by how much later than it a message with a lesser
  event time was published.

Behind and ahead of the same typical message, the disorder between two messages is at most the one's slowness and the
other's fastness together.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from pipeline.clock import duration_us
from pipeline.replay.trace import NO_EVENT_TIME, Batch, Streams, Trace
from pipeline.tuning.stream_disorder import STEP_US, Measured, StreamDisorder, StreamTable
from pipeline.tuning.tally import GROUPS, Tally, quantile_of
from pipeline.watermark.histogram import Ints

TOGETHER_US = 5_000_000
"""Messages with event times this close have one typical message."""

ENOUGH = 30
"""Messages from which their own median is taken; where fewer happened together, it is that of the whole."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds, in order, and how many messages have each; not empty."""

    seconds: tuple[float, ...]
    counts: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """The least number of seconds that this share of the messages does not exceed."""
        running = np.cumsum(self.counts)
        return self.seconds[int(np.searchsorted(running, max(1, np.ceil(share * running[-1]))))]

    def share_beyond(self, seconds: float) -> float:
        """The share of the messages that have more."""
        counts = np.array(self.counts)
        return float(counts[np.array(self.seconds) > seconds].sum() / counts.sum())


@dataclass(frozen=True, slots=True)
class Disorder:
    """What two passes tell: the whole topic, and its worst streams (none where the trace has no streams).

    `beyond_band` counts the messages with a disorder above the band, `slow_beyond_band` and `fast_beyond_band` those
    that are to blame for more than the band themselves; `slow_streams` and `fast_streams` the streams that have such.
    `slow_max_seconds` and `fast_max_seconds` are the most that a message is to blame for.
    """

    messages: int
    rejected: int
    first_publish_us: int
    last_publish_us: int
    band: timedelta
    lag: Distribution
    disorder: Distribution
    beyond_band: int
    slow_beyond_band: int
    fast_beyond_band: int
    slow_max_seconds: float
    fast_max_seconds: float
    streams: int
    slow_streams: int
    fast_streams: int
    slowest: tuple[StreamDisorder, ...]
    fastest: tuple[StreamDisorder, ...]


def disorder_of(trace: Trace, band: timedelta, worst: int = 10) -> Disorder | None:
    """Measure a trace against a band, and name its `worst` streams on either side. None without a valid message."""
    order = _Order.of(trace)
    if order is None:
        return None
    whole, streams = Tally(), StreamTable(duration_us(band))
    beyond = slow_beyond = fast_beyond = slow_most = fast_most = 0
    for batch in _valid(trace, streams=True):
        measured = order.measure(batch)
        whole.add(np.zeros(len(batch), dtype=np.int64), measured.disorder)
        beyond += int(np.count_nonzero(measured.disorder * STEP_US > duration_us(band)))
        slow_beyond += int(np.count_nonzero(measured.blame * STEP_US > duration_us(band)))
        fast_beyond += int(np.count_nonzero(-measured.blame * STEP_US > duration_us(band)))
        slow_most = max(slow_most, int(measured.blame.max()))
        fast_most = max(fast_most, int(-measured.blame.min()))
        streams.add(batch, measured)
    slowest, fastest = streams.worst(worst)
    slow_streams, fast_streams = streams.beyond_band()
    return Disorder(
        messages=order.messages,
        rejected=order.rejected,
        first_publish_us=order.first_publish_us,
        last_publish_us=order.last_publish_us,
        band=band,
        lag=_distribution(*order.lag.whole()),
        disorder=_distribution(*whole.whole()),
        beyond_band=beyond,
        slow_beyond_band=slow_beyond,
        fast_beyond_band=fast_beyond,
        slow_max_seconds=slow_most * STEP_US / 1e6,
        fast_max_seconds=fast_most * STEP_US / 1e6,
        streams=streams.seen,
        slow_streams=slow_streams,
        fast_streams=fast_streams,
        slowest=slowest,
        fastest=fastest,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Order:
    """What the first pass keeps. `step` are the publish times, in steps, at which anything was published, in order;
    `reached` is the greatest event time published by then, `yet_to_come` the least published since."""

    messages: int
    rejected: int
    first_publish_us: int
    last_publish_us: int
    step: Ints
    reached: Ints
    yet_to_come: Ints
    lag: Tally
    together: Ints
    typical: Ints

    @classmethod
    def of(cls, trace: Trace) -> "_Order | None":
        messages = read = 0
        first, last = np.iinfo(np.int64).max, np.iinfo(np.int64).min
        extremes, lag = _Extremes(), Tally()
        for whole in trace.batches():
            read += len(whole)
            batch = _only_valid(whole)
            if not len(batch):
                continue
            messages += len(batch)
            first, last = min(first, int(batch.publish_us.min())), max(last, int(batch.publish_us.max()))
            extremes.add(batch.publish_us // STEP_US, batch.event_us)
            lag.add(_together(batch.event_us), (batch.publish_us - batch.event_us) // STEP_US)
        if not messages:
            return None
        step, least, greatest = extremes.merged()
        together, typical = _typical(lag)
        return cls(
            messages=messages,
            rejected=read - messages,
            first_publish_us=int(first),
            last_publish_us=int(last),
            step=step,
            reached=np.maximum.accumulate(greatest),
            yet_to_come=np.minimum.accumulate(least[::-1])[::-1],
            lag=lag,
            together=together,
            typical=typical,
        )

    def measure(self, batch: Batch) -> Measured:
        """Judge valid messages of the same trace."""
        step = batch.publish_us // STEP_US
        overtaken = np.searchsorted(self.reached, batch.event_us, side="right")
        overtaking = np.searchsorted(self.yet_to_come, batch.event_us, side="left") - 1
        last = len(self.step) - 1
        disorder = np.where(overtaken > last, 0, step - self.step[np.minimum(overtaken, last)])
        ahead = np.where(overtaking < 0, 0, self.step[np.maximum(overtaking, 0)] - step)
        disorder, ahead = np.maximum(disorder, 0), np.maximum(ahead, 0)
        place = np.searchsorted(self.together, _together(batch.event_us))
        behind = (batch.publish_us - batch.event_us) // STEP_US - self.typical[place]
        blame = np.where(behind > 0, np.minimum(disorder, behind), -np.minimum(ahead, -behind))
        return Measured(disorder, blame, behind)


class _Extremes:
    """The least and the greatest event time by step of publish time."""

    def __init__(self) -> None:
        empty = np.empty(0, dtype=np.int64)
        self._parts = [(empty, empty, empty)]
        self._waiting = 0

    def add(self, steps: Ints, event_us: Ints) -> None:
        self._parts.append(_extremes(steps, event_us, event_us))
        self._waiting += len(self._parts[-1][0])
        if self._waiting > max(100_000, len(self._parts[0][0])):
            self.merged()

    def merged(self) -> tuple[Ints, Ints, Ints]:
        """Steps in order, each once, with the least and the greatest event time."""
        steps, least, greatest = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        self._parts, self._waiting = [_extremes(steps, least, greatest)], 0
        return self._parts[0]


def _extremes(steps: Ints, least: Ints, greatest: Ints) -> tuple[Ints, Ints, Ints]:
    order = np.argsort(steps, kind="stable")
    ordered = steps[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))
    return (
        ordered[starts],
        np.minimum.reduceat(least[order], starts),
        np.maximum.reduceat(greatest[order], starts),
    )


def _together(event_us: Ints) -> Ints:
    """The number of the five seconds in which each event happened; what is too far away is in the outermost."""
    numbers: Ints = np.clip(event_us // TOGETHER_US, -GROUPS, GROUPS - 1)
    return numbers


def _typical(lag: Tally) -> tuple[Ints, Ints]:
    """Each five seconds that occur, and the median of `publish time - event time` by which they are judged."""
    together, median = lag.quantiles(0.5)
    groups, _, counts = lag.cells()
    messages = np.add.reduceat(counts, np.searchsorted(groups, together))
    return together, np.where(messages >= ENOUGH, median, quantile_of(*lag.whole(), 0.5))


def _valid(trace: Trace, *, streams: bool = False) -> Iterator[Batch]:
    for batch in trace.batches(streams=streams):
        valid = _only_valid(batch)
        if len(valid):
            yield valid


def _only_valid(batch: Batch) -> Batch:
    valid = batch.event_us != NO_EVENT_TIME
    if valid.all():
        return batch
    streams = batch.streams
    return Batch(
        batch.publish_us[valid],
        batch.event_us[valid],
        batch.tracked_us[valid],
        batch.landed_us[valid],
        None if streams is None else Streams(streams.codes[valid], streams.names),
    )


def _distribution(values: Ints, counts: Ints) -> Distribution:
    return Distribution(tuple((values * STEP_US / 1e6).tolist()), tuple(counts.tolist()))

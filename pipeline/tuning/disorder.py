"""Disorder of a topic, and the messages and streams to blame for it.

A message's *disorder* is its publish time less that of the first message with a greater event time, or zero if it was
published before that one. Each message is also compared with the *typical* one, the median of `publish time - event
time` over the messages that happened within the same five seconds (of event time, because a history that is published
all at once has events that are far apart):

- A message is *slow* by how far it is behind the typical one, but by no more than its disorder.
- A message is *fast* by how far it is ahead of the typical one, but by no more than how much later a message with a
  lesser event time was published.

Two passes over the messages measure all this; memory follows the time that they span, not their number.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

import numpy as np

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.replay.totals import Tally, Totals
from tidemark.pipeline.replay.trace import Batch, Trace
from tidemark.pipeline.tuning.stream_disorder import SIDES, STEP_US, Blame, Side, StreamTable
from tidemark.pipeline.watermark.histogram import Ints

TOGETHER_US = 5_000_000
"""Messages with event times in the same five seconds share a typical message."""

ENOUGH = 30
"""Fewest messages for a median. With fewer, the median of the whole trace is used."""


MAX_LAGS = tuple(timedelta(seconds=60 * minutes) for minutes in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 10080))
"""Values of `max_lag` to choose from: round numbers, from a minute to a week."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """Seconds in ascending order, and the number of messages with each; not empty."""

    seconds: tuple[float, ...]
    counts: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """Return the least number of seconds that this share of the messages does not exceed."""
        return quantile(self.seconds, share, self.counts)


@dataclass(frozen=True, slots=True)
class LagBound:
    """A `max_lag`, and the share of the messages that lag more."""

    max_lag: timedelta
    passed_over_share: float


def lag_bound(lag: Distribution, band: timedelta, target: float) -> LagBound | None:
    """Find the least bound, at least twice the band, that at most a share `target` of the messages exceed."""
    total = sum(lag.counts)
    for bound in MAX_LAGS:
        beyond = sum(
            count for seconds, count in zip(lag.seconds, lag.counts, strict=True) if seconds > bound.total_seconds()
        )
        if bound >= 2 * band and beyond <= target * total:
            return LagBound(bound, beyond / total)
    return None


@dataclass(frozen=True, slots=True)
class Disorder:
    """Disorder of the whole topic, and the blame on either side. `beyond_band` counts the messages with a disorder
    above the band."""

    messages: int
    rejected: int
    first_publish_us: int
    last_publish_us: int
    band: timedelta
    lag: Distribution
    disorder: Distribution
    beyond_band: int
    streams: int
    sides: Mapping[Side, Blame]


def disorder_of(trace: Trace, band: timedelta, worst: int = 10) -> Disorder | None:
    """Measure a trace against a band, and name its `worst` streams on either side. None without a valid message."""
    order = _Order(trace)
    if not order.messages:
        return None
    whole, streams = Tally(), StreamTable(duration_us(band))
    for batch in map(Batch.valid, trace.batches(streams=True)):
        disorder, blame, behind = order.measure(batch)
        whole.add(np.zeros_like(disorder), disorder)
        streams.add(batch, disorder, blame, behind)
    return Disorder(
        messages=order.messages,
        rejected=order.rejected,
        first_publish_us=order.first_publish_us,
        last_publish_us=order.last_publish_us,
        band=band,
        lag=_distribution(*order.lag.whole()),
        disorder=_distribution(*whole.whole()),
        beyond_band=streams.beyond_band(),
        streams=len(streams),
        sides={side: streams.blame(side, worst) for side in SIDES},
    )


class _Order:
    """The first pass, and its results. `step` has the publish times, in steps and in order, at which anything was
    published; `reached` the greatest event time published by then, `yet_to_come` the least published since. `typical`
    has the typical lag of each five seconds in `together`."""

    def __init__(self, trace: Trace) -> None:
        self.messages = self.rejected = 0
        self.first_publish_us, self.last_publish_us = int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min)
        self.lag = Tally()
        extremes = Totals(1, (np.minimum, np.maximum))
        for whole in trace.batches():
            batch = whole.valid()
            self.messages += len(batch)
            self.rejected += len(whole) - len(batch)
            self.first_publish_us = int(batch.publish_us.min(initial=self.first_publish_us))
            self.last_publish_us = int(batch.publish_us.max(initial=self.last_publish_us))
            extremes.add(batch.publish_us // STEP_US, batch.event_us, batch.event_us)
            self.lag.add(batch.event_us // TOGETHER_US, (batch.publish_us - batch.event_us) // STEP_US)
        self.step, least, greatest = extremes.rows()
        self.reached = np.maximum.accumulate(greatest)
        self.yet_to_come = np.minimum.accumulate(least[::-1])[::-1]
        self.together, self.typical = _typical(self.lag)

    def measure(self, batch: Batch) -> tuple[Ints, Ints, Ints]:
        """Measure valid messages of the same trace, in steps: disorder; blame, positive if slow, negative if fast; and
        the distance behind the typical message, negative if ahead."""
        step = batch.publish_us // STEP_US
        overtaken = np.searchsorted(self.reached, batch.event_us, side="right")
        overtaking = np.searchsorted(self.yet_to_come, batch.event_us, side="left") - 1
        last = len(self.step) - 1
        disorder = np.where(overtaken > last, 0, step - self.step[np.minimum(overtaken, last)])
        ahead = np.where(overtaking < 0, 0, self.step[np.maximum(overtaking, 0)] - step)
        disorder, ahead = np.maximum(disorder, 0), np.maximum(ahead, 0)
        typical = self.typical[np.searchsorted(self.together, batch.event_us // TOGETHER_US)]
        behind = (batch.publish_us - batch.event_us) // STEP_US - typical
        blame = np.where(behind > 0, np.minimum(disorder, behind), -np.minimum(ahead, -behind))
        return disorder, blame, behind


def _typical(lag: Tally) -> tuple[Ints, Ints]:
    """Return each five seconds that occur, and the median of `publish time - event time` to compare with."""
    values, counts = lag.whole()
    overall = quantile(values, 0.5, counts) if len(values) else 0
    typical = {
        group: quantile(values, 0.5, counts) if counts.sum() >= ENOUGH else overall
        for group, values, counts in lag.groups()
    }
    return np.array([*typical], dtype=np.int64), np.array([*typical.values()], dtype=np.int64)


def _distribution(values: Ints, counts: Ints) -> Distribution:
    return Distribution(tuple((values * STEP_US / 1e6).tolist()), tuple(counts.tolist()))

"""The disorder of a topic, and the messages and streams that cause it.

- The *disorder* of a message is the time from the first publication of a greater event time to the publication of the
  message. It is zero if no greater event time was published earlier.
- A *typical* message has the median lag of all messages with event times in the same five seconds.
- A message is *slow* by its distance behind the typical message or by its disorder, whichever is less.
- A message is *fast* by its distance ahead of the typical message or by the time until the last publication of a
  smaller event time, whichever is less.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.replay.trace import Batch, Totals, Trace
from tidemark.pipeline.watermark.histogram import Ints, grouped

STEP_US = 100_000
"""Unit in which durations are measured, in microseconds. Durations are therefore accurate to a tenth of a second."""

STEPS_IN_A_SECOND = 1_000_000 // STEP_US

NO_STREAM = -1

COUNTED = ("messages", "beyond_band", "slow_beyond_band", "fast_beyond_band")
GREATEST = ("disorder_max", "slow_max", "fast_max")
"""The figures that are kept for each stream: COUNTED are sums over the stream's messages, and GREATEST are maxima."""

Side = Literal["slow", "fast"]
SIDES: tuple[Side, ...] = ("slow", "fast")


@dataclass(frozen=True, slots=True)
class StreamDisorder:
    """The disorder of one stream.

    `beyond_band` is the number of messages with a disorder above the band. `slow_beyond_band` and `fast_beyond_band`
    are the numbers of messages that are slow or fast by more than the band. `offset_seconds` is the median distance of
    the stream's messages behind the typical message; it is negative for a fast clock.
    """

    stream: str
    messages: int
    offset_seconds: float
    disorder_p50_seconds: float
    disorder_p99_seconds: float
    disorder_max_seconds: float
    beyond_band: int
    slow_p99_seconds: float
    slow_max_seconds: float
    slow_beyond_band: int
    fast_p99_seconds: float
    fast_max_seconds: float
    fast_beyond_band: int

    def blame(self, side: Side) -> tuple[int, float, float]:
        """Return the figures of one side, slow or fast: the number of messages beyond the band, the 99th percentile
        in seconds, and the maximum in seconds."""
        beyond, p99, most = (
            getattr(self, f"{side}_{figure}") for figure in ("beyond_band", "p99_seconds", "max_seconds")
        )
        return beyond, p99, most


@dataclass(frozen=True, slots=True)
class Blame:
    """A summary of the slow messages of a topic, or of the fast ones.

    `beyond_band` is the number of messages that are slow (or fast) by more than the band, and `streams` the number of
    streams with such messages. `max_seconds` says how slow the slowest (or how fast the fastest) message is. `worst`
    are the worst of the streams with slow (or fast) messages."""

    beyond_band: int
    max_seconds: float
    streams: int
    worst: tuple[StreamDisorder, ...]


class StreamTable:
    """Collects the measurements of all messages per stream: sums, maxima, and distributions in whole seconds."""

    def __init__(self, band_us: int) -> None:
        self._band_us = band_us
        self._codes: dict[str, int] = {}
        self._totals = Totals(1, [np.add] * len(COUNTED) + [np.maximum] * len(GREATEST))
        self._disorder, self._blame, self._behind = Totals(2), Totals(2), Totals(2)

    def add(self, batch: Batch, disorder: Ints, blame: Ints, behind: Ints) -> None:
        """Add the messages of a batch. `disorder`, `blame` and `behind` are the results of `_Order.measure` for these
        messages. A message without a stream counts for NO_STREAM."""
        codes = self._codes_of(batch)
        slow, fast = np.maximum(blame, 0), np.maximum(-blame, 0)
        judged = (disorder, slow, fast)
        self._totals.add(codes, np.ones_like(codes), *map(self._beyond_band, judged), *judged)
        for totals, steps in ((self._disorder, disorder), (self._blame, blame), (self._behind, behind)):
            totals.count(codes, (steps + STEPS_IN_A_SECOND // 2) // STEPS_IN_A_SECOND)

    def __len__(self) -> int:
        return int(self._streams().num_rows)

    def beyond_band(self) -> int:
        """Return the number of messages with a disorder above the band, including messages without a stream."""
        return int(pc.sum(self._rows()["beyond_band"]).as_py())

    def blame(self, side: Side, count: int) -> Blame:
        """Summarize the slow messages, or the fast ones, and describe the `count` worst streams. These are the streams
        with the most messages beyond the band. Of streams with equally many, those with the slowest or fastest message
        come first."""
        whole, streams, names = self._rows(), self._streams(), list(self._codes)
        beyond, most = f"{side}_beyond_band", f"{side}_max"
        order = [(beyond, "descending"), (most, "descending"), ("stream", "ascending")]
        worst = streams.filter(pc.field(most) > 0).sort_by(order).slice(0, count).to_pylist()
        return Blame(
            beyond_band=pc.sum(whole[beyond]).as_py(),
            max_seconds=_seconds(pc.max(whole[most]).as_py()),
            streams=streams.filter(pc.field(beyond) > 0).num_rows,
            worst=tuple(self._described(names[row["stream"]], row) for row in worst),
        )

    def _rows(self) -> pa.Table:
        return pa.table(self._totals.rows(), ["stream", *COUNTED, *GREATEST])

    def _streams(self) -> pa.Table:
        return self._rows().filter(pc.field("stream") != NO_STREAM)

    def _described(self, name: str, row: dict[str, Any]) -> StreamDisorder:
        def at(totals: Totals, share: float) -> float:
            codes, seconds, counts = totals.rows()
            own = codes == row["stream"]
            return float(quantile(seconds[own], share, counts[own]))

        greatest: dict[str, Any] = {f"{figure}_seconds": _seconds(row[figure]) for figure in GREATEST}
        return StreamDisorder(
            stream=name,
            offset_seconds=at(self._behind, 0.5),
            disorder_p50_seconds=at(self._disorder, 0.5),
            disorder_p99_seconds=at(self._disorder, 0.99),
            slow_p99_seconds=max(0.0, at(self._blame, 0.99)),
            fast_p99_seconds=max(0.0, -at(self._blame, 0.01)),
            **{figure: row[figure] for figure in COUNTED},
            **greatest,
        )

    def _codes_of(self, batch: Batch) -> Ints:
        """Return each message's stream as a number. The number of a stream is the same in all batches."""
        if batch.streams is None:
            return np.full(len(batch), NO_STREAM, dtype=np.int64)
        streams = batch.streams.dictionary_encode()
        codes: Ints = streams.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        own = [self._codes.setdefault(name, len(self._codes)) for name in streams.dictionary.to_pylist()]
        return np.array([*own, NO_STREAM], dtype=np.int64)[codes]

    def _beyond_band(self, steps: Ints) -> Ints:
        return (steps * STEP_US > self._band_us).astype(np.int64)


def _seconds(steps: int) -> float:
    return steps * STEP_US / 1e6


TOGETHER_US = 5_000_000
"""Length, in microseconds, of a range of event time. All messages of a range are compared with the same typical
message."""

ENOUGH = 30
"""Minimum number of messages for the median lag of a range of five seconds. With fewer messages, the median lag of the
whole trace is used."""


MAX_LAGS = tuple(timedelta(seconds=60 * minutes) for minutes in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 10080))
"""The values of `max_lag` that a report may recommend: round numbers, from a minute to a week."""


@dataclass(frozen=True, slots=True)
class Distribution:
    """A distribution of messages over durations: `counts[i]` messages have the duration `seconds[i]`. `seconds` is
    ascending and not empty."""

    seconds: tuple[float, ...]
    counts: tuple[int, ...]

    def quantile(self, share: float) -> float:
        """Return a quantile in seconds: the smallest duration such that at least the fraction `share` of the
        messages are at or below it."""
        return quantile(self.seconds, share, self.counts)


@dataclass(frozen=True, slots=True)
class LagBound:
    """A value for `max_lag`, and the fraction of messages that lag more. The watermark would not wait for these."""

    max_lag: timedelta
    passed_over_share: float


def lag_bound(lag: Distribution, band: timedelta, target: float) -> LagBound | None:
    """Recommend a `max_lag` such that at most the fraction `target` of the messages have a larger lag. The
    recommendation is the smallest such value in MAX_LAGS that is at least twice the band. Return None if there is
    none."""
    total = sum(lag.counts)
    for bound in MAX_LAGS:
        beyond = sum(lag.counts[bisect_right(lag.seconds, bound.total_seconds()) :])
        if bound >= 2 * band and beyond <= target * total:
            return LagBound(bound, beyond / total)
    return None


@dataclass(frozen=True, slots=True)
class Disorder:
    """The disorder of a whole topic, and its slow and fast messages. `beyond_band` is the number of messages with a
    disorder above the band."""

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
    """Measure the disorder of a trace, compared with a band. Find its slowest and its fastest streams, at most `worst`
    of each. Return None if no message is valid.

    Reads the messages twice. Memory depends on the time that the messages span and on the number of streams, not on the
    number of messages.
    """
    order = _Order(trace)
    if not order.messages:
        return None
    whole, streams = Totals(1), StreamTable(duration_us(band))
    for batch in map(Batch.valid, trace.batches(streams=True)):
        disorder, blame, behind = order.measure(batch)
        whole.count(disorder)
        streams.add(batch, disorder, blame, behind)
    return Disorder(
        messages=order.messages,
        rejected=order.rejected,
        first_publish_us=order.first_publish_us,
        last_publish_us=order.last_publish_us,
        band=band,
        lag=_distribution(*order.lags),
        disorder=_distribution(*whole.rows()),
        beyond_band=streams.beyond_band(),
        streams=len(streams),
        sides={side: streams.blame(side, worst) for side in SIDES},
    )


class _Order:
    """The results of the first pass over the messages, which `measure` needs in the second pass.

    `step`: the distinct publish times, in units of STEP_US, in ascending order.
    `reached`: for each step, the greatest event time published up to this step.
    `yet_to_come`: for each step, the smallest event time published from this step on.
    `together`: the ranges of event time that have messages, in ascending order, as multiples of TOGETHER_US.
    `typical`: the typical lag in each of these ranges, in units of STEP_US.
    `lags`: the distinct lags of all messages, in units of STEP_US, and how many messages have each.
    """

    def __init__(self, trace: Trace) -> None:
        self.messages = self.rejected = 0
        self.first_publish_us, self.last_publish_us = int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).min)
        lag, extremes = Totals(2), Totals(1, (np.minimum, np.maximum))
        for whole in trace.batches():
            batch = whole.valid()
            self.messages += len(batch)
            self.rejected += len(whole) - len(batch)
            self.first_publish_us = int(batch.publish_us.min(initial=self.first_publish_us))
            self.last_publish_us = int(batch.publish_us.max(initial=self.last_publish_us))
            extremes.add(batch.publish_us // STEP_US, batch.event_us, batch.event_us)
            lag.count(batch.event_us // TOGETHER_US, (batch.publish_us - batch.event_us) // STEP_US)
        self.step, least, greatest = extremes.rows()
        self.reached = np.maximum.accumulate(greatest)
        self.yet_to_come = np.minimum.accumulate(least[::-1])[::-1]
        self.lags = grouped(lag.rows()[1:], [np.add])
        self.together, self.typical = _typical(lag, self.lags)

    def measure(self, batch: Batch) -> tuple[Ints, Ints, Ints]:
        """Measure each message of a batch that has no rejected messages. Return three arrays, in units of STEP_US:

        - the disorder of each message
        - its slowness, as this module's docstring defines it (negative: the message is fast)
        - its distance behind the typical message (negative: ahead)
        """
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


def _typical(lag: Totals, lags: Sequence[Ints]) -> tuple[Ints, Ints]:
    """Return the ranges of event time that have messages, each as its start divided by TOGETHER_US, and the typical lag
    of each range in units of STEP_US."""
    overall = quantile(lags[0], 0.5, lags[1]) if len(lags[0]) else 0
    typical = {
        group: quantile(values, 0.5, counts) if counts.sum() >= ENOUGH else overall
        for group, (values, counts) in lag.groups()
    }
    return np.array([*typical], dtype=np.int64), np.array([*typical.values()], dtype=np.int64)


def _distribution(values: Ints, counts: Ints) -> Distribution:
    return Distribution(tuple((values * STEP_US / 1e6).tolist()), tuple(counts.tolist()))

"""Generates the messages of a synthetic source as numpy rows, which depend only on the source and a range of event
time.

Each stream has one heartbeat per period. A row says when its message is published, and what it contains; `compose`
creates the message.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from tidemark.local.demo.shapes.json_shapes import JsonObject
from tidemark.local.demo.shapes.shape import REASONS, Beat, Message, Shape
from tidemark.pipeline.clock import duration_us, format_duration, iso, to_us
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.errors import InvalidSettings

HEARTBEAT, DUPLICATE, FIRST_BROKEN = 0, 1, 2
KINDS = ("heartbeat", "duplicate", *(reason.value for reason in REASONS))
"""The kinds of messages. A row's `kind` is an index into this tuple."""

LEAST_BROKEN = 2 * len(REASONS)
"""Minimum number of broken messages if there are any: one for each of the two variants of each reason."""

RFC_3339_SHARE = 0.001
NULL_TEMPERATURE_SHARE = 0.002
TEXT_TEMPERATURE_SHARE = 0.001
WARN_SHARE = 0.02
NO_STATUS_SHARE = 0.002
"""The share of heartbeats that have no status."""

NUMBER, NULL, TEXT = 0, 1, 2
STATUSES = ("ok", "warn", None)

MOST_STREAMS = 10_000_000
"""Maximum number of streams of a source. A piece has a row for each, in memory."""

FAR_FUTURE_MS = duration_us(timedelta(days=3650)) // 1000
DAY_MS = duration_us(timedelta(days=1)) // 1000
ROWS_AT_LEAST = 10_000
"""Number of generated rows after which `messages` yields a piece, at the end of a period."""

ROW = np.dtype(
    [
        ("publish_us", np.int64),  # planned publication time
        ("event_ms", np.int64),
        ("stream", np.int32),
        ("sequence", np.int32),  # the number of the beat within its stream
        ("kind", np.uint8),
        ("variant", np.uint8),  # of a broken message
        ("rfc_3339", np.bool_),  # how its event time is written
        ("status", np.uint8),
        ("temperature_form", np.uint8),
        ("temperature", np.float64),
    ]
)
"""A row describes one message. Times are counted from the epoch, in the unit at the end of the field's name."""

Rows = NDArray[np.void]


JSON_OBJECT = JsonObject()


@dataclass(frozen=True, slots=True)
class SyntheticSource:
    """A synthetic source. Shares are from 0 to 1, and durations and the seed are not negative. The resolution of
    durations is a millisecond.

    - A stream has a heartbeat every `period`, give or take `event_jitter`. A heartbeat is published `lag` plus at most
      `jitter` after its event time. A straggler is published another `straggler_delay` later. Without stragglers and
      late copies, the disorder is at most `jitter`.
    - A duplicate is a second copy of a message. A share `duplicate_delay_share` of the duplicates is published
      `duplicate_delay` later than the original, the others immediately after it.
    - Broken messages are added evenly over time, with each reason of the shape in turn.
    - A share `silent` of the heartbeats is not published.

    Raises InvalidSettings if the period is too short for the jitter of event times.
    """

    streams: int = 10_000
    period: timedelta = timedelta(seconds=30)
    jitter: timedelta = timedelta(seconds=3)
    event_jitter: timedelta = timedelta(milliseconds=200)
    lag: timedelta = timedelta(0)
    duplicates: float = 0.01
    duplicate_delay_share: float = 0.5
    duplicate_delay: timedelta = timedelta(seconds=60)
    broken: float = 0.0001
    stragglers: float = 0.0
    straggler_delay: timedelta = timedelta(seconds=60)
    silent: float = 0.001
    seed: int = 20_260_101
    shape: Shape = JSON_OBJECT

    def __post_init__(self) -> None:
        if self.period <= (least := 2 * self.event_jitter):
            raise InvalidSettings(f"period = {format_duration(self.period)}: it must exceed {format_duration(least)}")


def messages(
    source: SyntheticSource, start: datetime, end: datetime, rows_at_least: int = ROWS_AT_LEAST
) -> Iterator[Rows]:
    """Yield the messages for `[start, end)` in publication order, in pieces. Broken ones may have times outside it.

    The rows do not depend on how they are cut into pieces. A piece ends with a period, once `rows_at_least` rows were
    generated since the last piece. Only one piece is in memory, plus the delayed messages that belong to later pieces.
    """
    plan = _Plan(source, start, end)
    waiting, gathered = [np.empty(0, ROW)], 0
    for period in range(plan.periods):
        waiting += [plan.beats(period), plan.broken(period)]
        gathered += sum(len(rows) for rows in waiting[-2:])
        last = period == plan.periods - 1
        if gathered < rows_at_least and not last:
            continue
        rows = np.concatenate(waiting)
        rows = rows[np.argsort(rows["publish_us"], kind="stable")]  # stable: an original stays before its copy
        cut = len(rows) if last else int(np.searchsorted(rows["publish_us"], plan.earliest_publish_us(period + 1)))
        yield rows[:cut]
        waiting, gathered = [rows[cut:]], 0


class _Plan:
    """Computes the rows of the range `[start, end)`, one period at a time. Period n has the event times from
    `start + n * period` to `start + (n + 1) * period`."""

    def __init__(self, source: SyntheticSource, start: datetime, end: datetime) -> None:
        if end <= start:
            raise InvalidSettings(f"nothing to publish: the end {iso(end)} must be after the start {iso(start)}")
        self._source = source
        self._start_ms, self._end_ms = to_us(start) // 1000, to_us(end) // 1000
        self._length_ms = max(1, self._end_ms - self._start_ms)
        self._period_ms = duration_us(source.period) // 1000
        self._event_jitter_ms = duration_us(source.event_jitter) // 1000
        self.periods = -(-self._length_ms // self._period_ms)
        nominal = source.streams * self._length_ms / self._period_ms
        self.broken_total = max(LEAST_BROKEN, round(source.broken * nominal)) if source.broken else 0
        # Whatever its jitter, a beat stays within its period: its sequence number gives the period.
        inside = (self._event_jitter_ms, self._period_ms - self._event_jitter_ms)
        self._phase_ms = self._random(0).integers(*inside, source.streams)

    def _random(self, number: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self._source.seed, spawn_key=(number,)))

    def earliest_publish_us(self, period: int) -> int:
        """Return a lower bound for the publication times in this and all later periods."""
        return (self._start_ms + period * self._period_ms) * 1000 + duration_us(self._source.lag)

    def beats(self, period: int) -> Rows:
        """Return the period's heartbeats and their copies. An original comes before its copy."""
        source, random, count = self._source, self._random(2 * period + 1), self._source.streams
        rows = np.zeros(count, ROW)
        jitter = random.integers(-self._event_jitter_ms, self._event_jitter_ms + 1, count)
        rows["event_ms"] = self._start_ms + period * self._period_ms + self._phase_ms + jitter
        rows["publish_us"] = self._publish_us(rows["event_ms"], random)
        rows["publish_us"] += (random.random(count) < source.stragglers) * duration_us(source.straggler_delay)
        rows["stream"] = np.arange(count)
        rows["sequence"] = period
        rows["rfc_3339"] = random.random(count) < RFC_3339_SHARE
        _measure(rows, random)
        silent = random.random(count) < source.silent
        copied = random.random(count) < source.duplicates
        late = random.random(count) < source.duplicate_delay_share
        kept = ~silent & (rows["event_ms"] < self._end_ms)
        copies = rows[kept & copied]
        copies["kind"] = DUPLICATE
        copies["publish_us"] += late[kept & copied] * duration_us(source.duplicate_delay)
        return np.concatenate([rows[kept], copies])

    def broken(self, period: int) -> Rows:
        """Return the period's broken messages. They are spread evenly over the run: of n broken messages, number j is
        at the fraction `(j + 1/2) / n`. The reasons take turns."""
        low = self._start_ms + period * self._period_ms
        high = min(low + self._period_ms, self._end_ms)
        number = np.arange(self._broken_before(low), self._broken_before(high), dtype=np.int64)
        rows = np.zeros(len(number), ROW)
        if not len(number):
            return rows
        random = self._random(2 * period + 2)
        moment = self._start_ms + (2 * number + 1) * self._length_ms // (2 * self.broken_total)
        reasons = self._source.shape.reasons
        kind = np.array([REASONS.index(reason) for reason in reasons])[number % len(reasons)]
        rows["kind"] = FIRST_BROKEN + kind
        rows["variant"] = number // len(reasons) % 2
        rows["sequence"] = number % np.iinfo(np.int32).max
        rows["stream"] = random.integers(0, self._source.streams, len(number))
        rows["publish_us"] = self._publish_us(moment, random)
        rows["event_ms"] = np.where(
            kind == REASONS.index(RejectionReason.IN_THE_FUTURE), moment + FAR_FUTURE_MS, moment
        )
        before = kind == REASONS.index(RejectionReason.BEFORE_FIRST_WINDOW)  # the last day before 1970
        rows["event_ms"] = np.where(before, -1 - moment % DAY_MS, rows["event_ms"])
        _measure(rows, random)
        return rows

    def _broken_before(self, moment_ms: int) -> int:
        if not self.broken_total:
            return 0
        passed = moment_ms - self._start_ms
        return max(0, -((self._length_ms - 2 * self.broken_total * passed) // (2 * self._length_ms)))

    def _publish_us(self, event_ms: NDArray[np.int64], random: np.random.Generator) -> NDArray[np.int64]:
        delay: NDArray[np.int64] = random.integers(0, duration_us(self._source.jitter), len(event_ms), endpoint=True)
        return event_ms * 1000 + duration_us(self._source.lag) + delay


def _measure(rows: Rows, random: np.random.Generator) -> None:
    """Fill in a status, and a temperature that follows the time of day and is sometimes null or text."""
    count = len(rows)
    of_the_day = 2 * np.pi * ((rows["event_ms"] % DAY_MS) / DAY_MS + rows["stream"] % 97 / 97)
    rows["temperature"] = np.round(20 + 8 * np.sin(of_the_day) + random.normal(0, 0.3, count), 2)
    chance = random.random(count)
    rows["temperature_form"] = np.select(
        [chance < NULL_TEMPERATURE_SHARE, chance < NULL_TEMPERATURE_SHARE + TEXT_TEMPERATURE_SHARE],
        [NULL, TEXT],
        NUMBER,
    )
    chance = random.random(count)
    rows["status"] = np.select([chance < WARN_SHARE, chance < WARN_SHARE + NO_STATUS_SHARE], [1, 2], 0)


def compose(source: SyntheticSource, rows: Rows) -> list[Message]:
    """Return the messages of these rows in the source's shape, in order."""
    return source.shape.messages([source.shape.expressible(beat) for beat in _beats(rows)])


def _beats(rows: Rows) -> Iterator[Beat]:
    for _, event_ms, stream, sequence, kind, variant, rfc_3339, status, form, temperature in rows.tolist():
        broken = REASONS[kind - FIRST_BROKEN] if kind >= FIRST_BROKEN else None
        yield Beat(
            event_ms,
            f"stream-{stream:05d}",
            f"{stream}-{event_ms}" if broken is None else f"{stream}-{event_ms}-broken",
            sequence,
            temperature if form == NUMBER else None if form == NULL else str(temperature),
            STATUSES[status],
            KINDS[kind],
            rfc_3339,
            broken,
            variant,
        )

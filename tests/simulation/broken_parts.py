"""The broken parts that are planted: each says by its name what it does wrong."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from pipeline.errors import ObjectExists, ReadingUnavailable
from pipeline.lake import tracking_log
from pipeline.lake.log_packing import LogPacking
from pipeline.lake.tracking_log import TrackingLog, entry_name
from pipeline.pubsub.subscription import Acknowledged, PulledBatch
from pipeline.ticks.landing import land
from pipeline.ticks.tracking import track
from pipeline.watermark import estimator, readings
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.histogram import Cell, Histogram
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import EffectiveReading, Reading
from pipeline.watermark.standing import Compacted, Decided, Standing
from pipeline.windows import Window
from tests.simulation.lake import Row
from tests.simulation.micro_batch import Computed, Diff, MicroBatch, rows_of
from tests.simulation.plan import WINDOWING
from tests.watermark.builders import LONG_AGO

# The order of a tick


class Early:
    """A subscription whose batches are acknowledged before anything is done with them."""

    def __init__(self, subscription: Any) -> None:
        self._subscription = subscription
        self.path, self.pull = subscription.path, subscription.pull

    @contextmanager
    def leased(self, batch: PulledBatch) -> Iterator[None]:
        self._subscription.acknowledge(batch)
        yield

    def acknowledge(self, _batch: PulledBatch) -> Acknowledged:
        return Acknowledged()


class Late:
    """A subscription whose batches are acknowledged when the tick has read T."""

    def __init__(self, subscription: Any, backlog: Any) -> None:
        self._subscription, self._backlog = subscription, backlog
        self.path, self.pull, self.leased = subscription.path, subscription.pull, subscription.leased
        self._pulled: list[PulledBatch] = []

    def acknowledge(self, batch: PulledBatch) -> Acknowledged:
        self._pulled.append(batch)
        return Acknowledged()

    def read(self) -> Reading:
        try:
            return self._backlog.read()  # type: ignore[no-any-return]
        finally:
            for batch in self._pulled:
                self._subscription.acknowledge(batch)


class Remembered:
    """A backlog that was read when this was made."""

    def __init__(self, backlog: Any) -> None:
        self._problem: ReadingUnavailable | None = None
        try:
            self._reading = backlog.read()
        except ReadingUnavailable as problem:
            self._problem = problem

    def read(self) -> Reading:
        if self._problem is not None:
            raise self._problem
        return self._reading  # type: ignore[no-any-return]


def track_acknowledging_first(subscription: Any, **others: Any) -> Any:
    return track(Early(subscription), **others)  # type: ignore[arg-type]


def land_acknowledging_first(subscription: Any, **others: Any) -> Any:
    return land(Early(subscription), **others)  # type: ignore[arg-type]


def track_reading_before_acknowledging(subscription: Any, *, tracking_backlog: Any, **others: Any) -> Any:
    late = Late(subscription, tracking_backlog)
    return track(late, tracking_backlog=late, **others)


def track_reading_before_pulling(subscription: Any, *, tracking_backlog: Any, base_backlog: Any, **others: Any) -> Any:
    tracking, base = Remembered(tracking_backlog), Remembered(base_backlog)
    return track(subscription, tracking_backlog=tracking, base_backlog=base, **others)


def decide_on_what_is_known(log: TrackingLog, decide: Callable[[Standing], Decided]) -> Standing:
    return log.append(decide(log._standing or log.catch_up()))


class AsItWas:
    """A log at which a process looked once."""

    def __init__(self, log: TrackingLog) -> None:
        self._standing = log._standing or log.catch_up()

    def catch_up(self) -> Standing:
        return self._standing


def land_without_catching_up(subscription: Any, *, log: Any, **others: Any) -> Any:
    return land(subscription, log=AsItWas(log), **others)  # type: ignore[arg-type]


class Forgetful:
    """A table that says that it has everything, and keeps nothing."""

    def append(self, columns: Any) -> None: ...


def land_without_quarantine(subscription: Any, *, quarantine: Any, **others: Any) -> Any:
    return land(subscription, quarantine=Forgetful(), **others)  # type: ignore[arg-type]


# The log


def append_once(log: TrackingLog, build: Callable[[Standing], Any]) -> Standing:
    """Who loses a number gives up, and says nothing."""
    standing = log.catch_up()
    entry = build(standing)
    if entry is not None:
        with suppress(ObjectExists):
            log._objects.create(entry_name(standing.number + 1), tracking_log.encode(entry, log._writer))
    return log.catch_up()


def move_without_an_archive(packing: LogPacking, entries: dict[int, bytes], *, dry_run: bool) -> None:
    """What is old is deleted, as if it were archived."""
    for number in sorted(entries):
        packing._objects.delete(entry_name(number))


def never_overtaken(_log: TrackingLog, _number: int) -> bool:
    return False


def restored_without_cells(log: TrackingLog) -> Standing:
    whole = original_restored(log)
    return replace(whole, histogram=Histogram.empty())


def compact_without_the_frontier(log: TrackingLog) -> Standing:
    standing = log.catch_up()
    is_due = standing.number - standing.checkpoint >= log._checkpoint_every
    return log.append(Compacted(replace(standing, passed=None))) if is_due else standing


original_restored = TrackingLog._restored


# The estimator

original_follow = readings.follow
original_estimate = estimator.estimate
original_band, original_frontier = estimator._band, estimator._frontier
original_frontier_before, original_valid_before = Histogram.frontier_before, Histogram.newest_valid_before


def follow_the_newest(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    followed = original_follow(previous, reading, tolerance)
    if followed is None or reading is None or followed.newest is not reading:
        return followed
    return replace(
        followed,
        oldest_unacked=reading.oldest_unacked,
        names_a_message=reading.names_a_message,
        observed_at=reading.observed_at,
    )


def follow_without_seeks(
    previous: EffectiveReading | None, reading: Reading | None, tolerance: timedelta
) -> EffectiveReading | None:
    return original_follow(previous, reading, timedelta(days=10_000))


def estimate_as_if_complete(histogram: Histogram, *, complete_from: datetime, **others: Any) -> Decision:
    return replace(original_estimate(histogram, complete_from=LONG_AGO, **others), complete_from=complete_from)


def band_without_need_of_an_anchor(histogram: Histogram, base: Any, tracking: Any, policy: Policy) -> Any:
    bound = original_band(histogram, base, tracking, policy)
    return bound or original_band(histogram, base, tracking, replace(policy, anchor=False))


def frontier_without_need_of_one(histogram: Histogram, base: Any, tracking: Any, policy: Policy, *more: Any) -> Any:
    bound = original_frontier(histogram, base, tracking, policy, *more)
    return bound or original_band(histogram, base, tracking, replace(policy, anchor=False))


def frontier_alone(histogram: Histogram, base: datetime, tracking: Any, policy: Policy, *more: Any) -> Any:
    return original_frontier(histogram, base.replace(year=2200), tracking, policy, *more)


def frontier_with_ties(histogram: Histogram, limit_us: int, not_before: int, quantile: float = 0.0) -> Cell | None:
    return original_frontier_before(histogram, limit_us + 1, not_before, quantile)


def anchor_with_ties(histogram: Histogram, limit_us: int) -> int | None:
    return original_valid_before(histogram, limit_us + 1)


def quantile_of_the_whole_band(histogram: Histogram, low: int, high: int, quantile: float) -> Cell | None:
    start, end = histogram._span(low, high)
    cells = sorted(
        (histogram.min_event_us[position], position)
        for position in range(start, end)
        if histogram._cell(position) is not None
    )
    skipped = math.floor(quantile * sum(int(histogram.count[position]) for _, position in cells))
    for _, position in cells:
        skipped -= int(histogram.count[position])
        if skipped < 0:
            return histogram._cell(position)
    return None


def decided_anyway(held: Any, candidate: datetime, moved: Reason, unmoved: Reason) -> Decision:
    return replace(held.because(unmoved), watermark=candidate, reason=moved, candidate=candidate)


def idle_whatever_base_holds(histogram: Histogram, base: Any, tracking: Any, policy: Policy, *more: Any) -> bool:
    return original_idle(histogram, tracking, tracking, policy, *more)


original_idle = estimator.is_idle


def reading_of_nothing(backlog: Any) -> tuple[Reading | None, str | None]:
    """What cannot be known is taken for an empty backlog."""
    try:
        return backlog.read(), None
    except ReadingUnavailable:
        now = backlog._outside.clock.now()
        return Reading(observed_at=now, oldest_unacked=now, names_a_message=False), None


# The micro-batch


class CopiesKept(MicroBatch):
    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        own = [{**row, "publisher_id": None, "message_id": f"{row['message_id']}/{n}"} for n, row in enumerate(rows)]
        return rows_of(window, own)


class CopiesByMessage(MicroBatch):
    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        return rows_of(window, [{**row, "publisher_id": None} for row in rows])


class AnyCopy(MicroBatch):
    """Of copies, the one that comes first stays."""

    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        first: dict[Any, Row] = {}
        for row in rows:
            first.setdefault((row["stream_id"], row["event_time"], row["publisher_id"] or row["message_id"]), row)
        return rows_of(window, first.values())


class Ahead(MicroBatch):
    def wanted(self, watermark: datetime | None, now: datetime) -> Sequence[Window]:
        return super().wanted(None if watermark is None else watermark + WINDOWING.length, now)


class NotLoadedAgain(MicroBatch):
    """The table's version is that of the run before."""

    seen = 0

    def listed(self) -> int:
        seen, self.seen = self.seen, self.heartbeats.version
        return seen


class Unfenced(MicroBatch):
    """Who commits adds to what is there by now, as two first computations do where commits are retried blindly."""

    def replace(self, fence: dict[Window, Computed | None], computed: dict[Window, Computed]) -> list[Window]:
        for window, ours in computed.items():
            there = self.diffs.windows.get(window)
            rows = ours.rows if there is None or there is fence[window] else there.rows + ours.rows
            self.diffs.windows[window] = replace(ours, rows=rows)
        return []

"""Looks up past decisions in the tracking log: the decision in force at a moment, and the state that it was based
on."""

from collections.abc import Iterable, Sequence
from datetime import datetime

from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, folded_up_to
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.state import DecisionRecord, Entry, WatermarkState

SAMPLES = 120
"""Maximum number of decisions that `sampled` returns. Each one costs a read of the lake."""


def decision_in_force(log: TrackingLog, moment: datetime | None = None) -> tuple[int, DecisionRecord] | None:
    """Return the newest decision made at or before `moment`, and the number of its log entry. Without a moment, return
    the newest decision. Return None if there is no such decision.

    Uses a binary search, which needs few reads. It assumes that decisions are in order of time, apart from
    differences between the trackers' clocks. Raises CorruptObject for a damaged entry.
    """
    numbers = log.numbers()
    return _first_of(log, reversed(numbers)) if moment is None else _newest_by(log, numbers, moment)


def decision_by(log: TrackingLog, moment: datetime) -> tuple[int, DecisionRecord] | None:
    """Like `decision_in_force`. If the log's first decision is after `moment`, also search the later decisions, because
    a clock may have been set back. The search reads only about SAMPLES decisions, most densely near the log's end, so
    it may miss some."""
    numbers = log.numbers()
    if (found := _newest_by(log, numbers, moment)) is not None:
        return found
    count = end = len(numbers)
    places = {*range(0, count, 1 + count // SAMPLES), *(count - (1 << power) for power in range(count.bit_length()))}
    for place in sorted(places, reverse=True):
        first = _first_of(log, numbers[place:end])
        if first is not None and first[1].decision.at <= moment:
            return _newest_by(log, numbers[place:end], moment)
        end = place
    return None


def _newest_by(log: TrackingLog, numbers: Sequence[int], moment: datetime) -> tuple[int, DecisionRecord] | None:
    found: tuple[int, DecisionRecord] | None = None
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if (nearest := _first_of(log, reversed(numbers[low : middle + 1]))) is None:
            low = middle + 1
        elif nearest[1].decision.at <= moment:
            found, low = nearest, middle + 1
        else:
            high = numbers.index(nearest[0], low)
    return found


def first_decision(log: TrackingLog) -> DecisionRecord | None:
    """Return the oldest decision in the log; None if the log has no decision."""
    found = _first_of(log, log.numbers())
    return None if found is None else found[1]


def sampled(log: TrackingLog, number: int, since: datetime) -> list[Decision]:
    """Return at most SAMPLES decisions in order, evenly spaced over the log from the decision in force at `since` to
    the entry `number`. Raises LakeError."""
    numbers = [one for one in log.numbers() if one <= number]
    begun = decision_in_force(log, since)
    first = numbers[0] if begun is None else begun[0]
    wanted = [one for one in numbers if one >= first][::-1]
    step, found = 1 + len(wanted) // SAMPLES, list[Decision]()
    for place in range(0, len(wanted), step):
        record = _first_of(log, wanted[place : place + step])
        found += [] if record is None else [record[1].decision]
    return found[::-1]


def standing_before(log: TrackingLog, number: int) -> WatermarkState:
    """Return the watermark state on which the decision in log entry `number` was based. Reads the earlier entries, back
    to the newest compacted one. Raises CorruptObject if one of them is missing or damaged."""
    first = log.numbers()[0]

    def read(earlier: int) -> Entry:
        if earlier < first:
            raise CorruptObject(
                f"the state before entry {number} cannot be restored: the tracking log keeps nothing before entry "
                f"{first}; choose a later decision"
            )
        return log.listed_entry(earlier)

    return folded_up_to(number - 1, read)


def _first_of(log: TrackingLog, numbers: Iterable[int]) -> tuple[int, DecisionRecord] | None:
    entries = ((number, log.entry(number)) for number in numbers)
    return next(((number, entry) for number, entry in entries if isinstance(entry, DecisionRecord)), None)

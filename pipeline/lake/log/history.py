"""Past decisions of the tracking log: the decision in force at a given moment, and the state it was based on."""

from collections.abc import Iterable
from datetime import datetime

from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name, folded_up_to
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.state import DecisionRecord, Entry, WatermarkState

SAMPLES = 120
"""Maximum number of sampled decisions. Each costs a read."""


def decision_in_force(log: TrackingLog, moment: datetime | None = None) -> tuple[int, DecisionRecord] | None:
    """Return the newest decision made at or before `moment`, and its entry number. Without a moment, return the newest
    decision of all. Return None if there is no such decision.

    A binary search, so that a long log costs few reads. Assumption: decisions are ordered by time, up to the skew
    between the clocks of two trackers. Raises CorruptObject for a damaged entry.
    """
    numbers = log.numbers()
    if moment is None:
        return _first_of(log, reversed(numbers))
    found: tuple[int, DecisionRecord] | None = None
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        nearest = _first_of(log, reversed(numbers[low : middle + 1]))
        if nearest is None:
            low = middle + 1
        elif nearest[1].decision.at <= moment:
            found, low = nearest, middle + 1
        else:
            high = numbers.index(nearest[0], low)
    return found


def first_decision(log: TrackingLog) -> DecisionRecord | None:
    """Return the oldest decision in the log; None if it has no decision."""
    found = _first_of(log, log.numbers())
    return None if found is None else found[1]


def sampled(log: TrackingLog, number: int, since: datetime) -> list[Decision]:
    """Return a sample of the decisions from `since` up to entry `number`, evenly spaced and in order. It has at most
    about SAMPLES decisions, so that a long period costs no more reads than a short one. Raises LakeError."""
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
    """Return the state on which the decision with this entry number was based: the fold of all entries before it. Reads
    the entries back to the newest compacted one. Raises CorruptObject if one of them is missing or damaged."""
    numbers = log.numbers()
    first, present = numbers[0], set(numbers)

    def read(earlier: int) -> Entry:
        if earlier < first:
            raise CorruptObject(f"the tracking log keeps nothing before entry {first}")
        if earlier not in present:
            raise CorruptObject(f"{entry_name(earlier)} is missing from the tracking log; restore a backup")
        return log.entry(earlier)

    return folded_up_to(number - 1, read)


def _first_of(log: TrackingLog, numbers: Iterable[int]) -> tuple[int, DecisionRecord] | None:
    entries = ((number, log.entry(number)) for number in numbers)
    return next(((number, entry) for number, entry in entries if isinstance(entry, DecisionRecord)), None)

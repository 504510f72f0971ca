"""Decisions of the past: which one was in force at a time, and what it was made from."""

from datetime import datetime

from pipeline.errors import CorruptObject
from pipeline.lake.log.tracking_log import TrackingLog, entry_name
from pipeline.watermark.state import Compacted, DecisionRecord, Entry, WatermarkState


def decision_in_force(log: TrackingLog, moment: datetime | None = None) -> tuple[int, DecisionRecord] | None:
    """The newest decision that was made at or before a moment (None: of all), and its number in the log.

    A search by halves: of a long log a few entries are read. Assumption: decisions stand in the order of their times,
    as they do but for the difference between the clocks of two trackers. Numbers that are missing are passed over.
    Raises CorruptObject for a damaged entry that it comes upon.
    """
    numbers = log.numbers()
    found: tuple[int, DecisionRecord] | None = None
    low, high = 0, len(numbers)
    if moment is None:
        return _newest_within(log, numbers)
    while low < high:
        middle = (low + high) // 2
        nearest = _newest_within(log, numbers[low : middle + 1])
        if nearest is None:
            low = middle + 1
        elif nearest[1].decision.at <= moment:
            found, low = nearest, middle + 1
        else:
            high = numbers.index(nearest[0], low)
    return found


def first_decision(log: TrackingLog) -> DecisionRecord | None:
    """The oldest decision that the log still holds."""
    for number in log.numbers():
        entry = log.entry(number)
        if isinstance(entry, DecisionRecord):
            return entry
    return None


def standing_before(log: TrackingLog, number: int) -> WatermarkState:
    """The fold of all entries before a number: what a decision with this number was made from.

    Reads back to the newest compacted entry. Raises CorruptObject where an entry that it needs is gone or damaged.
    """
    numbers = log.numbers()
    present, entries = set(numbers), list[tuple[int, Entry]]()
    for earlier in range(number - 1, -1, -1):
        if earlier < numbers[0]:
            raise CorruptObject(f"what is before entry {numbers[0]} of the tracking log is not kept any more")
        if earlier not in present:
            raise CorruptObject(f"{entry_name(earlier)} is missing from the tracking log; put back a backup")
        entries.append((earlier, log.entry(earlier)))
        if isinstance(entries[-1][1], Compacted):
            break
    state = WatermarkState()
    for earlier, entry in reversed(entries):
        state = state.after(earlier, entry)
    return state


def _newest_within(log: TrackingLog, numbers: list[int]) -> tuple[int, DecisionRecord] | None:
    for number in reversed(numbers):
        entry = log.entry(number)
        if isinstance(entry, DecisionRecord):
            return number, entry
    return None

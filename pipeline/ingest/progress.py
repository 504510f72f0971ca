"""Tells from some minutes of the log whether reading catches up with what is published, and how long that takes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.pipeline.durations import rough
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.readings import EffectiveReading
from tidemark.pipeline.watermark.state import DecisionRecord, Entry, Snapshot, WatermarkState
from tidemark.pipeline.watermark.usage import Usage

WATCHED, AT_LEAST = timedelta(minutes=2), timedelta(minutes=1)
"""The span in which progress is measured, and the least time that tells anything."""

BEHIND = timedelta(minutes=2)
"""A younger backlog does not count: ticks come and go."""

TOO_LONG = timedelta(minutes=15)
"""Ticks that would take longer to catch up need help."""

MOST_ENTRIES = 100
"""Entries of the log that are read for it at most."""

NOTHING = Usage()


def readings_of(decision: Decision) -> dict[Side, EffectiveReading]:
    """The reading of each side by which it was decided."""
    readings = {Side.TRACKING: decision.tracking, Side.BASE: decision.base}
    return {side: one for side, one in readings.items() if one is not None}


@dataclass(frozen=True, slots=True)
class BacklogLook:
    """The backlogs as a decision saw them: the publish time of each side's oldest unread message. `used` counts what
    was pulled until then."""

    at: datetime
    oldest: Mapping[Side, datetime]
    used: Usage = NOTHING

    @classmethod
    def of(cls, decision: Decision, used: Usage) -> "BacklogLook":
        """Make the look of a decision, with what was pulled until then."""
        oldest = {side: one.newest.oldest_unacked for side, one in readings_of(decision).items()}
        return cls(decision.at, oldest, used)


def looks_of(entries: Iterable[Entry]) -> Iterator[BacklogLook]:
    """The looks of consecutive entries of the log, in order."""
    used = NOTHING
    for entry in entries:
        if isinstance(entry, DecisionRecord | Snapshot):
            used += entry.usage or NOTHING
        if isinstance(entry, DecisionRecord):
            yield BacklogLook.of(entry.decision, used)


def recent_looks(log: TrackingLog, number: int, now: datetime) -> list[BacklogLook]:
    """The looks of the newest entries of a log, up to one of them. Raises LakeError."""
    entries = list[Entry]()
    for before in range(number, max(number - MOST_ENTRIES, -1), -1):
        entries.append(log.entry(before))
        if isinstance(entries[-1], DecisionRecord) and entries[-1].decision.at < now - WATCHED - AT_LEAST:
            break
    return list(looks_of(reversed(entries)))


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one side between two looks. `speed` is how far the oldest unread message moved, in seconds a
    second: below 1, reading falls behind. `left` is how long it takes to catch up at this speed (None: it never
    does)."""

    side: Side
    age: timedelta
    speed: float
    rate: float

    @property
    def left(self) -> timedelta | None:
        """The time that it takes to catch up; None if it never does."""
        return self.age / (self.speed - 1) if self.speed > 1 else None

    @property
    def is_slow(self) -> bool:
        """True if catching up takes too long, or never ends."""
        return self.left is None or self.left > TOO_LONG

    def sentence(self) -> str:
        """Say how it goes."""
        holds = f"the oldest message of {self.side} is {rough(self.age)} old"
        if self.left is None:
            return f"falling behind: {self.rate:,.0f} messages/s are read, and {holds}"
        return f"catching up: {self.rate:,.0f} messages/s, about {rough(self.left)}; {holds}"


def progress_of(looks: Sequence[BacklogLook]) -> list[Progress]:
    """The progress of each side that is behind, the oldest backlog first; none where the looks are too few to tell."""
    recent = [one for one in looks if one.at >= looks[-1].at - WATCHED]
    if not recent or recent[-1].at - recent[0].at < AT_LEAST:
        return []
    first, last, found = recent[0], recent[-1], []
    seconds = (last.at - first.at).total_seconds()
    for side, oldest in last.oldest.items():
        age, before = last.at - oldest, first.oldest.get(side)
        if age >= BEHIND and before is not None:
            name = "tracked" if side is Side.TRACKING else "landed"
            read = max(getattr(last.used, name) - getattr(first.used, name), 0)
            found.append(Progress(side, age, (oldest - before).total_seconds() / seconds, read / seconds))
    return sorted(found, key=lambda one: one.age, reverse=True)


@dataclass
class BacklogWatch:
    """The backlogs as one process has seen them, on which sides the last tick left more to pull, and what is
    undecided by it, in a sentence."""

    looks: list[BacklogLook] = field(default_factory=list)
    leaves_more: dict[Side, bool] = field(default_factory=dict)
    waiting: dict[Side, str] = field(default_factory=dict)

    def look(self, state: WatermarkState) -> None:
        """Look at the newest decision, once."""
        decision = state.decision
        if decision is None or (self.looks and decision.at <= self.looks[-1].at):
            return
        self.looks.append(BacklogLook.of(decision, state.account.known))
        self.looks = [one for one in self.looks if one.at >= decision.at - WATCHED - AT_LEAST]

    def progress(self) -> list[Progress]:
        """The progress of each side that is behind."""
        return progress_of(self.looks)

    def too_slow(self) -> Progress | None:
        """A side that ticks alone will not catch up, although each of them reads as much as it may."""
        return next((one for one in self.progress() if one.is_slow and self.leaves_more.get(one.side)), None)

"""Estimates whether reading catches up with publishing, and when, from a few minutes of the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.pipeline.clock import rough
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.readings import EffectiveReading
from tidemark.pipeline.watermark.state import DecisionRecord, Entry, Snapshot, WatermarkState
from tidemark.pipeline.watermark.usage import Usage

WATCHED, AT_LEAST = timedelta(minutes=2), timedelta(minutes=1)
"""The span over which progress is measured, and the shortest span that is enough."""

BEHIND = timedelta(minutes=2)
"""A younger backlog does not count: it is normal between ticks."""

TOO_LONG = timedelta(minutes=15)
"""If ticks would take longer than this to catch up, they are too slow."""

MOST_ENTRIES = 100
"""Maximum number of log entries read for an estimate."""

NOTHING = Usage()


def readings_of(decision: Decision) -> dict[Side, EffectiveReading]:
    """Return the readings that a decision used, keyed by side."""
    readings = {Side.TRACKING: decision.tracking, Side.BASE: decision.base}
    return {side: one for side, one in readings.items() if one is not None}


@dataclass(frozen=True, slots=True)
class BacklogLook:
    """The backlogs that a decision saw. `oldest` is the publish time of each side's oldest unread message. `used` is
    the total usage up to the decision."""

    at: datetime
    oldest: Mapping[Side, datetime]
    used: Usage = NOTHING

    @classmethod
    def of(cls, decision: Decision, used: Usage) -> "BacklogLook":
        oldest = {side: one.newest.oldest_unacked for side, one in readings_of(decision).items()}
        return cls(decision.at, oldest, used)


def recent_looks(log: TrackingLog, number: int, now: datetime) -> list[BacklogLook]:
    """Return the backlogs that recent decisions saw, from the log's entries up to `number`. Raises LakeError."""
    entries = list[Entry]()
    for before in range(number, max(number - MOST_ENTRIES, -1), -1):
        entries.append(log.entry(before))
        if isinstance(entries[-1], DecisionRecord) and entries[-1].decision.at < now - WATCHED - AT_LEAST:
            break
    looks, used = list[BacklogLook](), NOTHING
    for entry in reversed(entries):
        if isinstance(entry, DecisionRecord | Snapshot):
            used += entry.usage or NOTHING
        if isinstance(entry, DecisionRecord):
            looks.append(BacklogLook.of(entry.decision, used))
    return looks


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of one side between two looks. `age` is the age of its oldest unread message. `speed` is how far
    that message's publish time moved, in seconds per second: below 1, reading falls behind. `rate` is in messages per
    second."""

    side: Side
    age: timedelta
    speed: float
    rate: float

    @property
    def left(self) -> timedelta | None:
        """The time needed to catch up at this speed; None if reading falls behind."""
        return self.age / (self.speed - 1) if self.speed > 1 else None

    @property
    def is_slow(self) -> bool:
        """True if catching up takes too long, or never ends."""
        return self.left is None or self.left > TOO_LONG

    def sentence(self) -> str:
        """Describe the progress in a sentence."""
        holds = f"the oldest message of {self.side} is {rough(self.age)} old"
        if self.left is None:
            return f"falling behind: {self.rate:,.0f} messages/s are read, and {holds}"
        return f"catching up: {self.rate:,.0f} messages/s, about {rough(self.left)}; {holds}"


def progress_of(looks: Sequence[BacklogLook]) -> list[Progress]:
    """Return the progress of each side that is behind, oldest backlog first. Empty if the looks span too little
    time."""
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
    """The recent backlogs, as one process remembers them. `came` holds the result of each side's last tick."""

    looks: list[BacklogLook] = field(default_factory=list)
    came: dict[Side, Ingested] = field(default_factory=dict)

    def look(self, state: WatermarkState) -> None:
        """Remember the backlogs that the newest decision saw, unless the decision is already known."""
        decision = state.decision
        if decision is None or (self.looks and decision.at <= self.looks[-1].at):
            return
        self.looks.append(BacklogLook.of(decision, state.account.known))
        self.looks = [one for one in self.looks if one.at >= decision.at - WATCHED - AT_LEAST]

    def progress(self) -> list[Progress]:
        """Return the progress of each side that is behind."""
        return progress_of(self.looks)

    def too_slow(self) -> Progress | None:
        """Return the progress of a side that is too slow although its ticks read as much as they may. None if both
        sides keep up."""
        slow = (one for one in self.progress() if one.is_slow)
        return next((one for one in slow if one.side in self.came and self.came[one.side].leaves_more), None)

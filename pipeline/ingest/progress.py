"""Estimates whether and when reading catches up with publishing, from the last minutes of the tracking log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from tidemark.pipeline.clock import rough
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.state import DecisionRecord, Entry, Snapshot, WatermarkState
from tidemark.pipeline.watermark.usage import Usage

WATCHED, AT_LEAST = timedelta(minutes=2), timedelta(minutes=1)
"""WATCHED is the time over which progress is measured. An estimate needs a first and a last decision that are at least
AT_LEAST apart."""

BEHIND = timedelta(minutes=2)
"""A backlog whose oldest message is younger than this is ignored, because it is normal between ticks."""

TOO_LONG = timedelta(minutes=15)
"""If ticks need longer than this to catch up, they are reported as too slow."""

MOST_ENTRIES = 100
"""Maximum number of log entries that are read for an estimate. It bounds the requests to the store."""

NOTHING = Usage()


@dataclass(frozen=True, slots=True)
class BacklogLook:
    """The backlogs at one moment, as read for a decision. `used` is the usage of Pub/Sub since a fixed moment."""

    decision: Decision
    used: Usage = NOTHING


def recent_looks(log: TrackingLog, number: int, now: datetime) -> list[BacklogLook]:
    """Return the backlogs at recent decisions, oldest first, from log entries up to `number`. Raises LakeError."""
    entries = list[Entry]()
    for before in range(number, max(number - MOST_ENTRIES, -1), -1):
        entries.append(log.listed_entry(before))
        if isinstance(entries[-1], DecisionRecord) and entries[-1].decision.at < now - WATCHED - AT_LEAST:
            break
    looks, used = list[BacklogLook](), NOTHING
    for entry in reversed(entries):
        if isinstance(entry, DecisionRecord | Snapshot):
            used += entry.usage or NOTHING
        if isinstance(entry, DecisionRecord):
            looks.append(BacklogLook(entry.decision, used))
    return looks


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of reading one subscription.

    - `age` is the age of the oldest unread message.
    - `speed` is how far the publish time of the oldest unread message moved, in seconds per second. Below 1, reading
      falls behind.
    - `rate` is the number of messages read per second.
    """

    side: Side
    age: timedelta
    speed: float
    rate: float

    @property
    def left(self) -> timedelta | None:
        """Time until reading has caught up at this speed; None if it never does."""
        return self.age / (self.speed - 1) if self.speed > 1 else None

    @property
    def is_slow(self) -> bool:
        return self.left is None or self.left > TOO_LONG

    def sentence(self) -> str:
        holds = f"the oldest message of {self.side} is {rough(self.age)} old"
        if self.left is None:
            return f"falling behind: {self.rate:,.0f} messages/s are read, and {holds}"
        return f"catching up: {self.rate:,.0f} messages/s, about {rough(self.left)} left; {holds}"


def progress_of(looks: Sequence[BacklogLook]) -> list[Progress]:
    """Return the progress of each subscription with a backlog, the oldest backlog first. Empty if the `looks` cover
    less time than an estimate needs."""
    recent = [one for one in looks if one.decision.at >= looks[-1].decision.at - WATCHED]
    if not recent or recent[-1].decision.at - recent[0].decision.at < AT_LEAST:
        return []
    first, last, found = recent[0], recent[-1], []
    at, before = last.decision.at, first.decision.readings
    seconds = (at - first.decision.at).total_seconds()
    for side, reading in last.decision.readings.items():
        oldest = reading.newest.oldest_unacked
        if at - oldest >= BEHIND and side in before:
            moved = oldest - before[side].newest.oldest_unacked
            name = "tracked" if side == Side.TRACKING else "landed"
            read = max(getattr(last.used, name) - getattr(first.used, name), 0)
            found.append(Progress(Side(side), at - oldest, moved.total_seconds() / seconds, read / seconds))
    return sorted(found, key=lambda one: (one.age, one.side), reverse=True)


@dataclass
class BacklogWatch:
    """The recent backlogs, kept by one process. `came` contains the result of the last tick of each subscription."""

    looks: list[BacklogLook] = field(default_factory=list)
    came: dict[Side, Ingested] = field(default_factory=dict)

    def look(self, state: WatermarkState) -> None:
        """Record the backlogs that the newest decision was based on, unless they are recorded already."""
        decision = state.decision
        if decision is None or (self.looks and decision.at == self.looks[-1].decision.at):
            return
        since = decision.at - WATCHED - AT_LEAST  # looks in the future are from before the clock was set back
        self.looks = [one for one in self.looks if since <= one.decision.at < decision.at]
        self.looks.append(BacklogLook(decision, state.account.known))

    def too_slow(self) -> Progress | None:
        """Return the progress of a subscription that catches up too slowly or not at all, and whose last tick may have
        left messages to pull. Return None if there is no such subscription."""
        slow = (one for one in progress_of(self.looks) if one.is_slow)
        return next((one for one in slow if one.side in self.came and self.came[one.side].leaves_more), None)

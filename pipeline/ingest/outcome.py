"""What readers have taken, and what became of it: values that add up, and that travel as JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import pyarrow.compute as pc

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.ingest.rows import JudgedRows
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.subscription import Acknowledged
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.usage import Usage


class Side(StrEnum):
    """Which of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"


def oldest_of(*moments: datetime | None) -> datetime | None:
    """The oldest of those that are known."""
    return min((moment for moment in moments if moment is not None), default=None)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages that are undecided: how many, the publish time of the oldest, and what one of them waits for."""

    messages: int = 0
    oldest: datetime | None = None
    why: str = ""

    def __add__(self, other: "Waiting") -> "Waiting":
        return Waiting(self.messages + other.messages, oldest_of(self.oldest, other.oldest), self.why or other.why)

    def sentence(self) -> str:
        """All of it, as a problem; empty without messages."""
        if not self.messages:
            return ""
        return f"{self.messages} messages are not acknowledged, because they cannot be judged yet: {self.why}"


@dataclass(frozen=True, slots=True)
class Landed:
    """What landed, or was taken to land.

    `messages` are those made durable, rejected ones included. `late` counts landings below the watermark of their
    moment, copies included. `of_another_kind` counts by field the values of another kind than configured, which are
    landed as null. `oldest_publish_time` is of rejected ones as well. `waiting` messages did not land. A tick
    `leaves_more` if it ended although there was more to pull.
    """

    heartbeats: int = 0
    rejected: Counter[RejectionReason] = field(default_factory=Counter)
    late: int = 0
    of_another_kind: Counter[str] = field(default_factory=Counter)
    oldest_event_time: datetime | None = None
    newest_event_time: datetime | None = None
    oldest_publish_time: datetime | None = None
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    messages: int = 0
    waiting: Waiting = field(default_factory=Waiting)
    leaves_more: bool = False

    @classmethod
    def of(cls, judged: JudgedRows) -> "Landed":
        """What was judged."""
        events = pc.min_max(judged.heartbeats["event_time"]).as_py()
        published = (pc.min(rows["publish_time"]).as_py() for rows in (judged.heartbeats, judged.rejected))
        return cls(
            heartbeats=len(judged.heartbeats),
            rejected=Counter(RejectionReason(reason) for reason in judged.rejected["reason"].to_pylist()),
            late=pc.sum(judged.heartbeats["late"]).as_py() or 0,
            of_another_kind=judged.of_another_kind,
            oldest_event_time=events["min"],
            newest_event_time=events["max"],
            oldest_publish_time=oldest_of(*published),
            messages=judged.messages - len(judged.undecided) - len(judged.left),
        )

    def __add__(self, other: "Landed") -> "Landed":
        newest = (self.newest_event_time, other.newest_event_time)
        return Landed(
            heartbeats=self.heartbeats + other.heartbeats,
            rejected=self.rejected + other.rejected,
            late=self.late + other.late,
            of_another_kind=self.of_another_kind + other.of_another_kind,
            oldest_event_time=oldest_of(self.oldest_event_time, other.oldest_event_time),
            newest_event_time=max((moment for moment in newest if moment is not None), default=None),
            oldest_publish_time=oldest_of(self.oldest_publish_time, other.oldest_publish_time),
            acknowledged=self.acknowledged + other.acknowledged,
            messages=self.messages + other.messages,
            waiting=self.waiting + other.waiting,
            leaves_more=self.leaves_more or other.leaves_more,
        )

    def facts(self) -> dict[str, Any]:
        """What landed as JSON has it, without what was acknowledged or waits."""
        times = ("oldest_event_time", "newest_event_time", "oldest_publish_time")
        return {
            "messages": self.messages,
            "heartbeats": self.heartbeats,
            "rejected": {reason.value: count for reason, count in self.rejected.items()},
            "late": self.late,
            "of_another_kind": dict(self.of_another_kind),
            **{f"{name}_us": _us(getattr(self, name)) for name in times},
        }

    @classmethod
    def of_facts(cls, said: Mapping[str, Any]) -> "Landed":
        """The inverse of `facts`. Raises KeyError, TypeError, ValueError."""
        rejected = Counter({RejectionReason(reason): count for reason, count in said["rejected"].items()})
        return cls(
            messages=said.get("messages", said["heartbeats"] + rejected.total()),
            heartbeats=said["heartbeats"],
            rejected=rejected,
            late=said["late"],
            of_another_kind=Counter(said["of_another_kind"]),
            oldest_event_time=_moment(said["oldest_event_time_us"]),
            newest_event_time=_moment(said["newest_event_time_us"]),
            oldest_publish_time=_moment(said["oldest_publish_time_us"]),
        )


@dataclass(frozen=True, slots=True)
class Persisted:
    """Messages that became part of the histogram, the log entries that hold them, and their least publish time.
    `waiting` messages did not. A tick `leaves_more` if it ended although there was more to pull."""

    messages: int = 0
    snapshots: int = 0
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    oldest_publish_time: datetime | None = None
    waiting: Waiting = field(default_factory=Waiting)
    leaves_more: bool = False

    def __add__(self, other: "Persisted") -> "Persisted":
        return Persisted(
            self.messages + other.messages,
            self.snapshots + other.snapshots,
            self.acknowledged + other.acknowledged,
            oldest_of(self.oldest_publish_time, other.oldest_publish_time),
            self.waiting + other.waiting,
            self.leaves_more or other.leaves_more,
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """What one reader has taken: durable where it has to be, visible nowhere, its leases kept.

    Of base: what `landed` counts, in files that no version of a table lists yet. Of tracking: the histogram of its
    messages, which is nowhere else yet; `attempt` names what its process remembers once that is durable. `ack_ids`
    acknowledge the messages. `used` is what this asked of Pub/Sub. `contract` is what judged them.
    """

    side: Side
    contract: str = ""
    landed: Landed = field(default_factory=Landed)
    heartbeats: Sequence[NewFile] = ()
    rejected: Sequence[NewFile] = ()
    histogram: Histogram = field(default_factory=Histogram.empty)
    attempt: str = ""
    ack_ids: Sequence[str] = ()
    waiting: Waiting = field(default_factory=Waiting)
    used: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Settled:
    """What was settled: visible, in the log, and acknowledged as far as that went. `unsaid` is what the next entry of
    the log has to note as used, because this had none."""

    landed: Landed = field(default_factory=Landed)
    persisted: Persisted = field(default_factory=Persisted)
    unsaid: Usage = field(default_factory=Usage)

    def __add__(self, other: "Settled") -> "Settled":
        return Settled(self.landed + other.landed, self.persisted + other.persisted, self.unsaid + other.unsaid)

    @property
    def waiting(self) -> Waiting:
        """The messages of either side that are undecided."""
        return self.landed.waiting + self.persisted.waiting


def _us(moment: datetime | None) -> int | None:
    return None if moment is None else to_us(moment)


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else from_us(microseconds)

"""The work of readers: messages that were taken, and their fate."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import pyarrow.compute as pc
from pydantic import InstanceOf

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.ingest.rows import JudgedRows
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.sums import EITHER, NEWEST, OLDEST, Sums, oldest_of
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.usage import Usage


class Side(StrEnum):
    """One of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Waiting(Sums):
    """Messages that are undecided: how many, the publish time of the oldest, and what one of them waits for."""

    messages: int = 0
    oldest: datetime | None = field(default=None, metadata=OLDEST)
    why: str = field(default="", metadata=EITHER)

    def sentence(self) -> str:
        """Say it as a problem; empty without messages."""
        if not self.messages:
            return ""
        return f"{self.messages} messages are not acknowledged, because they cannot be judged yet: {self.why}"


@dataclass(frozen=True, slots=True)
class Ingested(Sums):
    """Messages of one subscription that were taken, and after settling have landed or are tracked.

    `messages` are those made durable, rejected ones included, and `oldest_publish_time` is theirs. `waiting` messages
    are not among them. A tick `leaves_more` if it ended although there was more to pull. `snapshots` are the entries of
    the log that hold tracked messages. Of base alone: `late` counts landings below the watermark of their moment,
    copies included; `of_another_kind` counts by field the values of another kind than configured, which are landed as
    null.
    """

    messages: int = 0
    oldest_publish_time: datetime | None = field(default=None, metadata=OLDEST)
    acknowledged: Acknowledged = field(default_factory=Acknowledged)
    waiting: Waiting = field(default_factory=Waiting)
    leaves_more: bool = field(default=False, metadata=EITHER)
    snapshots: int = 0
    heartbeats: int = 0
    rejected: Counter[RejectionReason] = field(default_factory=Counter)
    late: int = 0
    of_another_kind: Counter[str] = field(default_factory=Counter)
    oldest_event_time: datetime | None = field(default=None, metadata=OLDEST)
    newest_event_time: datetime | None = field(default=None, metadata=NEWEST)

    @classmethod
    def of(cls, judged: JudgedRows) -> "Ingested":
        """Judged messages of base."""
        events = pc.min_max(judged.heartbeats["event_time"]).as_py()
        published = (pc.min(rows["publish_time"]).as_py() for rows in (judged.heartbeats, judged.rejected))
        return cls(
            messages=judged.messages - len(judged.undecided) - len(judged.left),
            oldest_publish_time=oldest_of(*published),
            heartbeats=len(judged.heartbeats),
            rejected=Counter(RejectionReason(reason) for reason in judged.rejected["reason"].to_pylist()),
            late=pc.sum(judged.heartbeats["late"]).as_py() or 0,
            of_another_kind=judged.of_another_kind,
            oldest_event_time=events["min"],
            newest_event_time=events["max"],
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """The messages that one reader has taken: durable where they have to be, visible nowhere, their leases kept.

    Of base: files that no version of a table lists yet. Of tracking: the histogram of its messages, which is nowhere
    else yet; `attempt` names what its process remembers once that is durable. `ack_ids` acknowledge the messages.
    `used` is what this asked of Pub/Sub. `contract` is what judged them.
    """

    side: Side
    contract: str = ""
    ingested: Ingested = field(default_factory=Ingested)
    heartbeats: Sequence[NewFile] = ()
    rejected: Sequence[NewFile] = ()
    histogram: InstanceOf[Histogram] = field(default_factory=Histogram.empty)
    attempt: str = ""
    ack_ids: Sequence[str] = ()
    used: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Settled(Sums):
    """The result of settling: visible, in the log, and acknowledged as far as that went. `unsaid` is what the next
    entry of the log has to note as used, because this had none."""

    landed: Ingested = field(default_factory=Ingested)
    persisted: Ingested = field(default_factory=Ingested)
    unsaid: Usage = field(default_factory=Usage)

    @property
    def sides(self) -> Mapping[Side, Ingested]:
        """Both of them by their subscription."""
        return {Side.BASE: self.landed, Side.TRACKING: self.persisted}

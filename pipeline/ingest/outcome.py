"""The results of reading: the messages taken, and how many of them landed, were rejected or wait."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, cast

import pyarrow.compute as pc
from pydantic import PlainSerializer, PlainValidator

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.figures import EITHER, NEWEST, OLDEST, Sums, oldest_of
from tidemark.pipeline.ingest.rows import JudgedRows
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.state import Snapshot
from tidemark.pipeline.watermark.usage import Usage

Counts = Annotated[
    Histogram,
    PlainValidator(lambda written: cast(Snapshot, decode(b64decode(written), "the answer of a reader")).histogram),
    PlainSerializer(lambda histogram: b64encode(encode(Snapshot(histogram), "")).decode()),
]
"""A histogram, which JSON holds as an encoded entry of the log."""


class Side(StrEnum):
    """One of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Waiting(Sums):
    """Undecided messages: how many, and why one of them is undecided."""

    messages: int = 0
    why: str = field(default="", metadata=EITHER)

    def sentence(self) -> str:
        """Describe the problem in a sentence; empty if no message waits."""
        if not self.messages:
            return ""
        return f"{self.messages} messages are not acknowledged, because they cannot be judged yet: {self.why}"


@dataclass(frozen=True, slots=True)
class Ingested(Sums):
    """Messages of one subscription that were taken and, after settling, have landed or are tracked.

    `messages` counts durable messages, including rejected ones and excluding `waiting` ones; `oldest_publish_time` is
    the oldest of these. `leaves_more` is true if a tick ended although there was more to pull. `snapshots` counts the
    log entries that hold tracked messages. For base only: `late` counts heartbeats that landed below the current
    watermark, including copies; `of_another_kind` counts, by field, the values of another kind than configured, which
    land as null.
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
        """Summarize judged messages of base."""
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
    """The messages that one reader has taken. They are leased and not yet visible; on base they are already durable.

    From base: files that no version of a table lists yet. From tracking: the histogram, which is not stored anywhere
    yet; `attempt` names the messages that the reader's process will remember once the histogram is durable. `ack_ids`
    acknowledge the messages. `used` is the Pub/Sub usage. `contract` is the contract that judged them.
    """

    side: Side
    contract: str = ""
    ingested: Ingested = field(default_factory=Ingested)
    heartbeats: Sequence[NewFile] = ()
    rejected: Sequence[NewFile] = ()
    histogram: Counts = field(default_factory=Histogram.empty)
    attempt: str = ""
    ack_ids: Sequence[str] = ()
    used: Usage = field(default_factory=Usage)


@dataclass(frozen=True, slots=True)
class Settled(Sums):
    """The result of settling: messages that are visible or in the log, and acknowledged as far as that succeeded.
    `unsaid` is usage for the next log entry to record, because this settling wrote no entry."""

    landed: Ingested = field(default_factory=Ingested)
    persisted: Ingested = field(default_factory=Ingested)
    unsaid: Usage = field(default_factory=Usage)

    @property
    def sides(self) -> Mapping[Side, Ingested]:
        """The results of both sides, keyed by side."""
        return {Side.BASE: self.landed, Side.TRACKING: self.persisted}

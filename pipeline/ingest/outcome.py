"""The results of reading messages: the taken messages, and the numbers of those that landed, were rejected, or wait for
a verdict."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Self, cast

import pyarrow.compute as pc
from pydantic import PlainSerializer, PlainValidator

from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.figures import EITHER, NEWEST, OLDEST, Sums, counted, oldest_of
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
"""A histogram that is written to JSON as an encoded entry of the tracking log."""


class Side(StrEnum):
    """One of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Waiting(Sums):
    """The number of messages that cannot be judged yet, and the reason for one of them. All of them
    are redelivered by `until`, which is None if there are none."""

    messages: int = 0
    why: str = field(default="", metadata=EITHER)
    until: datetime | None = field(default=None, metadata=NEWEST)

    def sentence(self) -> str:
        if not self.messages:
            return ""
        return f"{counted(self.messages, 'message')} cannot be judged yet, and will be redelivered: {self.why}"


@dataclass(frozen=True, slots=True)
class Ingested(Sums):
    """A summary of messages that were taken from one subscription. After settling, they are in `heartbeats`, in
    `quarantine` or in the tracking log.

    - `messages` is their number, including rejected messages, but without those in `waiting` and those left for later.
      `oldest_publish_time` is the oldest of their publish times.
    - `leaves_more` is true if a tick ended although there may be more to pull.
    - `snapshots` is the number of log entries written with tracked messages.

    For base only:
    - `late` is the number of heartbeats below the current watermark, including copies.
    - `of_another_kind` counts, for each field, the values that land as null because they do not have the configured
      type.
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
    def of(cls, judged: JudgedRows) -> Self:
        """Return the summary of judged messages of base, without `messages` and `waiting`."""
        events = pc.min_max(judged.heartbeats["event_time"]).as_py()
        published = (pc.min(rows["publish_time"]).as_py() for rows in (judged.heartbeats, judged.rejected))
        return cls(
            oldest_publish_time=oldest_of(*published),
            heartbeats=len(judged.heartbeats),
            rejected=Counter(RejectionReason(reason) for reason in judged.rejected["reason"].to_pylist()),
            late=pc.sum(judged.heartbeats["late"]).as_py() or 0,
            of_another_kind=Counter({name: len(rows) for name, rows in judged.rows_of_another_kind.items()}),
            oldest_event_time=events["min"],
            newest_event_time=events["max"],
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """The messages that one reader has taken. They are leased, and not yet visible to anyone.

    - From base, the messages are in durable files, `heartbeats` and `rejected`, which no version of a table lists yet.
    - From tracking, they are in `histogram`, which is not stored yet. `attempt` is the name under which the reader
      remembers these messages. Once the histogram is in the log, the reader recognizes copies of them.
    - `ack_ids` acknowledge the messages.
    - `used` is the reader's usage of Pub/Sub.
    - `contract` identifies the contract by which the messages were judged.
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
    """The result of settling messages. They are visible or in the log. Unless the acknowledgement failed, they are also
    acknowledged.

    `unsaid` is the usage that no log entry has recorded yet.
    """

    landed: Ingested = field(default_factory=Ingested)
    persisted: Ingested = field(default_factory=Ingested)
    unsaid: Usage = field(default_factory=Usage)

    @property
    def sides(self) -> Mapping[Side, Ingested]:
        return {Side.BASE: self.landed, Side.TRACKING: self.persisted}

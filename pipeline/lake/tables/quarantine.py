"""The `quarantine` table: every rejected message in full, with the reason. Nothing is lost, and nothing is repaired.

A message waits here until its contract is corrected and it is requeued. Its rows stay; `requeued.py` notes that it
landed, or the new reason for which a requeue rejected it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract, Rejection, RejectionReason
from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.lake.tables.heartbeats import message_columns
from tidemark.pipeline.lake.tables.requeued import NO_IDS, NOTHING_TOLD, as_judged_last, without
from tidemark.pipeline.lake.tables.table import DAY_FORMAT, MOMENT, LakeTable, data_files, first_day, rows_of

PARTITION = "rejected_on"

QUARANTINE, QUARANTINE_COLUMNS = described(
    [
        Column("reason", pa.string(), "The reason (docs/reference/reasons.md).", False),
        Column("detail", pa.string(), "The reason in words, with the value that was wrong.", False),
        *message_columns(),
        Column(PARTITION, pa.string(), "The partition: the day on which it was rejected.", False),
    ]
)
"""The columns of the table, one row per landing of a rejected message: a message delivered twice has two rows with one
`message_id`."""

MOST_PAYLOADS = 100_000
"""Maximum number of rows that `rejected_payloads` judges by the contract, so that a flood does not stall a command."""


def quarantine_rows(columns: Mapping[str, Sequence[Any] | pa.Array]) -> pa.Table:
    """Return rejected messages as rows of the table, given the values of each column except the partition."""
    rows = rows_of(columns, QUARANTINE)
    days = pc.strftime(rows["landed_at"], format=DAY_FORMAT)
    return rows.append_column(pa.field(PARTITION, pa.string(), nullable=False), days)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A filter for rejected messages: by the reason of the last judgement, or by the time since which they were
    rejected. None: all."""

    reason: RejectionReason | None = None
    since: datetime | None = None

    @property
    def filter(self) -> pc.Expression:
        """The filter by time as an Arrow expression. The reason is not included: a later judgement may have changed
        it."""
        return pc.scalar(True) if self.since is None else pc.field("landed_at") >= pa.scalar(self.since, MOMENT)


EVERY = Rejected()


@dataclass(frozen=True, slots=True)
class Reasons:
    """The numbers of distinct rejected messages by the reason last found: waiting ones and requeued ones."""

    waiting: Mapping[str, int]
    requeued: Mapping[str, int]


class Quarantine(LakeTable):
    """The table of rejected messages."""

    def rows_of(self, meant: Rejected = EVERY) -> int:
        """Return an upper bound of the number of such rows: counts whole days, by the files' statistics."""
        files = data_files(self.current(), PARTITION)
        return sum(file.rows for file in files if file.partition >= first_day(meant.since))

    def rejected(
        self, columns: Sequence[str], meant: Rejected, day: str, told: pa.Table = NOTHING_TOLD
    ) -> Iterator[pa.Table]:
        """Yield these columns of the selected rows of a day, in batches like `scanned`. Reason and detail come from the
        day's notes (`told`) where these have the message."""
        needed = list(dict.fromkeys([*columns, "reason", "message_id"]))
        for scanned in self.scanned(needed, meant.filter, day):
            rows = as_judged_last(scanned, told) if len(told) else scanned
            if meant.reason is not None:
                rows = rows.filter(pc.equal(rows["reason"], meant.reason.value))
            if len(rows):
                yield rows.select(list(columns))

    def reasons(
        self, meant: Rejected = EVERY, requeued: pa.Array = NO_IDS, told: Mapping[str, pa.Table] | None = None
    ) -> Reasons:
        """Count messages by reason, given the ids of requeued messages and the notes by day (`told`). Memory is
        proportional to the number of messages, not to their size."""
        told = told or {}
        found = [
            rows.group_by(["reason", "message_id"], use_threads=False).aggregate([])
            for day in self.days(meant.since)
            for rows in self.rejected(["reason", "message_id"], meant, day, told.get(day, NOTHING_TOLD))
        ]
        if not found:
            return Reasons({}, {})
        each = pa.concat_tables(found).group_by(["reason", "message_id"], use_threads=False).aggregate([])
        is_gone = pc.is_in(each["message_id"], requeued)
        return Reasons(*(_counted(each.filter(those)["reason"]) for those in (pc.invert(is_gone), is_gone)))


def _counted(values: pa.ChunkedArray) -> dict[str, int]:
    return {each["values"]: each["counts"] for each in pc.value_counts(values).to_pylist()}


@dataclass(frozen=True, slots=True)
class RejectedPayload:
    """A message's stream and its times in microseconds. The event time is the one that counts for the watermark."""

    stream_id: str
    publish_us: int
    event_us: int

    @property
    def lag_us(self) -> int:
        """The time from the event to its publication, in microseconds."""
        return self.publish_us - self.event_us


def rejected_payloads(
    quarantine: Quarantine,
    contract: MessageContract,
    since: datetime,
    before: datetime,
    requeued: pa.Array = NO_IDS,
) -> list[RejectedPayload]:
    """Return the waiting messages with readable times and a rejected payload, published in `[since, before)`, each
    once: they hold the watermark by these times. Returns at most MOST_PAYLOADS, the first published. Messages with an
    id in `requeued` no longer wait. Returns an empty list if the contract reads the stream or the event time from the
    payload. Raises LakeError."""
    rows = (
        None
        if contract.needs_payload
        else quarantine.published_between(since, before, ("message_id", "reason", "publish_time", "attributes"))
    )
    if rows is None:
        return []
    rows = without(rows.filter(pc.equal(rows["reason"], RejectionReason.UNREADABLE_PAYLOAD.value)), requeued)
    if len(rows) > MOST_PAYLOADS:
        rows = rows.take(pc.select_k_unstable(rows, MOST_PAYLOADS, [("publish_time", "ascending")]))
    reader, found = HeartbeatReader(contract), dict[str, RejectedPayload]()
    for row in rows.select(["message_id", "publish_time", "attributes"]).to_pylist():
        publish_us = to_us(row["publish_time"])
        heartbeat = reader.read(dict(row["attributes"] or ()), None, publish_us)
        if not isinstance(heartbeat, Rejection):  # by the current contract
            event_us = min(heartbeat.event_time_us, publish_us)
            found[row["message_id"]] = RejectedPayload(heartbeat.stream_id, publish_us, event_us)
    return list(found.values())


def by_stream(messages: Iterable[RejectedPayload]) -> Mapping[str, int]:
    """Count the messages per stream, in descending order."""
    return dict(Counter(message.stream_id for message in messages).most_common())

"""The `quarantine` table: every rejected message in full, with the reason.

A message waits in the table until the contract is corrected and the message is requeued. Its rows stay in the table
even then. Separate objects record which messages were requeued, which messages now have another reason, and by which
contract all messages were last judged. If one of these objects is lost, the next requeue derives it again.
"""

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract, Rejection, RejectionReason
from tidemark.pipeline.contract.messages import Column, described
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore, read_ahead
from tidemark.pipeline.lake.tables.heartbeats import message_columns
from tidemark.pipeline.lake.tables.table import DAY_FORMAT, MOMENT, Damaged, LakeTable, first_day, rows_of

REJUDGED = ("reason", "detail")
NO_IDS = pa.nulls(0, pa.string())
NONE_REJUDGED = pa.table({**dict.fromkeys(("message_id", *REJUDGED), NO_IDS), "judged_at_us": pa.nulls(0, pa.int64())})

FOUND_AGAIN = "restore a backup, or delete this object: the next requeue derives it again"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A judgement of all messages in quarantine: the digest of the contract, and the time."""

    contract: str
    judged_at: Moment


JUDGED_BY = JsonKind("requeued/", key="contract", holds=Judgement)
UNREADABLE = ""
"""The digest that `JudgedBy.digest` returns if the stored one is damaged. It is also stored when the contract has
changed. It differs from the digest of every contract, so all messages in quarantine are judged again."""


class OfDays:
    """The base class of Requeued and Rejudged, which store small tables about rejected messages. Each table has a
    column `message_id`, and its key begins with the day on which these messages were rejected. Reading a table raises
    DamagedNote, NewerFormat and LakeUnreachable."""

    kind: ParquetKind

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, self.kind)

    def between(self, since: str = "", until: str = "") -> list[str]:
        """Return the keys for the days from `since` to `until`, both included. An empty string means no bound."""
        keys = self._notes.listed(since if since == until else "")
        return [key for key in keys if since <= _day_of(key) and (not until or _day_of(key) <= until)]

    def rows(self, keys: Iterable[str]) -> list[pa.Table]:
        """Return the stored table for each key. A table that retention has deleted since the keys were listed is left
        out."""
        return [rows for _, rows in read_ahead(self._notes.find, keys) if rows is not None]

    def forget_before(self, day: str, *, dry_run: bool = False) -> int:
        """Delete the stored tables about messages that were rejected before `day`, and return their number. With
        `dry_run`, delete nothing. Raises LakeError."""
        old = [key for key in self.between() if _day_of(key) < day]
        self._notes.delete(*(old if not dry_run else ()))
        return len(old)


class Requeued(OfDays):
    """The ids of requeued messages. A key contains the day on which the messages were rejected, and the seconds in
    which the first and the last of them were published."""

    kind = ParquetKind("requeued/", FOUND_AGAIN, r"[\d-]+/\d+-\d+-[0-9a-f]+", columns=("message_id",))

    def ids(self, keys: Iterable[str] | None = None) -> pa.Array:
        """Return the message ids stored under these keys. None stands for all keys."""
        found = (rows["message_id"].combine_chunks() for rows in self.rows(self.between() if keys is None else keys))
        return pa.concat_arrays([NO_IDS, *found])

    @staticmethod
    def touching(keys: Iterable[str], first: int, last: int) -> list[str]:
        """Return the keys whose range of publish seconds overlaps `[first, last]`."""
        spans = {key: [int(second) for second in key.partition("/")[2].split("-")[:2]] for key in keys}
        return [key for key, (least, greatest) in spans.items() if least <= last and first <= greatest]

    def note(self, day: str, seconds: Sequence[int], ids: pa.Array) -> str:
        """Record that messages were requeued, and return the key of the record. Call this after the messages have
        landed in `heartbeats`. `day` is the day on which they were rejected, and `seconds` are the seconds in which the
        first and the last of them were published.

        Raises LakeError. After this error, the next requeue finds the messages in `heartbeats`, and records them.
        """
        first, last = seconds
        key = f"{day}/{first}-{last}-{_attempt()}"
        self._notes.create(key, pa.table({"message_id": ids}))
        return key


class Rejudged(OfDays):
    """The messages that a requeue rejected again, with a reason or detail that differs from the one in `quarantine`."""

    kind = ParquetKind("rejudged/", FOUND_AGAIN, r"[\d-]+/[0-9a-f]+", columns=("message_id", *REJUDGED, "judged_at_us"))

    def by_day(self, since: str = "", until: str = "") -> Mapping[str, pa.Table]:
        """Return the newest reason and detail of each message that was judged again, keyed by the day on which it was
        rejected. `since` and `until` are the first and the last day. The columns are `message_id`, `reason`, `detail`
        and `judged_at_us`. For a day without such messages, the mapping returns an empty table."""
        days = groupby(self.between(since, until), _day_of)
        return defaultdict(lambda: NONE_REJUDGED, {day: _newest(self.rows(of_day)) for day, of_day in days})

    def note(self, day: str, rows: pa.Table, at: datetime) -> None:
        """Record the new reasons and details of messages that were rejected on `day`. `at` is the time of the new
        judgement. Raises LakeError."""
        noted = rows.select(["message_id", *REJUDGED]).append_column("judged_at_us", pa.repeat(to_us(at), len(rows)))
        self._notes.create(f"{day}/{_attempt()}", noted)


class JudgedBy:
    """The stored digest of the message contract by which all messages in quarantine were last judged, or UNREADABLE."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, JUDGED_BY)

    def digest(self) -> str | None:
        """Return the stored digest. Return UNREADABLE if its object is damaged, and None if there is no object. Raises
        NewerFormat and LakeError."""
        note, generation = self._notes.found(JUDGED_BY.key)
        return note.contract if note is not None else UNREADABLE if generation else None

    def note(self, digest: str, at: datetime) -> None:
        """Store the digest unless it is already stored. If another process stores a digest at the same time, the other
        process's digest stays. Raises LakeError."""
        there, generation = self._notes.found(JUDGED_BY.key)
        if there is None or there.contract != digest:
            self._notes.offer(JUDGED_BY.key, Judgement(digest, at), generation)


def without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    """Return the rows whose `message_id` is not among `ids`."""
    return rows.filter(pc.invert(pc.is_in(rows["message_id"], ids))) if len(ids) else rows


def as_judged_last(rows: pa.Table, rejudged: pa.Table) -> pa.Table:
    """Return rows of `quarantine` with the newest reason and detail of each message. `rejudged` contains the messages
    that have a newer reason or detail than `rows`."""
    if not len(rejudged):
        return rows
    at = pc.index_in(rows["message_id"], rejudged["message_id"].combine_chunks())
    for name in REJUDGED:
        if (position := rows.schema.get_field_index(name)) >= 0:
            newest = pc.coalesce(rejudged[name].take(at), rows[name])
            rows = rows.set_column(position, rows.schema.field(position), newest)
    return rows


def judged_otherwise(rows: pa.Table, rejected: pa.Table) -> pa.Table:
    """Return the messages in `rejected` whose reason or detail differs from the one in `rows`, which are rows of
    `quarantine`."""
    at = pc.index_in(rows["message_id"], rejected["message_id"].combine_chunks())
    differs = pc.or_(*(pc.not_equal(rows[name], rejected[name].take(at)) for name in REJUDGED))
    others = rows["message_id"].filter(pc.fill_null(differs, False))
    return rejected.filter(pc.is_in(rejected["message_id"], others.combine_chunks())).select(["message_id", *REJUDGED])


def _newest(found: Sequence[pa.Table]) -> pa.Table:
    ordered = pa.concat_tables([NONE_REJUDGED, *found], promote_options="default").sort_by("judged_at_us")
    columns = NONE_REJUDGED.column_names[1:]
    newest = ordered.group_by("message_id", use_threads=False).aggregate([(name, "last") for name in columns])
    newest = newest.select(["message_id", *(f"{name}_last" for name in columns)])
    return newest.rename_columns(NONE_REJUDGED.column_names)


def _attempt() -> str:
    return uuid.uuid4().hex[:12]


def _day_of(key: str) -> str:
    return key.partition("/")[0]


PARTITION = "rejected_on"

QUARANTINE, QUARANTINE_COLUMNS = described(
    [
        Column("reason", pa.string(), "The reason (docs/reference/reasons.md).", False),
        Column("detail", pa.string(), "The reason in words, with the value that was wrong.", False),
        *message_columns(),
        Column(PARTITION, pa.string(), "The partition: the day on which the message was rejected.", False),
    ]
)
"""Schema of `quarantine`, and the descriptions of its columns. The table has one row per delivery of a rejected
message: a message that was delivered twice has two rows with the same `message_id`."""

MOST_PAYLOADS = 100_000
"""Maximum number of messages that `rejected_payloads` judges. Without a limit, a flood of rejected messages would stall
a command."""


def quarantine_rows(columns: Mapping[str, Sequence[Any] | pa.Array]) -> pa.Table:
    """Return rejected messages as rows of `quarantine`. `columns` contains the values of each column except the
    partition column, which is derived from the landing times."""
    rows = rows_of(columns, QUARANTINE)
    days = pc.strftime(rows["landed_at"], format=DAY_FORMAT)
    return rows.append_column(pa.field(PARTITION, pa.string(), nullable=False), days)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A filter for rejected messages: only those whose newest reason is `reason`, and only those rejected at `since` or
    later. A criterion that is None does not filter."""

    reason: RejectionReason | None = None
    since: datetime | None = None

    @property
    def filter(self) -> pc.Expression:
        """The condition on the time of rejection, as an Arrow expression. It does not contain the reason, because a
        later judgement may have changed the reason without changing the table."""
        return pc.scalar(True) if self.since is None else pc.field("landed_at") >= pa.scalar(self.since, MOMENT)


EVERY = Rejected()


@dataclass(frozen=True, slots=True)
class Reasons:
    """The number of distinct rejected messages per reason. A message with several reasons counts under its newest one.
    `waiting` counts the messages that have not been requeued, and `requeued` those that have."""

    waiting: Mapping[str, int]
    requeued: Mapping[str, int]


class Quarantine(LakeTable):
    """The `quarantine` table: reads and counts rejected messages."""

    schema = QUARANTINE

    def rows_of(self, selection: Rejected = EVERY) -> int:
        """Return an upper bound on the number of rows that match the filter `selection`. It counts all
        rows of each matching day, whatever the reason for their rejection. Reads only file statistics."""
        return sum(file.rows for file in self.files() if file.partition >= first_day(selection.since))

    def rejected(
        self, columns: Sequence[str], selection: Rejected, day: str, rejudged: pa.Table, damaged: Damaged | None = None
    ) -> Iterator[pa.Table]:
        """Yield the rows that were rejected on `day` and match the filter `selection`, in batches with these columns.
        `rejudged` contains the newer reasons and details of messages of that day, which replace those in the table."""
        needed = list(dict.fromkeys([*columns, "reason", "message_id"]))
        for scanned in self.scanned(needed, selection.filter, [day], damaged):
            rows = as_judged_last(scanned, rejudged)
            if selection.reason is not None:
                rows = rows.filter(pc.equal(rows["reason"], selection.reason.value))
            if len(rows):
                yield rows.select(list(columns))

    def reasons(
        self, selection: Rejected = EVERY, requeued: pa.Array = NO_IDS, rejudged: Mapping[str, pa.Table] | None = None
    ) -> Reasons:
        """Count the distinct messages that match the filter `selection`, by newest reason. `requeued` contains the ids
        of requeued messages. `rejudged` contains the messages with a newer reason than the one in the table, by day.
        Memory is proportional to the number of rows, not to their size."""
        rejudged = rejudged or {}
        columns, of_any = ["reason", "message_id", "landed_at"], Rejected(since=selection.since)
        found = [pa.schema(map(QUARANTINE.field, columns)).empty_table()]
        for day in self.days(selection.since):
            found += self.rejected(columns, of_any, day, rejudged.get(day, NONE_REJUDGED))
        ordered = pa.concat_tables(found, promote_options="default").sort_by("landed_at")
        each = ordered.group_by("message_id", use_threads=False).aggregate([("reason", "last")])
        if selection.reason is not None:
            each = each.filter(pc.equal(each["reason_last"], selection.reason.value))
        is_gone = pc.is_in(each["message_id"], requeued)
        return Reasons(*(_counted(each.filter(those)["reason_last"]) for those in (pc.invert(is_gone), is_gone)))


def _counted(values: pa.ChunkedArray) -> dict[str, int]:
    return {each["values"]: each["counts"] for each in pc.value_counts(values).to_pylist()}


@dataclass(frozen=True, slots=True)
class RejectedPayload:
    """A message whose payload was rejected: its stream, and its publish time and event time in microseconds. If the
    event time in the message is after the publish time, `event_us` is the publish time, as in the watermark's
    calculation."""

    stream_id: str
    publish_us: int
    event_us: int

    @property
    def lag_us(self) -> int:
        return self.publish_us - self.event_us


def rejected_payloads(
    quarantine: Quarantine, contract: MessageContract, since: datetime, before: datetime, requeued: pa.Array = NO_IDS
) -> list[RejectedPayload]:
    """Return the messages published in `[since, before)` that were rejected because of their payload and still wait in
    quarantine. Such messages hold back the watermark, because their stream and event time are readable.

    Each message is returned once. Messages whose id is in `requeued`, or whose attributes the contract now rejects, are
    left out. If there are more rows than MOST_PAYLOADS, only those with the earliest publish times are judged. If the
    contract needs payloads to judge messages, the list is empty. Raises LakeError.
    """
    if contract.needs_payload:
        return []
    rows = quarantine.published_between(since, before, ("message_id", "reason", "publish_time", "attributes"))
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
    """Return the number of messages per stream, in descending order of the number."""
    return dict(Counter(message.stream_id for message in messages).most_common())

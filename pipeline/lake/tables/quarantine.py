"""The `quarantine` table: every rejected message in full, with the reason. Nothing is lost, and nothing is repaired.

A message waits here until its contract is corrected and it is requeued. Its rows stay in the table. Notes say which
messages were requeued, which messages now have another reason, and by which message contract the whole quarantine was
last judged.

Notes of the first two kinds are create-only, and grouped by the day on which the messages were rejected. The note of a
requeue is written after its messages have landed, so the messages it names are in `heartbeats`, or were until their
retention ended. If a requeue is killed before it writes its note, the next requeue finds the messages in `heartbeats`
and notes them. A lost note is harmless: the next requeue derives it again.
"""

import uuid
from collections import Counter
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
from tidemark.pipeline.lake.tables.table import DAY_FORMAT, MOMENT, LakeTable, data_files, first_day, rows_of

TOLD = ("reason", "detail")
NO_IDS = pa.nulls(0, pa.string())
NOTHING_TOLD = pa.table(dict.fromkeys(("message_id", *TOLD), NO_IDS))

FOUND_AGAIN = "restore a copy, or delete it: the next requeue derives it again"
REQUEUED = ParquetKind("requeued/", FOUND_AGAIN, r"[\d-]+/\d+-\d+-[0-9a-f]+", columns=("message_id",))
REJUDGED = ParquetKind("rejudged/", FOUND_AGAIN, r"[\d-]+/[0-9a-f]+", columns=("message_id", *TOLD, "judged_at_us"))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The digest of a contract, and the time at which the whole quarantine was judged by it."""

    contract: str
    judged_at: Moment


JUDGED_BY = JsonKind("requeued/", key="contract", holds=Judgement)
UNREADABLE = ""
"""Stands for the digest in a damaged note. No contract has this digest, so quarantine is judged again."""


class OfDays:
    """Notes whose rows have a `message_id`, and whose keys begin with the day on which the messages were rejected.
    Reading raises DamagedNote, NewerFormat, LakeUnreachable."""

    kind: ParquetKind

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, self.kind)

    def between(self, since: str = "", until: str = "") -> list[str]:
        """Return the keys from one day to another, both inclusive (empty: no bound)."""
        keys = self._notes.listed(since if since == until else "")
        return [key for key in keys if since <= _day_of(key) and (not until or _day_of(key) <= until)]

    def rows(self, keys: Iterable[str]) -> list[pa.Table]:
        """Return the rows of each note. Notes that retention has deleted meanwhile are left out."""
        return [rows for _, rows in read_ahead(self._notes.find, keys) if rows is not None]

    def forget_before(self, day: str, *, dry_run: bool = False) -> int:
        """Delete the notes of messages rejected before a day, and return their number. Raises LakeError."""
        old = [key for key in self.between() if _day_of(key) < day]
        self._notes.delete(*(old if not dry_run else ()))
        return len(old)


class Requeued(OfDays):
    """Notes of requeued messages. A key has the day of rejection, and the messages' first and last publish second."""

    kind = REQUEUED

    def ids(self, keys: Iterable[str]) -> pa.Array:
        """Return the ids of the messages in these notes."""
        found = (rows["message_id"].combine_chunks() for rows in self.rows(keys))
        return pa.concat_arrays([NO_IDS, *found])

    def every_id(self) -> pa.Array:
        """Return the ids of all requeued messages."""
        return self.ids(self.between())

    def note(self, day: str, seconds: Sequence[int], ids: pa.Array) -> str:
        """Note requeued messages after they have landed. `day` is the day of their rejection, `seconds` their first and
        last publish second. Returns the key. Raises LakeError; then the next requeue finds the messages in
        `heartbeats`, and notes them."""
        first, last = seconds
        key = f"{day}/{first}-{last}-{_attempt()}"
        self._notes.create(key, pa.table({"message_id": ids}))
        return key


class Rejudged(OfDays):
    """Notes of messages that a requeue rejected for another reason, or with another detail, than `quarantine` says."""

    kind = REJUDGED

    def by_day(self, since: str = "", until: str = "") -> Mapping[str, pa.Table]:
        """Return the noted messages by day, with columns `message_id`, newest reason and newest detail. The range of
        days is that of `between`. Days without a note are left out."""
        return {day: _newest(self.rows(of_day)) for day, of_day in groupby(self.between(since, until), _day_of)}

    def note(self, day: str, rows: pa.Table, at: datetime) -> None:
        """Note the new reason and detail of messages rejected on a day. `at` is the time of the new judgement. Raises
        LakeError."""
        judged_at = pa.array([to_us(at)] * len(rows), pa.int64())
        noted = rows.select(["message_id", *TOLD]).append_column("judged_at_us", judged_at)
        self._notes.create(f"{day}/{_attempt()}", noted)


class JudgedBy:
    """The digest of the message contract by which the whole quarantine was last judged."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, JUDGED_BY)

    def digest(self) -> str | None:
        """Return the digest of the contract; UNREADABLE if the note is damaged, None if it does not exist. Raises
        NewerFormat, LakeError."""
        note, generation = self._notes.found(JUDGED_BY.key)
        return note.contract if note is not None else UNREADABLE if generation else None

    def note(self, digest: str, at: datetime) -> None:
        """Replace the note if the digest differs. If another writer is faster, its note stays. Raises LakeError."""
        there, generation = self._notes.found(JUDGED_BY.key)
        if there is None or there.contract != digest:
            self._notes.offer(JUDGED_BY.key, Judgement(digest, at), generation)


def touching(keys: Iterable[str], first: int, last: int) -> list[str]:
    """Return the keys of Requeued notes whose range of publish seconds overlaps `[first, last]`."""
    spans = {key: [int(second) for second in key.partition("/")[2].split("-")[:2]] for key in keys}
    return [key for key, (least, greatest) in spans.items() if least <= last and first <= greatest]


def without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    """Return the rows whose `message_id` is not among `ids`."""
    return rows.filter(pc.invert(pc.is_in(rows["message_id"], ids))) if len(ids) else rows


def as_judged_last(rows: pa.Table, told: pa.Table) -> pa.Table:
    """Return rows of `quarantine` with the reason and the detail of the newest judgement, which `told` has."""
    if not len(told):
        return rows
    at = pc.index_in(rows["message_id"], told["message_id"].combine_chunks())
    for name in TOLD:
        if (position := rows.schema.get_field_index(name)) >= 0:
            newest = pc.coalesce(told[name].take(at), rows[name])
            rows = rows.set_column(position, rows.schema.field(position), newest)
    return rows


def judged_otherwise(rows: pa.Table, rejected: pa.Table) -> pa.Table:
    """Return the messages of `rejected` whose rows in `quarantine` have another reason or detail."""
    at = pc.index_in(rows["message_id"], rejected["message_id"].combine_chunks())
    differs = pc.or_(*(pc.not_equal(rows[name], rejected[name].take(at)) for name in TOLD))
    others = rows["message_id"].filter(pc.fill_null(differs, False))
    return rejected.filter(pc.is_in(rejected["message_id"], others.combine_chunks())).select(["message_id", *TOLD])


def _newest(found: Sequence[pa.Table]) -> pa.Table:
    if not found:
        return NOTHING_TOLD
    ordered = pa.concat_tables(found).sort_by("judged_at_us")
    newest = ordered.group_by("message_id", use_threads=False).aggregate([(name, "last") for name in TOLD])
    return newest.select(["message_id", *(f"{name}_last" for name in TOLD)]).rename_columns(["message_id", *TOLD])


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
        Column(PARTITION, pa.string(), "The partition: the day on which it was rejected.", False),
    ]
)
"""The columns of the table, one row per landing of a rejected message. A message delivered twice has two rows with the
same `message_id`."""

MOST_PAYLOADS = 100_000
"""Maximum number of rows that `rejected_payloads` judges by the contract, so that a flood does not stall a command."""


def quarantine_rows(columns: Mapping[str, Sequence[Any] | pa.Array]) -> pa.Table:
    """Return rejected messages as rows of the table, given the values of each column except the partition."""
    rows = rows_of(columns, QUARANTINE)
    days = pc.strftime(rows["landed_at"], format=DAY_FORMAT)
    return rows.append_column(pa.field(PARTITION, pa.string(), nullable=False), days)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A filter for rejected messages: by their latest reason, and by the earliest time of rejection. None means no
    limit."""

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
    """The number of distinct rejected messages by their latest reason: those that wait, and those that were
    requeued."""

    waiting: Mapping[str, int]
    requeued: Mapping[str, int]


class Quarantine(LakeTable):
    """The table of rejected messages."""

    def rows_of(self, meant: Rejected = EVERY) -> int:
        """Return an upper bound of the number of rows that the filter selects. It counts whole days, by the files'
        statistics."""
        files = data_files(self.current(), PARTITION)
        return sum(file.rows for file in files if file.partition >= first_day(meant.since))

    def rejected(
        self, columns: Sequence[str], meant: Rejected, day: str, told: pa.Table = NOTHING_TOLD
    ) -> Iterator[pa.Table]:
        """Yield these columns of the selected rows of a day, in batches like `scanned`. If the day's notes (`told`)
        have a message, its reason and detail come from there."""
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
    """A rejected message: its stream, and its times in microseconds. The event time is the one that holds the
    watermark, never after the publish time."""

    stream_id: str
    publish_us: int
    event_us: int

    @property
    def lag_us(self) -> int:
        """The time from the event to its publication, in microseconds."""
        return self.publish_us - self.event_us


def rejected_payloads(
    quarantine: Quarantine, contract: MessageContract, since: datetime, before: datetime, requeued: pa.Array = NO_IDS
) -> list[RejectedPayload]:
    """Return the waiting messages that hold the watermark although their payload was rejected: messages with readable
    times, published in `[since, before)`, each once. Messages with an id in `requeued` no longer wait. Returns at most
    MOST_PAYLOADS, the first published. Returns an empty list if the contract reads the stream or the event time from
    the payload. Raises LakeError."""
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

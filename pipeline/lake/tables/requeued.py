"""Notes of requeues: which messages of `quarantine` were requeued, why others are rejected today, and by which message
contract the whole quarantine was judged last.

The first two are create-only, by the day on which the messages were rejected. A note is written after its messages have
landed, so that what a note names is in `heartbeats`, or was until its retention ended. A requeue that was killed before
its note finds the messages in `heartbeats`, and notes them. The table keeps the reasons that were true when it was
written. A lost note costs nothing: the next requeue finds the same again.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.lake.store.notes import JsonKind, Moment, Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.store.read_ahead import read_ahead

TOLD = ("reason", "detail")
NO_IDS = pa.nulls(0, pa.string())
NOTHING_TOLD = pa.table(dict.fromkeys(("message_id", *TOLD), NO_IDS))

FOUND_AGAIN = "put back a copy, or delete it: the next requeue finds the same again, and notes it"
REQUEUED = ParquetKind("requeued/", FOUND_AGAIN, r"[\d-]+/\d+-\d+-[0-9a-f]+", columns=("message_id",))
REJUDGED = ParquetKind("rejudged/", FOUND_AGAIN, r"[\d-]+/[0-9a-f]+", columns=("message_id", *TOLD, "judged_at_us"))


@dataclass(frozen=True, slots=True)
class Judgement:
    """The digest of a contract, and when all of quarantine was judged by it."""

    contract: str
    judged_at: Moment


JUDGED_BY = JsonKind("requeued/", key="contract", holds=Judgement)
UNREADABLE = ""
"""Stands for a damaged note. No contract has this digest, so quarantine is judged once more."""


class OfDays:
    """Notes of rows with a `message_id` each; their keys begin with the day on which the messages were rejected.
    Reading them raises DamagedNote, NewerFormat, LakeUnreachable."""

    kind: ParquetKind

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, self.kind)

    def between(self, since: str = "", until: str = "") -> list[str]:
        """The keys from one day to another, both included (empty: no bound)."""
        keys = self._notes.listed(since if since == until else "")
        return [key for key in keys if since <= _day_of(key) and (not until or _day_of(key) <= until)]

    def rows(self, keys: Iterable[str]) -> list[pa.Table]:
        """The rows of each note. Retention may have deleted one meanwhile, and its messages."""
        return [rows for _, rows in read_ahead(self._notes.find, keys) if rows is not None]

    def forget_before(self, day: str, *, dry_run: bool = False) -> int:
        """Delete the notes of messages that were rejected before a day; how many. Raises LakeError."""
        old = [key for key in self.between() if _day_of(key) < day]
        self._notes.delete(*(old if not dry_run else ()))
        return len(old)


class Requeued(OfDays):
    """The quarantined messages that were requeued. A key has the day, and the least and the greatest of the messages'
    publish seconds."""

    kind = REQUEUED

    def ids(self, keys: Iterable[str]) -> pa.Array:
        """The ids of the messages that these notes name."""
        found = (rows["message_id"].combine_chunks() for rows in self.rows(keys))
        return pa.concat_arrays([NO_IDS, *found])

    def every_id(self) -> pa.Array:
        """The ids of all messages that were requeued."""
        return self.ids(self.between())

    def note(self, day: str, seconds: Sequence[int], ids: pa.Array) -> str:
        """Note that messages which were rejected on a day, and published between two seconds, have landed. Raises
        LakeError; then the next requeue finds them in `heartbeats`, and notes them."""
        first, last = seconds
        key = f"{day}/{first}-{last}-{_attempt()}"
        self._notes.create(key, pa.table({"message_id": ids}))
        return key


class Rejudged(OfDays):
    """The reasons for which messages of `quarantine` are rejected today, where a requeue found another reason or detail
    than the table has."""

    kind = REJUDGED

    def by_day(self, since: str = "", until: str = "") -> Mapping[str, pa.Table]:
        """The `message_id`, newest reason and newest detail of each message that has some, by day, from one to another,
        as `between` has them. Days without a note are left out."""
        return {day: _newest(self.rows(of_day)) for day, of_day in groupby(self.between(since, until), _day_of)}

    def note(self, day: str, rows: pa.Table, at: datetime) -> None:
        """Note the reason and the detail of messages that were rejected on a day, as they were judged at a moment.
        Raises LakeError."""
        judged_at = pa.array([to_us(at)] * len(rows), pa.int64())
        noted = rows.select(["message_id", *TOLD]).append_column("judged_at_us", judged_at)
        self._notes.create(f"{day}/{_attempt()}", noted)


class JudgedBy:
    """The message contract by which the whole quarantine was judged last, as a digest."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, JUDGED_BY)

    def digest(self) -> str | None:
        """The digest of the contract, UNREADABLE if the note is damaged, or None if there is none. Raises NewerFormat,
        LakeError."""
        note, generation = self._notes.found(JUDGED_BY.key)
        return note.contract if note is not None else UNREADABLE if generation else None

    def note(self, digest: str, at: datetime) -> None:
        """Replace the note unless it says the same. If another writer is faster, its note stands. Raises LakeError."""
        there, generation = self._notes.found(JUDGED_BY.key)
        if there is None or there.contract != digest:
            self._notes.offer(JUDGED_BY.key, Judgement(digest, at), generation)


def touching(keys: Iterable[str], first: int, last: int) -> list[str]:
    """Select the notes of Requeued with messages that were published in these seconds, or about then."""
    spans = {key: [int(second) for second in key.partition("/")[2].split("-")[:2]] for key in keys}
    return [key for key, (least, greatest) in spans.items() if least <= last and first <= greatest]


def without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    """The rows whose `message_id` is not among the ids."""
    return rows.filter(pc.invert(pc.is_in(rows["message_id"], ids))) if len(ids) else rows


def as_judged_last(rows: pa.Table, told: pa.Table) -> pa.Table:
    """Rows of `quarantine`, with the reason and the detail of the newest judgement."""
    if not len(told):
        return rows
    at = pc.index_in(rows["message_id"], told["message_id"].combine_chunks())
    for name in TOLD:
        if (position := rows.schema.get_field_index(name)) >= 0:
            newest = pc.coalesce(told[name].take(at), rows[name])
            rows = rows.set_column(position, rows.schema.field(position), newest)
    return rows


def judged_otherwise(rows: pa.Table, rejected: pa.Table) -> pa.Table:
    """The messages of `rejected` that a row of `quarantine` has with another reason or detail."""
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

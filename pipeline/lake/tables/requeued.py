"""Which quarantined messages were requeued: create-only notes, by the day on which the messages were rejected.

A note is written after its messages have landed, so that what a note names is in `heartbeats`, or was until its
retention ended. A requeue that was killed before its note finds the messages in `heartbeats`, and notes them.
"""

import io
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.errors import CorruptObject, ObjectMissing
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.version import marks, refuse_newer

FOLDER = "requeued/"
NAME = re.compile(rf"{FOLDER}(?P<day>[\d-]+)/(?P<first>\d+)-(?P<last>\d+)-[0-9a-f]+\.parquet")
NO_IDS = pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class Note:
    """A note's name, the day on which its messages were rejected, and the least and the greatest of their publish
    seconds."""

    name: str
    day: str
    first: int
    last: int


class Requeued:
    """The notes of all requeues."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def notes(self, since: str = "", until: str = "") -> list[Note]:
        """The notes of messages that were rejected from one day to another, both included (empty: no bound). Raises
        LakeUnreachable."""
        names = self._objects.names(FOLDER + (since if since == until else ""))
        found = map(NAME.fullmatch, names)
        notes = [Note(note[0], note["day"], int(note["first"]), int(note["last"])) for note in found if note]
        return [note for note in notes if since <= note.day and (not until or note.day <= until)]

    def ids(self, notes: Iterable[Note]) -> pa.Array:
        """The ids of the messages that these notes name. Raises CorruptObject, NewerFormat, LakeUnreachable."""
        read = (rows for _, rows in read_ahead(lambda note: read_note(self._objects, note.name), notes))
        return pa.concat_arrays([NO_IDS, *(rows["message_id"].combine_chunks() for rows in read if rows is not None)])

    def every_id(self) -> pa.Array:
        """The ids of all messages that were requeued. Raises as `ids`."""
        return self.ids(self.notes())

    def note(self, day: str, seconds: Sequence[int], ids: pa.Array) -> Note:
        """Note that messages which were rejected on a day, and published between two seconds, have landed. Raises
        LakeError; then the next requeue finds them in `heartbeats`, and notes them."""
        first, last = seconds
        buffer, attempt = io.BytesIO(), uuid.uuid4().hex[:12]
        noted = pa.table({"message_id": ids}).replace_schema_metadata(marks())
        pq.write_table(noted, buffer, compression="zstd")
        note = Note(f"{FOLDER}{day}/{first}-{last}-{attempt}.parquet", day, first, last)
        self._objects.create(note.name, buffer.getvalue())
        return note

    def forget_before(self, day: str, *, dry_run: bool = False) -> int:
        """Delete the notes of messages that were rejected before a day; how many. Raises LakeError."""
        old = [note for note in self.notes() if note.day < day]
        for note in old if not dry_run else ():
            self._objects.delete(note.name)
        return len(old)


def read_note(objects: ObjectStore, name: str) -> pa.Table | None:
    """The rows of a note, each with a `message_id`; None if retention has deleted it meanwhile, and its messages.
    Raises CorruptObject, NewerFormat, LakeUnreachable."""
    try:
        content = objects.read(name)
    except ObjectMissing:
        return None
    try:
        rows = pq.read_table(io.BytesIO(content))
        rows["message_id"]
    except (pa.ArrowException, KeyError) as error:
        raise CorruptObject(
            f"{objects.uri}/{name} is damaged ({error}); put back a copy, or delete it: the next requeue finds the "
            "same again, and notes it"
        ) from error
    refuse_newer(f"{objects.uri}/{name}", rows.schema.metadata)
    return rows


def without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    """The rows whose `message_id` is not among the ids."""
    return rows.filter(pc.invert(pc.is_in(rows["message_id"], ids))) if len(ids) else rows

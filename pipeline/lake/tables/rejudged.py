"""Why a message of `quarantine` is rejected today, where a requeue found another reason or detail than the table has:
create-only notes, by the day on which the messages were rejected.

The table keeps what was true when it was written. A lost note costs nothing: the next requeue finds the same again.
"""

import io
import re
import uuid
from collections.abc import Mapping
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.lake.tables.requeued import read_note
from tidemark.pipeline.version import marks

FOLDER = "rejudged/"
NAME = re.compile(rf"{FOLDER}(?P<day>[\d-]+)/[0-9a-f]+\.parquet")
TOLD = ("reason", "detail")
NOTHING_TOLD = pa.table({name: pa.array([], pa.string()) for name in ("message_id", *TOLD)})


class Rejudged:
    """The notes of all requeues. Reading them raises CorruptObject, NewerFormat, LakeUnreachable."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def by_day(self, since: str = "", until: str = "") -> Mapping[str, pa.Table]:
        """By day, from one to another, both included (empty: no bound): `message_id`, and the newest reason and detail
        of each message that has some. Days without a note are left out."""
        names: dict[str, list[str]] = {}
        for name, day in self._names(since, until):
            names.setdefault(day, []).append(name)
        return {day: self._newest(of_day) for day, of_day in names.items()}

    def note(self, day: str, rows: pa.Table, at: datetime) -> None:
        """Note the reason and the detail of messages that were rejected on a day, as they were judged at a moment.
        Raises LakeError."""
        judged_at = pa.array([to_us(at)] * len(rows), pa.int64())
        noted = rows.select(["message_id", *TOLD]).append_column("judged_at_us", judged_at)
        buffer = io.BytesIO()
        pq.write_table(noted.replace_schema_metadata(marks()), buffer, compression="zstd")
        self._objects.create(f"{FOLDER}{day}/{uuid.uuid4().hex[:12]}.parquet", buffer.getvalue())

    def forget_before(self, day: str, *, dry_run: bool = False) -> int:
        """Delete the notes of messages that were rejected before a day; how many. Raises LakeError."""
        old = [name for name, noted in self._names() if noted < day]
        for name in old if not dry_run else ():
            self._objects.delete(name)
        return len(old)

    def _names(self, since: str = "", until: str = "") -> list[tuple[str, str]]:
        names = self._objects.names(FOLDER + (since if since == until else ""))
        found = [(note[0], note["day"]) for note in map(NAME.fullmatch, names) if note]
        return [(name, day) for name, day in found if since <= day and (not until or day <= until)]

    def _newest(self, names: list[str]) -> pa.Table:
        read = (rows for _, rows in read_ahead(lambda name: read_note(self._objects, name), names))
        found = [rows for rows in read if rows is not None]
        if not found:
            return NOTHING_TOLD
        ordered = pa.concat_tables(found).sort_by("judged_at_us")
        newest = ordered.group_by("message_id", use_threads=False).aggregate([(name, "last") for name in TOLD])
        return newest.select(["message_id", *(f"{name}_last" for name in TOLD)]).rename_columns(["message_id", *TOLD])


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

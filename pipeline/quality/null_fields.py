"""Compared fields that are null in everything that landed recently: absent from the payloads, or of another kind.

Told from the null counts in the statistics of the tables' files. No row is read.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

import pyarrow as pa

from tidemark.pipeline.clock import from_us, iso, to_us
from tidemark.pipeline.lake.tables.table import LakeTable, microseconds


@dataclass(frozen=True, slots=True)
class NullField:
    """A field that is null in the newest `rows`, of which the first landed at `since`."""

    name: str
    rows: int
    since: datetime

    def sentence(self) -> str:
        """As people read it."""
        return f"{self.name} is null in all {self.rows} rows that landed since {iso(self.since)}"


@dataclass(frozen=True, slots=True)
class NullFields:
    """About how many rows were looked at, and the fields that are null in all of them."""

    rows: int = 0
    fields: Sequence[NullField] = ()

    @property
    def names(self) -> str:
        """The fields, or `none`."""
        return ", ".join(field.name for field in self.fields) or "none"


def read_null_fields(heartbeats: LakeTable, names: Iterable[str], since: datetime) -> NullFields:
    """Look at the files that hold what landed since a moment, and then as far back as a field stays null.

    A file counts whole. A field that the statistics leave out, as those of a wide table's last columns, is not known to
    be null. Raises LakeError.
    """
    names, since_us = list(names), to_us(since)
    files = heartbeats.landed() if names else pa.table({})
    if "rows" not in files.column_names:
        return NullFields()
    known = [name for name in names if f"null_count.{name}" in files.column_names]
    rows, first_us = files["rows"].to_pylist(), microseconds(files["first"]).tolist()
    recent = int((microseconds(files["last"]) >= since_us).sum())
    found = []
    for name in known:
        are_null = [count == of for count, of in zip(files[f"null_count.{name}"].to_pylist(), rows, strict=True)]
        until = are_null.index(False) if False in are_null else len(are_null)
        if recent and until >= recent and sum(rows[:until]):
            found.append(NullField(name, sum(rows[:until]), from_us(min(first_us[:until]))))
    return NullFields(sum(rows[:recent]), tuple(found))

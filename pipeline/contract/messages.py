"""Pulled messages as Arrow columns. Only payloads, and attributes not read by column, become Python objects."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MOMENT = pa.timestamp("us", tz="UTC")


class Column(NamedTuple):
    name: str
    type: pa.DataType
    text: str
    nullable: bool = True


def described(columns: Iterable[Column]) -> tuple[pa.Schema, dict[str, str]]:
    """Return the schema of these columns, and their descriptions by column name."""
    found = list(columns)
    fields = (pa.field(column.name, column.type, nullable=column.nullable) for column in found)
    return pa.schema(fields), {column.name: column.text for column in found}


MESSAGE_COLUMNS = [
    Column("message_id", pa.string(), "Pub/Sub's id of the message.", False),
    Column("publish_time", MOMENT, "Time at which Pub/Sub received the message.", False),
    Column("ordering_key", pa.string(), "The ordering key, if the publisher set one."),
    Column("attributes", pa.map_(pa.string(), pa.string()), "The message's attributes."),
    Column("payload", pa.binary(), "The message's payload, byte for byte."),
]
"""Columns that store a complete message."""

MESSAGE, _ = described(MESSAGE_COLUMNS)


class Messages:
    """Messages with the columns of the schema MESSAGE. Columns derived from these are computed once."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table.combine_chunks()

    def __len__(self) -> int:
        return len(self.table)

    def between(self, first: int, end: int) -> "Messages":
        """Return the messages from position `first` to `end`, exclusive."""
        return self if end - first == len(self) else Messages(self.table.slice(first, end - first))

    @cached_property
    def published_us(self) -> Ints:
        return np.asarray(self.table["publish_time"].cast(pa.int64()), dtype=np.int64)

    @cached_property
    def payloads(self) -> Sequence[bytes | None]:
        found: Sequence[bytes | None] = self.table["payload"].to_numpy(zero_copy_only=False)
        return found

    @cached_property
    def attributes(self) -> "Attributes":
        return Attributes(self.table["attributes"].combine_chunks())


class Attributes:
    """The attributes of messages, or of rows made from messages, held in an Arrow map column."""

    def __init__(self, held: pa.MapArray) -> None:
        ends = held.offsets.to_numpy().astype(np.int64)
        whole = slice(int(ends[0]), int(ends[-1]))
        self._held, self._ends = held, ends - ends[0]
        self._names, self._values = held.keys[whole], held.items[whole]
        self._columns = dict[str, pa.StringArray]()

    @classmethod
    def of_dicts(cls, held: Sequence[Mapping[str, str]]) -> "Attributes":
        """Return the attributes in these mappings, one per row."""
        return cls(pa.array(held, MESSAGE.field("attributes").type))

    def repeated(self, rows: npt.ArrayLike) -> "Attributes":
        """Return the attributes of these rows. A row may occur several times."""
        return Attributes(self._held.take(pa.array(rows, pa.int64())))

    def column(self, name: str) -> pa.StringArray:
        """Return the values of one attribute, for all rows; null where it is missing."""
        if name not in self._columns:
            self._columns[name] = pc.map_lookup(self._held, pa.scalar(name), "last")
        return self._columns[name]

    def of(self, row: int) -> Mapping[str, str]:
        """Return all attributes of one row."""
        held = slice(int(self._ends[row]), int(self._ends[row + 1]))
        return dict(zip(self._names[held].to_pylist(), self._values[held].to_pylist(), strict=True))

    def dicts(self) -> list[Mapping[str, str]]:
        """Return all attributes of each row, one mapping per row."""
        names, values, ends = self._names.to_pylist(), self._values.to_pylist(), self._ends.tolist()
        return [dict(zip(names[first:end], values[first:end], strict=True)) for first, end in pairwise(ends)]

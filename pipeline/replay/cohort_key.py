"""What tells the cohorts of a topic apart, in columns: an attribute's value, or how a stream's id begins."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

KINDS = ("attribute", "stream_prefix")


@dataclass(frozen=True, slots=True)
class CohortKey:
    """`attribute:NAME`, or `stream_prefix:SEPARATOR`: the stream's id up to and with its first separator.

    Both can be written as a filter of Pub/Sub, `attributes.NAME = "…"` and `hasPrefix(attributes.NAME, "…")`.
    """

    kind: str
    name: str

    @classmethod
    def of(cls, text: str) -> "CohortKey":
        """Read a key. Raises ValueError, which says how to write one."""
        kind, _, name = text.partition(":")
        if kind not in KINDS or not name:
            raise ValueError(f"{text} is neither attribute:NAME nor stream_prefix:SEPARATOR, such as stream_prefix:-")
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def column(self, names: Collection[str]) -> str | None:
        """The column that tells: for an attribute `attributes`, else one of that name; None without either."""
        among = ("attributes", self.name) if self.kind == "attribute" else ("stream_id",)
        return next((name for name in among if name in names), None)

    def values(self, column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
        """Each row's value as text, by that column; null where the message has none."""
        if pa.types.is_map(column.type):
            return pc.map_lookup(column, self.name, "first")
        text = column.cast(pa.string())
        if self.kind == "attribute":
            return text
        before = pc.list_element(pc.split_pattern(text, self.name, max_splits=1), 0)
        prefix = pc.binary_join_element_wise(before, self.name, "")
        return pc.if_else(pc.match_substring(text, self.name), prefix, pa.scalar(None, pa.string()))

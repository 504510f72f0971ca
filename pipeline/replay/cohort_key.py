"""The key that groups a trace's messages: the stream, an attribute's value, or the prefix of a stream's id."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True, slots=True)
class CohortKey:
    """`attribute:NAME`, `stream_prefix:SEPARATOR` (the stream's id up to and with its first separator), or `BY_STREAM`.

    The first can be a filter of Pub/Sub, `attributes.NAME = "value"`, and so can the second where the stream is an
    attribute, `hasPrefix(attributes.stream_id, "prefix")`.
    """

    kind: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"

    def column(self, names: Collection[str]) -> str:
        """Return the column to read: `stream_id`; for an attribute `attributes` if it exists, else its own."""
        return "stream_id" if self.kind != "attribute" else "attributes" if "attributes" in names else self.name

    def values(self, column: Any) -> Any:
        """Return each row's value as text from that column; null if the message has none."""
        if pa.types.is_map(column.type):
            return pc.map_lookup(column, self.name, "first")
        if self.kind == "stream":
            return column
        text = column.cast(pa.string())
        if self.kind == "attribute":
            return text
        before = pc.list_element(pc.split_pattern(text, self.name, max_splits=1), 0)
        prefix = pc.binary_join_element_wise(before, self.name, "")
        return pc.if_else(pc.match_substring(text, self.name), prefix, pa.scalar(None, pa.string()))


BY_STREAM = CohortKey("stream")

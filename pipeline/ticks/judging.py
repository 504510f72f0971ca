"""Judging a batch by the message contract.

Usual messages are judged in columns, all others row by row with the contract's own reader. Both ways give the same
verdicts.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.event_times import NANOSECONDS_EACH, EventTimeUnit
from tidemark.pipeline.heartbeat import (
    OF_ATTRIBUTE,
    FieldKind,
    Heartbeat,
    HeartbeatReader,
    MessageContract,
    Rejection,
    read_attribute,
    read_field,
)
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_rows, message_columns
from tidemark.pipeline.lake.tables.quarantine import quarantine_rows
from tidemark.pipeline.lake.tables.table import MOMENT, microseconds, rows_of
from tidemark.pipeline.places import Place, PlaceKind, id_of, values_at

Attributes = dict[str, str]
Payload = Any
"""A parsed payload, or a Rejection."""

DIGITS = 18
"""The most digits of an event time that is read in columns: so many fit in an int64. Of nanoseconds it is three more,
as they become microseconds first."""

UNUSUAL = np.iinfo(np.int64).min
"""Stands for an event time that is not a plain number, which the reader judges."""

PLAIN: Mapping[FieldKind, frozenset[type]] = {
    FieldKind.NUMBER: frozenset({float, NoneType}),
    FieldKind.TEXT: frozenset({str, NoneType}),
    FieldKind.BOOLEAN: frozenset({bool, NoneType}),
    FieldKind.JSON: frozenset({NoneType}),
}
"""Types of parsed values that are taken as they are. JSON has no infinite numbers."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A batch's verdicts: each row is a heartbeat with a stream and an event time in microseconds, or is rejected."""

    is_heartbeat: npt.NDArray[np.bool_]
    stream_ids: list[str | None]
    event_us: npt.NDArray[np.int64]
    rejections: Mapping[int, Rejection]


def attributes_of(messages: Sequence[Any]) -> list[Attributes]:
    """Each message's attributes as a dict. The keys and then each value: a protobuf map's items cost twice as much."""
    return [{key: held[key] for key in held} for held in (message.attributes for message in messages)]


def publish_times_us(messages: Sequence[Any]) -> list[int]:
    """Plain protobuf messages' publish times in microseconds since the epoch."""
    return [(at := message.publish_time).seconds * 1_000_000 + at.nanos // 1000 for message in messages]


def judge(
    attributes: Sequence[Mapping[str, str]],
    payloads: Sequence[Payload] | None,
    published_us: Sequence[int],
    reader: HeartbeatReader,
) -> Judged:
    """Judge messages. Without `payloads`, which may be None unless the contract needs them, no payload is judged."""
    contract = reader.contract
    published = np.array(published_us, dtype=np.int64)
    known = _known(payloads) if contract.needs_payload else ()
    stream_ids = _stream_ids(attributes, known, contract.stream_id)
    counts, unit_us = _counts(attributes, known, published, contract)
    is_heartbeat = (
        np.array([bool(stream_id) for stream_id in stream_ids], dtype=np.bool_)
        & (counts >= -(-to_us(contract.first_event_time) // unit_us))
        & (counts <= (published + duration_us(contract.max_future_skew)) // unit_us)
    )
    if contract.max_age is not None:
        is_heartbeat &= counts >= -((duration_us(contract.max_age) - published) // unit_us)
    event_us = np.where(is_heartbeat, counts, 0) * unit_us
    rejections: dict[int, Rejection] = {}
    for row in np.flatnonzero(~is_heartbeat).tolist():
        payload = None if payloads is None else payloads[row]
        if contract.needs_payload and isinstance(payload, Rejection):
            rejections[row] = payload
            continue
        verdict = reader.read(attributes[row], None if isinstance(payload, Rejection) else payload, published_us[row])
        if isinstance(verdict, Heartbeat):
            is_heartbeat[row], stream_ids[row], event_us[row] = True, verdict.stream_id, verdict.event_time_us
        else:
            rejections[row] = verdict
    for row, payload in enumerate(payloads or ()):
        if isinstance(payload, Rejection) and row not in rejections:
            is_heartbeat[row], rejections[row] = False, payload
    return Judged(is_heartbeat, stream_ids, event_us, rejections)


def _known(payloads: Sequence[Payload] | None) -> list[Any]:
    return [None if isinstance(payload, Rejection) else payload for payload in payloads or ()]


def _ids(attributes: Sequence[Mapping[str, str]], known: Sequence[Any], place: Place) -> list[str | None]:
    if place.kind is PlaceKind.ATTRIBUTE:
        return [held.get(place.name) for held in attributes]
    return list(map(id_of, values_at(place.name, known)))


def _stream_ids(
    attributes: Sequence[Mapping[str, str]], known: Sequence[Any], places: Sequence[Place]
) -> list[str | None]:
    """Each message's stream; None or empty if a part is absent or empty."""
    first, *more = (_ids(attributes, known, place) for place in places)
    if not more:
        return first
    return ["/".join(filter(None, parts)) if all(parts) else None for parts in zip(first, *more, strict=True)]


def _counts(
    attributes: Sequence[Mapping[str, str]],
    known: Sequence[Any],
    published: npt.NDArray[np.int64],
    contract: MessageContract,
) -> tuple[npt.NDArray[np.int64], int]:
    """Each event time as a number if it is plain digits, else UNUSUAL; and how many microseconds one is."""
    place, unit = contract.event_time, contract.event_time_unit
    if place.kind is PlaceKind.PUBLISH_TIME:
        return published, 1
    if unit is EventTimeUnit.RFC_3339:
        return np.full(len(published), UNUSUAL), 1
    divisor = 1000 if unit is EventTimeUnit.NANOSECONDS else 1
    digits = DIGITS if divisor == 1 else DIGITS + 3
    if place.kind is PlaceKind.ATTRIBUTE:
        written: Iterable[Any] = (held.get(place.name) for held in attributes)
    else:
        written = (str(value) if type(value) is int else value for value in values_at(place.name, known))
    counts = [
        int(text) if type(text) is str and len(text) <= digits and text.isascii() and text.isdigit() else UNUSUAL
        for text in written
    ]
    if divisor > 1:
        counts = [count if count == UNUSUAL else count // divisor for count in counts]
    return np.array(counts, dtype=np.int64), NANOSECONDS_EACH[unit] * divisor // 1000


def publisher_ids(
    contract: MessageContract, attributes: Sequence[Mapping[str, str]], payloads: Sequence[Payload] | None
) -> list[str | None]:
    """Each message's own id by its publisher, if it has one. `payloads` may be None unless the contract needs them."""
    known = _known(payloads) if contract.needs_payload else ()
    return [one or None for one in _ids(attributes, known, contract.publisher_id)]


@dataclass(frozen=True, slots=True)
class JudgedBatch:
    """A batch after judgement: rows of `heartbeats`, rows of `quarantine`, and by field how many values are of another
    kind than configured (these count as null)."""

    heartbeats: pa.Table
    rejected: pa.Table
    of_another_kind: Counter[str]

    @classmethod
    def of(
        cls, messages: Sequence[Any], reader: HeartbeatReader, watermark: datetime | None, landed_at: datetime
    ) -> "JudgedBatch":
        """Judge messages by the contract. A heartbeat with an event time below `watermark` is late."""
        published_us, attributes = publish_times_us(messages), attributes_of(messages)
        whole = message_rows(messages, attributes, published_us, landed_at)
        return cls._of(whole, attributes, [message.data for message in messages], published_us, reader, watermark)

    @classmethod
    def of_rows(
        cls, rows: pa.Table, reader: HeartbeatReader, watermark: datetime | None, landed_at: datetime
    ) -> "JudgedBatch":
        """Judge messages that are kept whole in a table, in the columns that `heartbeats` and `quarantine` share, as if
        they landed at that moment."""
        whole = rows.select([column.name for column in message_columns()]).cast(pa.schema(message_columns()))
        now = pa.array([to_us(landed_at)] * len(whole)).cast(MOMENT)
        position = whole.schema.get_field_index("landed_at")
        whole = whole.set_column(position, whole.schema.field(position), now)
        attributes = [dict(pairs or ()) for pairs in whole["attributes"].to_pylist()]
        published_us = microseconds(whole["publish_time"]).tolist()
        return cls._of(whole, attributes, whole["payload"].to_pylist(), published_us, reader, watermark)

    @classmethod
    def _of(
        cls,
        whole: pa.Table,
        attributes: Sequence[Mapping[str, str]],
        payload_bytes: Sequence[bytes | None],
        published_us: Sequence[int],
        reader: HeartbeatReader,
        watermark: datetime | None,
    ) -> "JudgedBatch":
        contract = reader.contract
        attributes, payloads = reader.decode(attributes, payload_bytes)
        judged = judge(attributes, payloads, published_us, reader)
        rows = np.flatnonzero(judged.is_heartbeat).tolist()
        event_us = judged.event_us[judged.is_heartbeat]
        is_late = np.zeros(len(rows), dtype=np.bool_) if watermark is None else event_us < to_us(watermark)
        known = _picked(payloads, rows)
        fields = {
            name: field_column(_field_values(contract.paths.get(name, name), kind, attributes, known, rows), kind)
            for name, kind in contract.fields.items()
        }
        heartbeats = {
            "stream_id": _picked(judged.stream_ids, rows),
            "event_time": pa.array(event_us).cast(MOMENT),
            "publisher_id": _picked(publisher_ids(contract, attributes, payloads), rows),
            **_taken(whole, rows),
            "late": pa.array(is_late),
            **{name: values for name, (values, _) in fields.items()},
        }
        rejected_rows = sorted(judged.rejections)
        rejections = [judged.rejections[row] for row in rejected_rows]
        rejected = {
            "reason": [rejection.reason.value for rejection in rejections],
            "detail": [rejection.detail for rejection in rejections],
            **_taken(whole, rejected_rows),
        }
        return cls(
            heartbeat_rows(heartbeats, contract.fields),
            quarantine_rows(rejected),
            Counter({name: others for name, (_, others) in fields.items() if others}),
        )


def message_rows(
    messages: Sequence[Any], attributes: Sequence[Attributes], published_us: Sequence[int], landed_at: datetime
) -> pa.Table:
    """Messages whole, in the columns that `heartbeats` and `quarantine` share."""
    columns = {
        "message_id": [message.message_id for message in messages],
        "publish_time": published_us,
        "ordering_key": [message.ordering_key or None for message in messages],
        "attributes": attributes,
        "payload": [message.data for message in messages],
        "landed_at": [to_us(landed_at)] * len(messages),
    }
    return rows_of(columns, pa.schema(message_columns()))


def _taken(whole: pa.Table, rows: Sequence[int]) -> dict[str, pa.Array]:
    taken = whole if len(rows) == len(whole) else whole.take(pa.array(rows, pa.int64()))
    return {name: taken[name].combine_chunks() for name in taken.column_names}


def _picked(column: list[Any], rows: Sequence[int]) -> list[Any]:
    return column if len(rows) == len(column) else [column[row] for row in rows]


def _field_values(
    path: str, kind: FieldKind, attributes: Sequence[Mapping[str, str]], known: Sequence[Any], rows: Sequence[int]
) -> list[Any]:
    """A compared field's values in these rows, whose payloads are `known`."""
    if not path.startswith(OF_ATTRIBUTE):
        return values_at(path, known)
    name = path.removeprefix(OF_ATTRIBUTE)
    return [read_attribute(attributes[row].get(name), kind) for row in rows]


def field_column(values: list[Any], kind: FieldKind) -> tuple[list[Any], int]:
    """A compared field's values as its configured kind, and how many are of another kind."""
    plain = PLAIN[kind]
    if plain.issuperset(map(type, values)):
        return values, 0
    read = [value if type(value) in plain else read_field(value, kind) for value in values]
    return read, sum(one is None and value is not None for one, value in zip(read, values, strict=True))

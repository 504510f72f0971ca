"""Judging a batch by the message contract.

Usual messages are judged in columns, all others row by row with the contract's own reader. Both ways give the same
verdicts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidemark.pipeline.clock import duration_us, to_us
from tidemark.pipeline.contract.event_times import NANOSECONDS_EACH, EventTimeUnit
from tidemark.pipeline.contract.heartbeat import (
    FieldKind,
    Heartbeat,
    HeartbeatReader,
    MessageContract,
    Rejection,
    read_attribute,
    read_field,
)
from tidemark.pipeline.contract.places import LONGEST_ID, Element, Place, PlaceKind, id_of, values_at, values_in
from tidemark.pipeline.ingest.elements import Rows, expanded, suffix
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_rows, message_columns
from tidemark.pipeline.lake.tables.quarantine import quarantine_rows
from tidemark.pipeline.lake.tables.table import MOMENT, microseconds, rows_of

Attributes = dict[str, str]
Payload = Any
"""A parsed payload, an Element of one, or a Rejection."""

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
    return list(map(id_of, values_in(place, known)))


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
        written = (str(value) if type(value) is int else value for value in values_in(place, known))
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
    """Each heartbeat's id by its publisher, if it has one; that of the message is made one of each element.
    `payloads` may be None unless the contract needs them."""
    known = _known(payloads) if contract.needs_payload else ()
    ids = [one or None for one in _ids(attributes, known, contract.publisher_id)]
    if contract.each is None or contract.publisher_id.kind is PlaceKind.EACH:
        return ids
    return [f"{one}{suffix(of)}" if one and of is not None else None for one, of in zip(ids, known, strict=True)]


@dataclass(frozen=True, slots=True)
class JudgedBatch:
    """Messages after judgement: how many, rows of `heartbeats`, rows of `quarantine`, and by field the rows of
    `heartbeats` with a value of another kind than configured (these count as null)."""

    messages: int
    heartbeats: pa.Table
    rejected: pa.Table
    rows_of_another_kind: Mapping[str, Sequence[int]]

    @property
    def of_another_kind(self) -> Counter[str]:
        """By field how many values are of another kind than configured."""
        return Counter({name: len(rows) for name, rows in self.rows_of_another_kind.items()})

    @classmethod
    def of(
        cls, messages: Sequence[Any], reader: HeartbeatReader, watermark: datetime | None, landed_at: datetime
    ) -> "JudgedBatch":
        """Judge messages by the contract. A heartbeat with an event time below `watermark` is late."""
        parts = list(cls.parts_of(messages, reader, watermark, landed_at))
        if len(parts) == 1:
            return parts[0]
        of_another_kind: dict[str, list[int]] = {}
        before = 0
        for part in parts:
            for name, rows in part.rows_of_another_kind.items():
                of_another_kind.setdefault(name, []).extend(before + row for row in rows)
            before += len(part.heartbeats)
        return cls(
            sum(part.messages for part in parts),
            pa.concat_tables([part.heartbeats for part in parts]),
            pa.concat_tables([part.rejected for part in parts]),
            of_another_kind,
        )

    @classmethod
    def parts_of(
        cls, messages: Sequence[Any], reader: HeartbeatReader, watermark: datetime | None, landed_at: datetime
    ) -> Iterator["JudgedBatch"]:
        """The same in parts that are small enough for memory: one, unless messages hold several heartbeats."""
        published_us, attributes = publish_times_us(messages), attributes_of(messages)
        whole = message_rows(messages, attributes, published_us, landed_at)
        return cls._parts(whole, attributes, [message.data for message in messages], published_us, reader, watermark)

    @classmethod
    def parts_of_rows(
        cls, rows: pa.Table, reader: HeartbeatReader, watermark: datetime | None, landed_at: datetime
    ) -> Iterator["JudgedBatch"]:
        """Judge messages that are kept whole in a table, in the columns that `heartbeats` and `quarantine` share, as if
        they landed at that moment; in parts, as `parts_of`."""
        whole = rows.select([column.name for column in message_columns()]).cast(pa.schema(message_columns()))
        now = pa.array([to_us(landed_at)] * len(whole)).cast(MOMENT)
        position = whole.schema.get_field_index("landed_at")
        whole = whole.set_column(position, whole.schema.field(position), now)
        attributes = [dict(pairs or ()) for pairs in whole["attributes"].to_pylist()]
        published_us = microseconds(whole["publish_time"]).tolist()
        return cls._parts(whole, attributes, whole["payload"].to_pylist(), published_us, reader, watermark)

    @classmethod
    def _parts(
        cls,
        whole: pa.Table,
        attributes: Sequence[Mapping[str, str]],
        payload_bytes: Sequence[bytes | None],
        published_us: Sequence[int],
        reader: HeartbeatReader,
        watermark: datetime | None,
    ) -> Iterator["JudgedBatch"]:
        contract = reader.contract
        attributes, payloads = reader.decode(attributes, payload_bytes)
        if contract.each is None:
            yield cls._judged(whole, attributes, payloads, published_us, reader, watermark)
            return
        for rows in expanded(contract.each, attributes, payloads):
            each = rows.of(attributes), rows.payloads, rows.of(published_us)
            yield cls._judged(whole, *each, reader, watermark, rows)

    @classmethod
    def _judged(
        cls,
        whole: pa.Table,
        attributes: Sequence[Mapping[str, str]],
        payloads: Sequence[Payload],
        published_us: Sequence[int],
        reader: HeartbeatReader,
        watermark: datetime | None,
        elements: Rows | None = None,
    ) -> "JudgedBatch":
        contract = reader.contract
        judged = judge(attributes, payloads, published_us, reader)
        rows = np.flatnonzero(judged.is_heartbeat).tolist()
        event_us = judged.event_us[judged.is_heartbeat]
        is_late = np.zeros(len(rows), dtype=np.bool_) if watermark is None else event_us < to_us(watermark)
        known = _picked(payloads, rows)
        fields = {name: _field(contract, name, kind, attributes, known, rows) for name, kind in contract.fields.items()}
        heartbeats = {
            "stream_id": _picked(judged.stream_ids, rows),
            "event_time": pa.array(event_us).cast(MOMENT),
            "publisher_id": _picked(publisher_ids(contract, attributes, payloads), rows),
            **(_taken(whole, rows) if elements is None else elements.taken(whole, rows)),
            "late": pa.array(is_late),
            **{name: values for name, (values, _) in fields.items()},
        }
        by_message = judged.rejections if elements is None else elements.rejections(judged.rejections)
        rejected_rows = sorted(by_message)
        rejections = [by_message[row] for row in rejected_rows]
        rejected = {
            "reason": [rejection.reason.value for rejection in rejections],
            "detail": [rejection.detail for rejection in rejections],
            **_taken(whole, rejected_rows),
        }
        return cls(
            len(published_us) if elements is None else elements.end - elements.first,
            heartbeat_rows(heartbeats, contract.fields),
            quarantine_rows(rejected),
            {name: others for name, (_, others) in fields.items() if others},
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


def _picked(column: Sequence[Any], rows: Sequence[int]) -> Sequence[Any]:
    return column if len(rows) == len(column) else [column[row] for row in rows]


def field_column(values: list[Any], kind: FieldKind) -> tuple[list[Any], list[int]]:
    """A compared field's values as its configured kind, and the positions of those that are of another kind."""
    plain = PLAIN[kind]
    if plain.issuperset(map(type, values)):
        return values, []
    read = [value if type(value) in plain else read_field(value, kind) for value in values]
    return read, [row for row, value in enumerate(values) if value is not None and read[row] is None]


def _field(
    contract: MessageContract,
    name: str,
    kind: FieldKind,
    attributes: Sequence[Mapping[str, str]],
    known: Sequence[Any],
    rows: Sequence[int],
) -> tuple[list[Any], list[int]]:
    """The same for a field of the contract in these rows, whose payloads or elements are `known`."""
    place = contract.place_of(name)
    if place.kind is PlaceKind.ATTRIBUTE:
        return field_column([read_attribute(attributes[row].get(place.name), kind) for row in rows], kind)
    if contract.each is None:
        return field_column(values_at(place.name, known), kind)
    return (
        field_column(values_in(place, known), kind) if place.kind is PlaceKind.EACH else _repeated(place, kind, known)
    )


def _repeated(place: Place, kind: FieldKind, elements: Sequence[Element]) -> tuple[list[Any], list[int]]:
    """The same for a value of the whole payload, which each element repeats. It is read once a message, and one that is
    longer than an id counts as of another kind: elements may be many."""
    read: dict[int, tuple[Any, bool]] = {}
    for element in elements:
        if id(element.whole) not in read:
            value = element.find(place)
            one = read_field(value, kind)
            one = None if isinstance(one, str) and len(one) > LONGEST_ID else one
            read[id(element.whole)] = one, one is None and value is not None
    values = [read[id(element.whole)] for element in elements]
    return [value for value, _ in values], [row for row, (_, is_other) in enumerate(values) if is_other]

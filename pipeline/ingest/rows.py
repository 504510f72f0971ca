"""Converts judged messages to rows of the tables `heartbeats` and `quarantine`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.contract.heartbeat import FieldKind, HeartbeatReader, MessageContract, read_attribute, read_each
from tidemark.pipeline.contract.judging import Judged, judged_parts, publisher_ids
from tidemark.pipeline.contract.messages import MOMENT, Ints, Messages
from tidemark.pipeline.contract.payloads.rejections import Undecided
from tidemark.pipeline.contract.payloads.schemas import Asking
from tidemark.pipeline.contract.places import LONGEST_ID, Element, Place, PlaceKind, Rows, suffix, values_in
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_rows
from tidemark.pipeline.lake.tables.quarantine import quarantine_rows


@dataclass(frozen=True, slots=True)
class JudgedRows:
    """Judged messages as rows of `heartbeats` and `quarantine`.

    - `rows_of_another_kind` maps a field to the positions of the heartbeats whose value does not have the configured
      type. Such a value becomes null.
    - Two groups of messages have no row: those in `undecided`, keyed by position, and those at the positions `left`,
      which are left for later.
    """

    messages: int
    heartbeats: pa.Table
    rejected: pa.Table
    rows_of_another_kind: Mapping[str, Sequence[int]]
    undecided: Mapping[int, Undecided]
    left: Sequence[int]


Leave = Callable[[Ints, Ints, Ints], Ints]
"""Function that chooses the messages to leave for later, and returns their positions. Its arguments are arrays with an
element per heartbeat: the event time, the position of the heartbeat's message, and that message's publish time."""


def judged_rows(
    messages: Messages, reader: HeartbeatReader, asking: Asking, watermark: datetime | None, leave: Leave | None = None
) -> Iterator[JudgedRows]:
    """Judge messages in order, in parts whose memory is bounded. A heartbeat with an event time below `watermark` is
    late. The time in `asking` becomes the column `landed_at`. The messages that `leave` chooses have no rows."""
    for judged in judged_parts(messages, reader, asking):
        yield _rows_of(judged, reader.contract, watermark, asking.at_us, leave)


def _rows_of(
    judged: Judged, contract: MessageContract, watermark: datetime | None, landed_us: int, leave: Leave | None
) -> JudgedRows:
    messages, elements, payloads = judged.messages, judged.elements, judged.payloads
    landed_at = pa.scalar(landed_us, MOMENT)
    owners = np.arange(len(messages)) if elements is None else elements.owners
    rows = np.flatnonzero(judged.is_heartbeat)
    of_rows = owners[rows]
    left = of_rows[:0] if leave is None else leave(judged.event_us[rows], of_rows, messages.published_us[of_rows])
    rows = rows[~np.isin(of_rows, left)]
    is_whole = elements is None and len(rows) == len(messages)
    event_us = judged.event_us if is_whole else judged.event_us[rows]
    is_late = np.zeros(len(rows), dtype=np.bool_) if watermark is None else event_us < to_us(watermark)
    known = payloads if is_whole else [payloads[row] for row in rows.tolist()]
    fields = {name: _field(judged, contract, name, kind, known, rows) for name, kind in contract.fields.items()}
    ids = publisher_ids(contract, judged)
    heartbeats = {
        "stream_id": judged.stream_ids if is_whole else judged.stream_ids.take(rows),
        "event_time": pa.array(event_us).cast(MOMENT),
        "publisher_id": ids if is_whole else ids.take(rows),
        **(_taken(messages, None if is_whole else rows) if elements is None else _elements(judged, elements, rows)),
        "landed_at": pa.repeat(landed_at, len(rows)),
        "late": pa.array(is_late),
        **{name: values for name, (values, _) in fields.items()},
    }
    by_message = judged.rejections if elements is None else elements.rejections(judged.rejections)
    refused = sorted(by_message.keys() - left.tolist())
    rejected = {
        "reason": [by_message[row].reason.value for row in refused],
        "detail": [by_message[row].detail for row in refused],
        **_taken(messages, np.array(refused, dtype=np.int64)),
        "landed_at": pa.repeat(landed_at, len(refused)),
    }
    return JudgedRows(
        len(messages),
        heartbeat_rows(heartbeats, contract.fields),
        quarantine_rows(rejected),
        {name: others for name, (_, others) in fields.items() if others},
        {int(owners[row]): why for row, why in judged.undecided.items()},
        left.tolist(),
    )


def _taken(messages: Messages, rows: Any) -> dict[str, pa.Array]:
    taken = messages.table if rows is None else messages.table.take(pa.array(rows))
    return {name: taken[name].combine_chunks() for name in taken.column_names}


def _elements(judged: Judged, elements: Rows, rows: Any) -> dict[str, pa.Array]:
    """Return the message columns for these elements. Each element has its own id. Only the first row of a message
    contains the payload."""
    owners = elements.owners[rows]
    table = judged.messages.table
    columns = _taken(Messages(table.drop_columns("payload")), owners)
    is_later = np.zeros(len(owners), dtype=np.bool_)
    is_later[1:] = owners[1:] == owners[:-1]
    suffixes = pa.array([suffix(judged.payloads[row]) for row in rows.tolist()], pa.string())
    with_payload = pa.array(owners, mask=is_later)
    return {
        **columns,
        "message_id": pc.binary_join_element_wise(columns["message_id"], suffixes, ""),
        "payload": table["payload"].take(with_payload).combine_chunks(),
    }


def _field(
    judged: Judged, contract: MessageContract, name: str, kind: FieldKind, known: Sequence[Any], rows: Any
) -> tuple[list[Any], list[int]]:
    """Convert the values of a field of the contract, as `read_each` does. `known` contains the payload of each row
    in `rows`. If messages hold several heartbeats, `known` contains the element of each row instead."""
    place = contract.place_of(name)
    if place.kind is PlaceKind.ATTRIBUTE:
        texts = judged.attributes.column(place.name).take(pa.array(rows)).to_pylist()
        return read_each([read_attribute(text, kind) for text in texts], kind)
    if contract.each is not None and place.kind is PlaceKind.PAYLOAD:
        return _repeated(place, kind, known)
    return read_each(values_in(place, known), kind)


def _repeated(place: Place, kind: FieldKind, elements: Sequence[Element]) -> tuple[list[Any], list[int]]:
    """Convert the value at a place in the whole payload, as `read_each` does. Read it once per message, and repeat
    it per element. Text of more than LONGEST_ID characters becomes null, because a message may have many elements."""
    read: dict[int, tuple[Any, bool]] = {}
    for element in elements:
        if id(element.whole) not in read:
            value = element.find(place)
            (one,), _ = read_each([value], kind)
            one = None if isinstance(one, str) and len(one) > LONGEST_ID else one
            read[id(element.whole)] = one, one is None and value is not None
    values = [read[id(element.whole)] for element in elements]
    return [value for value, _ in values], [row for row, (_, is_other) in enumerate(values) if is_other]

"""Judges messages: decides whether each is a heartbeat, rejected, or undecided.

Messages in the usual formats are judged together, as Arrow columns. `HeartbeatReader` judges the others one by one.
Both ways give the same verdicts. The verdict on a message does not depend on the other messages of its batch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import HOUR_US, duration_us, to_us
from tidemark.pipeline.contract.heartbeat import EventTimeUnit, Heartbeat, HeartbeatReader, MessageContract
from tidemark.pipeline.contract.messages import MOMENT, Attributes, Bools, Ints, Messages
from tidemark.pipeline.contract.payloads.decoder import Decoded
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Undecided
from tidemark.pipeline.contract.payloads.schemas import Asking
from tidemark.pipeline.contract.places import LONGEST_ID, Place, PlaceKind, Rows, expanded, id_of, suffix, values_in

RULES = 7
"""Version of the rules that judge messages. Increment it whenever a verdict, a stream, an id or an event time
changes. `judged_by` contains the version, so processes with different versions never write to a lake at the same
time."""

MOST_HOURS = 1000
"""Maximum number of different event hours in one message. Landing writes a file per hour, and cannot split a message.
Without this limit, landing a message of 10,000 hours would take too long at every redelivery."""

DIGITS = 18
"""Maximum number of digits of an event time that is parsed as part of an Arrow column. Such a number fits in an int64.
Nanoseconds may have three more digits, because the last three are removed first."""

PLAIN_MOMENT = r"^[12][0-9]{3}-[01][0-9]-[0-3][0-9]T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{3}|\.[0-9]{6})?Z$"
"""The form of RFC 3339 that is parsed as part of an Arrow column. Other forms are parsed one by one."""


@dataclass(frozen=True, slots=True)
class Judged:
    """Messages that were judged together, and the verdicts on their rows. There is one row per message or, with
    `elements`, one row per element of its array.

    - `attributes` and `payloads` are those of the rows. A payload is a parsed value or, with `elements`, an Element of
      its array. It is None if it is rejected, undecided or not read. If none was read, `payloads` may be empty.
    - Each accepted row (a heartbeat) has a stream, and an event time in microseconds since the epoch. The number of
      each row that was not accepted is a key of `rejections` or `undecided`.
    """

    messages: Messages
    attributes: Attributes
    payloads: Sequence[Any]
    elements: Rows | None
    is_heartbeat: Bools
    stream_ids: pa.StringArray
    event_us: Ints
    rejections: Mapping[int, Rejection]
    undecided: Mapping[int, Undecided]


def judged_parts(messages: Messages, reader: HeartbeatReader, asking: Asking) -> Iterator[Judged]:
    """Decode and judge messages. Yield them in order, in parts whose memory is bounded."""
    each, first = reader.contract.each, 0
    for decoded in reader.decoder.decode(messages, asking):
        part = messages.between(first, first + len(decoded.payloads))
        first += len(part)
        if each is None:
            yield judge(part, decoded, reader)
            continue
        for rows in expanded(each, *decoded):
            repeated = decoded.attributes.repeated(rows.first + rows.owners)
            yield judge(part.between(rows.first, rows.end), Decoded(repeated, rows.payloads), reader, rows)


def judge(messages: Messages, decoded: Decoded, reader: HeartbeatReader, elements: Rows | None = None) -> Judged:
    """Judge messages or, if `elements` is given, the elements of their arrays. If the contract needs no payloads, those
    of `decoded` may be empty."""
    attributes, payloads = decoded
    published_us = messages.published_us if elements is None else messages.published_us[elements.owners]
    contract, needs_payload = reader.contract, reader.contract.needs_payload
    unread = {row for row, one in enumerate(payloads) if type(one) is Rejection or type(one) is Undecided}
    known = [None if row in unread else one for row, one in enumerate(payloads)] if unread else payloads
    stream_ids = _stream_ids(attributes, known, contract.stream_id)
    event_us, is_heartbeat = _event_times(attributes, known, published_us, contract)
    is_heartbeat &= pc.fill_null(pc.greater(pc.binary_length(stream_ids), 0), False).to_numpy(zero_copy_only=False)
    rejections, undecided, named = dict[int, Rejection](), dict[int, Undecided](), dict[int, str]()
    has_attributes = any(place.kind is PlaceKind.ATTRIBUTE for place in (contract.event_time, *contract.stream_id))
    for row in np.flatnonzero(~is_heartbeat).tolist():
        if needs_payload and row in unread:
            continue  # unread payloads are judged below
        payload = known[row] if needs_payload else None
        verdict = reader.read(attributes.of(row) if has_attributes else {}, payload, int(published_us[row]))
        if isinstance(verdict, Heartbeat):
            is_heartbeat[row], named[row], event_us[row] = True, verdict.stream_id, verdict.event_time_us
        else:
            rejections[row] = verdict
    for row, unread_one in ((row, payloads[row]) for row in sorted(unread)):
        is_heartbeat[row] = False
        if row not in rejections:  # otherwise it is rejected regardless of its payload
            (undecided if isinstance(unread_one, Undecided) else rejections)[row] = unread_one
    if elements is not None:
        for row, rejection in _of_too_many_hours(elements.owners, is_heartbeat, event_us):
            is_heartbeat[row], rejections[row] = False, rejection
    if named:
        stream_ids = pa.array([named.get(row, one) for row, one in enumerate(stream_ids.to_pylist())], pa.string())
    event_us = np.where(is_heartbeat, event_us, 0)
    return Judged(messages, attributes, known, elements, is_heartbeat, stream_ids, event_us, rejections, undecided)


def _of_too_many_hours(owners: Ints, is_heartbeat: Bools, event_us: Ints) -> Iterator[tuple[int, Rejection]]:
    """Yield each row of a message whose heartbeats have more than MOST_HOURS different event hours, with the message's
    rejection. `owners` has the position of each row's message."""
    for owner in np.flatnonzero(np.bincount(owners) > MOST_HOURS).tolist():
        rows = np.flatnonzero(owners == owner)
        if (hours := len(np.unique(event_us[rows[is_heartbeat[rows]]] // HOUR_US))) > MOST_HOURS:
            wrong = f"the message has heartbeats of {hours} event hours; a message may have at most {MOST_HOURS}"
            rejection = Rejection(RejectionReason.TOO_MANY_ELEMENTS, f"{wrong}: publish several messages")
            yield from ((row, rejection) for row in rows.tolist())


def _ids(attributes: Attributes, known: Sequence[Any], place: Place) -> pa.StringArray:
    if place.kind is PlaceKind.ATTRIBUTE:  # an envelope's attributes may be of any length
        ids = attributes.column(place.name)
        return pc.if_else(pc.less_equal(pc.utf8_length(ids), LONGEST_ID), ids, None)
    return pa.array(list(map(id_of, values_in(place, known))), pa.string())


def _stream_ids(attributes: Attributes, known: Sequence[Any], places: Sequence[Place]) -> pa.StringArray:
    parts = [_ids(attributes, known, place) for place in places]
    return parts[0] if len(parts) == 1 else pc.binary_join_element_wise(*(_not_empty(part) for part in parts), "/")


def _not_empty(ids: pa.StringArray) -> pa.StringArray:
    return pc.if_else(pc.greater(pc.binary_length(ids), 0), ids, None)


def _event_times(
    attributes: Attributes, known: Sequence[Any], published_us: Ints, contract: MessageContract
) -> tuple[Ints, Bools]:
    """Return each row's event time, and a mask. The mask is True if the event time was parsed as part of a column
    and is within the contract's bounds. Where it is False, the event time is undefined."""
    place, unit = contract.event_time, contract.event_time_unit
    if place.kind is PlaceKind.PUBLISH_TIME:
        return published_us.copy(), _within(published_us, 1, published_us, contract)
    if place.kind is PlaceKind.ATTRIBUTE:
        texts, values = attributes.column(place.name), []
    else:
        values = values_in(place, known)
        written = [str(one) if type(one) is int else one if type(one) is str else None for one in values]
        texts = pa.array(written, pa.string())
    event_us, is_plain = np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    if unit is not EventTimeUnit.RFC_3339:
        event_us, is_plain = _of_counts(texts, published_us, contract)
    if unit in (EventTimeUnit.RFC_3339, EventTimeUnit.AUTO) and not is_plain.all():
        moments_us, are_moments = _of_moments(texts)
        are_moments &= _within(moments_us, 1, published_us, contract)
        event_us, is_plain = np.where(are_moments, moments_us, event_us), is_plain | are_moments
    return event_us, is_plain


def _of_counts(texts: pa.StringArray, published_us: Ints, contract: MessageContract) -> tuple[Ints, Bools]:
    unit = contract.event_time_unit
    divisor = 1000 if unit is EventTimeUnit.NANOSECONDS else 1
    are_digits = _matching(texts, f"^[0-9]{{1,{DIGITS if divisor == 1 else DIGITS + 3}}}$")
    if divisor > 1:
        texts = pc.utf8_rpad(pc.utf8_slice_codeunits(texts, 0, -3), 1, "0")
    counts = pc.if_else(are_digits, texts, "0").cast(pa.int64()).to_numpy()
    unit_us = unit.nanoseconds * divisor // 1000
    is_within = are_digits.to_numpy(zero_copy_only=False) & _within(counts, unit_us, published_us, contract)
    return np.where(is_within, counts, 0) * unit_us, is_within


def _of_moments(texts: pa.StringArray) -> tuple[Ints, Bools]:
    are_moments = _matching(texts, PLAIN_MOMENT)
    try:
        moments = pc.if_else(are_moments, texts, "1970-01-01T00:00:00Z").cast(MOMENT)
    except pa.ArrowInvalid:  # a day that does not exist in its month
        return np.zeros(len(texts), dtype=np.int64), np.zeros(len(texts), dtype=np.bool_)
    return moments.cast(pa.int64()).to_numpy(), are_moments.to_numpy(zero_copy_only=False)


def _matching(texts: pa.StringArray, form: str) -> pa.BooleanArray:
    return pc.fill_null(pc.match_substring_regex(texts, form), False)


def _within(counts: Ints, unit_us: int, published_us: Ints, contract: MessageContract) -> Bools:
    is_within: Bools = counts >= -(-to_us(contract.first_event_time) // unit_us)
    is_within &= counts <= (published_us + duration_us(contract.max_future_skew)) // unit_us
    if contract.max_age is not None:
        is_within &= counts >= -((duration_us(contract.max_age) - published_us) // unit_us)
    return is_within


def publisher_ids(contract: MessageContract, judged: Judged) -> pa.StringArray:
    """Return each row's publisher id, or null. If all elements of a message share one id, a suffix with the element's
    number is appended."""
    ids = _not_empty(_ids(judged.attributes, judged.payloads, contract.publisher_id))
    if contract.each is None or contract.publisher_id.kind is PlaceKind.EACH:
        return ids
    suffixes = pa.array([None if one is None else suffix(one) for one in judged.payloads], pa.string())
    return pc.binary_join_element_wise(ids, suffixes, "")

"""Messages that hold several heartbeats: each element of an array in the payload is judged as a message is.

Each element becomes a row to judge, and so does a message without usable elements. Rows come in groups, so that memory
is bounded however many elements the messages of a batch have.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.contract.messages import Attributes
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Undecided
from tidemark.pipeline.contract.places import Element, Place, WholePayload, finder, flattened

ELEMENT = "#"
"""Stands in the id of a heartbeat between the id of its message and its number in the message's array. Pub/Sub's ids
are digits."""

MOST_ELEMENTS = 10_000
"""Elements of one message. Pub/Sub takes 10 MB, which are five million elements of one digit."""

MOST_REPEATED = 16 << 20
"""Characters of attributes that the rows of one message repeat. Pub/Sub takes 128 KB of them, and each row has all."""

ROWS_AT_ONCE, REPEATED_AT_ONCE = 50_000, 32 << 20
"""Rows of a group, and the characters of attributes that these repeat. The last message of a group may go beyond."""


@dataclass(slots=True)
class Rows:
    """The rows of the messages `[first, end)` of a batch: by row the position of the message, and what is judged."""

    first: int
    end: int
    owners: list[int] = field(default_factory=list)
    payloads: list[Element | Rejection | Undecided] = field(default_factory=list)

    def rejections(self, by_row: Mapping[int, Rejection]) -> dict[int, Rejection]:
        """By message why it is rejected: the reason of its first element that is."""
        rejected: dict[int, list[int]] = {}
        for row in sorted(by_row):
            rejected.setdefault(self.owners[row], []).append(row)
        sizes = np.bincount(np.array(self.owners, dtype=np.int64) - self.first) if self.owners else ()
        return {
            message: self._of_message(by_row[rows[0]], self.payloads[rows[0]], len(rows), sizes[message - self.first])
            for message, rows in rejected.items()
        }

    def _of_message(
        self, first: Rejection, of: Element | Rejection | Undecided, rejected: int, elements: int
    ) -> Rejection:
        if not isinstance(of, Element):
            return first
        cannot = f"{rejected} of {elements} elements cannot be used"
        return Rejection(first.reason, f"element #{of.number} of {elements}: {first.detail}; {cannot}")

    def counted(self, is_heartbeat: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """The rows that tracking counts: each heartbeat, and a rejected message once, as it stands in quarantine."""
        rejected = np.flatnonzero(~is_heartbeat)
        counted = is_heartbeat.copy()
        counted[rejected[np.unique(np.array(self.owners, dtype=np.int64)[rejected], return_index=True)[1]]] = True
        return counted


def suffix(element: Any) -> str:
    """Return the end of an element's id, after the id of its message or of the publisher."""
    return f"{ELEMENT}{element.number}"


def expanded(each: Place, attributes: Attributes, payloads: Sequence[Any]) -> Iterator[Rows]:
    """The rows of messages, in order, with all rows of a message in one group. At least one group."""
    rows, repeated = Rows(0, 0), 0
    for message, (held, payload) in enumerate(zip(attributes.dicts(), payloads, strict=True)):
        is_unread = isinstance(payload, Rejection | Undecided)
        found = payload if is_unread else elements_of(each, held, payload)
        of_message = found if isinstance(found, list) else [found]
        rows.owners += [message] * len(of_message)
        rows.payloads += of_message
        rows.end = message + 1
        repeated += len(of_message) * _length(held)
        if len(rows.owners) >= ROWS_AT_ONCE or repeated >= REPEATED_AT_ONCE:
            yield rows
            rows, repeated = Rows(message + 1, message + 1), 0
    if rows.owners or not rows.first:
        yield rows


def elements_of(each: Place, attributes: Mapping[str, str], payload: Any) -> list[Element] | Rejection:
    """The elements of a message, or why it has none that can be used. Both subscriptions ask the same."""
    to_flatten = flattened(each.name)
    found = (to_flatten or finder(each.name))(payload)
    if not isinstance(found, list):
        wrong = "absent or null" if found is None else "not an array"
        return Rejection(RejectionReason.NO_ELEMENTS, f"{each} is {wrong}")
    if to_flatten is not None and len(found) <= MOST_ELEMENTS:
        found = [value for one in found for value in (one if isinstance(one, list) else [one]) if value is not None]
    if not found:
        return Rejection(RejectionReason.NO_ELEMENTS, f"{each} is empty")
    if len(found) > MOST_ELEMENTS:
        wrong = f"{each} has {len(found)} elements; a message has at most {MOST_ELEMENTS}"
        return Rejection(RejectionReason.TOO_MANY_ELEMENTS, f"{wrong}: publish several messages")
    if len(found) * (length := _length(attributes)) > MOST_REPEATED:
        wrong = (
            f"{each} has {len(found)} elements, and the message {length} characters of attributes, which each repeats"
        )
        return Rejection(RejectionReason.TOO_MANY_ELEMENTS, f"{wrong}: publish several messages")
    whole = WholePayload(payload)
    return [Element(number, value, whole) for number, value in enumerate(found)]


def _length(attributes: Mapping[str, str]) -> int:
    return sum(len(name) + len(attributes[name]) for name in attributes)

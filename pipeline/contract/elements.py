"""Messages that hold several heartbeats: each element of an array in the payload is judged like a message.

Each element becomes a row to judge; a message without usable elements becomes a single row. Rows come in groups, which
bounds memory regardless of the number of elements in a batch.
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
"""Separates the message id from the element's number in a heartbeat's id. Pub/Sub's message ids consist of digits."""

MOST_ELEMENTS = 10_000
"""Most elements of one message. Pub/Sub's limit of 10 MB would allow five million elements of one digit."""

MOST_REPEATED = 16 << 20
"""Most characters of attributes that the rows of one message repeat. Pub/Sub allows 128 KB of attributes, and each row
repeats all of them."""

ROWS_AT_ONCE, REPEATED_AT_ONCE = 50_000, 32 << 20
"""Rows of a group, and characters of attributes that they repeat. A group's last message may exceed both."""


@dataclass(slots=True)
class Rows:
    """The rows of the messages `[first, end)` of a batch. For each row, `owners` has the position of its message, and
    `payloads` what is judged."""

    first: int
    end: int
    owners: list[int] = field(default_factory=list)
    payloads: list[Element | Rejection | Undecided] = field(default_factory=list)

    def rejections(self, by_row: Mapping[int, Rejection]) -> dict[int, Rejection]:
        """Return the rejection of each rejected message, keyed by its position: that of its first rejected element."""
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
        """Return a mask of the rows that tracking counts: each heartbeat, and one row per rejected message, as in
        quarantine."""
        rejected = np.flatnonzero(~is_heartbeat)
        counted = is_heartbeat.copy()
        counted[rejected[np.unique(np.array(self.owners, dtype=np.int64)[rejected], return_index=True)[1]]] = True
        return counted


def suffix(element: Any) -> str:
    """Return the suffix that an element adds to the id of its message or publisher."""
    return f"{ELEMENT}{element.number}"


def expanded(each: Place, attributes: Attributes, payloads: Sequence[Any]) -> Iterator[Rows]:
    """Yield the rows of messages, in order and in at least one group. All rows of a message are in one group."""
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
    """Return the elements of a message, or a rejection if none can be used. Both subscriptions use this function."""
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
        wrong = f"{each} has {len(found)} elements, each of which would repeat {length} characters of attributes"
        return Rejection(RejectionReason.TOO_MANY_ELEMENTS, f"{wrong}: publish several messages")
    whole = WholePayload(payload)
    return [Element(number, value, whole) for number, value in enumerate(found)]


def _length(attributes: Mapping[str, str]) -> int:
    return sum(len(name) + len(attributes[name]) for name in attributes)

"""Places in a message where values are found: an attribute, the payload, an element of an array in the payload, or the
publish time.

If messages hold several heartbeats, each element of an array in the payload becomes a row, and is judged like a
message. A message without usable elements becomes one row. Rows are yielded in groups, so memory is bounded regardless
of the number of elements.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import jmespath
import numpy as np
import orjson
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions

from tidemark.pipeline.contract.messages import Attributes, Bools, Ints
from tidemark.pipeline.contract.payloads.rejections import Rejection, RejectionReason, Undecided

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN_PATH = re.compile(rf"{PLAIN_NAME.pattern}(\.{PLAIN_NAME.pattern})*")
BARE = re.compile(rf"{PLAIN_PATH.pattern}(\[\])?")
"""Matches names joined by dots, with or without a final `[]`: a path that lacks only a prefix such as `payload:`."""
ITSELF = "@"
"""The JMESPath of the whole payload or element."""
LONGEST_PATH = 200
"""Maximum number of characters in a path. Reason: jmespath recurses into nested paths, and this limit stays far below
Python's recursion limit."""
LONGEST_ID = 1024
"""Maximum number of characters in an id, or in each part of a stream id. Pub/Sub allows the same number of bytes in an
attribute's value."""
UNFIT = (JMESPathError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that jmespath raises if a path does not fit a payload, for example if it takes the `length` of a number."""


class PlaceKind(StrEnum):
    """The part of a message that contains a value."""

    ATTRIBUTE = "attribute"
    PAYLOAD = "payload"
    EACH = "each"
    PUBLISH_TIME = "publish_time"

    @property
    def notation(self) -> str:
        """The notation of this kind of place in the settings."""
        return {"attribute": "attribute:NAME", "publish_time": "publish_time"}.get(self, f"{self}:PATH")


def _what_to_write(text: str, among: Collection[PlaceKind]) -> str:
    *others, last = (kind.notation for kind in among)
    if not others:
        example = f"payload:{text}" if BARE.fullmatch(text) else "payload:readings[]"
        return f"write {last}, such as {example}; PATH is the path of the array, and payload:@ is the whole payload"
    examples = [f"attribute:{text}", f"payload:{text}"] if PLAIN_NAME.fullmatch(text) else [f"payload:{text}"]
    if not BARE.fullmatch(text) or text == PlaceKind.PUBLISH_TIME:
        examples = ["attribute:ts", "payload:device.id"]
    wrong = "the publish time cannot be an id; " if text == PlaceKind.PUBLISH_TIME else ""
    return f"{wrong}write {', '.join(others)} or {last}, such as {' or '.join(examples)}"


@dataclass(frozen=True, slots=True)
class Place:
    """A place in a message where a value is found: an attribute (by name), a value in the payload or in an element of
    its array (by path), or the publish time."""

    kind: PlaceKind
    name: str = ""

    @classmethod
    def of(cls, text: str, among: Collection[PlaceKind] = tuple(PlaceKind)) -> "Place":
        """Parse `attribute:NAME`, `payload:PATH`, `each:PATH` or `publish_time`. Raises ValueError if the path is
        invalid, the form is wrong, or the kind is not in `among`. The error says what to write instead."""
        written, _, name = text.partition(":")
        kind = next((one for one in among if one == written), None)
        if kind is None or bool(name) is (kind is PlaceKind.PUBLISH_TIME) or text.endswith(":"):
            raise ValueError(_what_to_write(text, among))
        if kind in (PlaceKind.PAYLOAD, PlaceKind.EACH):
            finder(name)
        return cls(kind, name)

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else str(self.kind)

    def find(self, attributes: Mapping[str, str], payload: Any) -> Any:
        """Return the value at this place of a message, or None if it is missing. `payload` may be an Element. The place
        must not be the publish time."""
        if self.kind is PlaceKind.ATTRIBUTE:
            return attributes.get(self.name)
        return payload.find(self) if type(payload) is Element else finder(self.name)(payload)


class Element(NamedTuple):
    """An element of an array in a payload: its number, counted from 0, and its value. `whole` returns the value at a
    path of the whole payload, or None."""

    number: int
    value: Any
    whole: Callable[[str], Any]

    def find(self, place: Place) -> Any:
        """Return the value at a place in the element or the whole payload, or None."""
        return finder(place.name)(self.value) if place.kind is PlaceKind.EACH else self.whole(place.name)


@cache
def finder(path: str) -> Callable[[Any], Any]:
    """Return a function that returns the value at a JMESPath in a parsed payload. The returned function never raises,
    and returns None for a missing value. Paths that consist of names joined by dots are looked up without jmespath.
    Raises ValueError if the path is invalid.
    """
    if len(path) > LONGEST_PATH:
        raise ValueError(f"a path may have at most {LONGEST_PATH} characters")
    if path == ITSELF:
        return lambda payload: payload
    if PLAIN_PATH.fullmatch(path):
        names = path.split(".")

        def look_up(payload: Any) -> Any:
            for name in names:
                if type(payload) is not dict:
                    return None
                payload = payload.get(name)
            return payload

        return look_up
    try:
        expression = jmespath.compile(path)
        if unknown := set(_functions(expression.parsed)) - Functions.FUNCTION_TABLE.keys():
            raise ValueError(f"there is no function {min(unknown)}")
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a valid JMESPath expression: {str(error).partition(chr(10))[0].rstrip(':')} (put names "
            'with characters other than letters, digits and _ in double quotes, such as payload:"device-id")'
        ) from error

    def search(payload: Any) -> Any:
        try:  # a result that JSON cannot hold, such as an integer of 100 digits, counts as missing
            return orjson.loads(orjson.dumps(expression.search(payload)))
        except UNFIT:
            return None

    return search


@cache
def flattened(path: str) -> Callable[[Any], Any] | None:
    """Return a function that finds the array at a plain path that ends with `[]`, such as `readings[]`. Return None for
    any other path. In JMESPath, the brackets also flatten nested arrays by one level. The returned function does not do
    that, so the caller must replace each element that is an array with that array's elements."""
    within = path.removesuffix("[]")
    return finder(within or ITSELF) if within != path and (not within or PLAIN_PATH.fullmatch(within)) else None


def values_in(place: Place, payloads: Sequence[Any]) -> list[Any]:
    """Return the value at a place for each payload or element; None where it is missing. `payloads` may contain None,
    but must not mix elements and whole payloads."""
    if type(next((payload for payload in payloads if payload is not None), None)) is not Element:
        return values_at(place.name, payloads)
    if place.kind is PlaceKind.EACH:
        return values_at(place.name, [None if element is None else element.value for element in payloads])
    return [None if element is None else element.find(place) for element in payloads]


def values_at(path: str, payloads: Sequence[Any]) -> list[Any]:
    """Return the value at a path for each payload; None where it is missing."""
    if PLAIN_NAME.fullmatch(path):
        return [payload.get(path) if type(payload) is dict else None for payload in payloads]
    return list(map(finder(path), payloads))


def id_of(value: Any) -> str | None:
    """Convert a value to an id. The value must be a string or a whole number of at most 64 bits. Return None for any
    other value, for an empty string, and for a string of more than `LONGEST_ID` characters."""
    if isinstance(value, str):
        return value if 0 < len(value) <= LONGEST_ID else None
    is_whole = isinstance(value, int) and not isinstance(value, bool) and value.bit_length() <= 64
    return str(value) if is_whole else None


def _functions(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if node["type"] == "function_expression":
            yield node["value"]
        for child in node["children"]:
            yield from _functions(child)


ELEMENT = "#"
"""Separates the message id from the element's number in the id of a heartbeat. This character cannot occur in Pub/Sub's
message ids, which consist of digits."""

MOST_ELEMENTS = 10_000
"""Maximum number of elements in one message. Without it, Pub/Sub's limit of 10 MB would allow five million elements of
one digit."""

MOST_REPEATED = 16 << 20
"""Maximum total length of the attributes in all rows of one message, in characters. Reason: each row repeats the
message's attributes, and Pub/Sub allows 128 KB of attributes."""

ROWS_AT_ONCE, REPEATED_AT_ONCE = 50_000, 32 << 20
"""Two limits of a group of rows: its number of rows, and the total length of the attributes in them, in characters. A
group ends after the message that reaches a limit."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of the messages `[first, end)` of a batch.

    For each row, `owners` contains the position of the row's message, counted from `first`. `payloads` contains the
    element to judge. A message without usable elements has one row, with a Rejection or Undecided as its payload.
    """

    first: int
    end: int
    owners: Ints
    payloads: Sequence[Element | Rejection | Undecided]

    def rejections(self, by_row: Mapping[int, Rejection]) -> dict[int, Rejection]:
        """Convert the rejections of rows to rejections of messages, keyed by message position, counted from `first`. A
        message is rejected with the reason of its first rejected row."""
        rows = np.array(sorted(by_row, reverse=True), dtype=np.int64)  # reversed: each message keeps its first one
        elements, unusable = np.bincount(self.owners), np.bincount(self.owners[rows])
        rejected: dict[int, Rejection] = {}
        for row in rows.tolist():
            message, first, element = int(self.owners[row]), by_row[row], self.payloads[row]
            if isinstance(element, Element):
                of, cannot = elements[message], f"{unusable[message]} of {elements[message]} elements cannot be used"
                first = Rejection(first.reason, f"element #{element.number} of {of}: {first.detail}; {cannot}")
            rejected[message] = first
        return rejected

    def counted(self, is_heartbeat: Bools) -> Bools:
        """Return a mask of the rows to count on the tracking subscription: each heartbeat, and each message's first
        row that is not a heartbeat. The quarantine, too, has one row per rejected message."""
        rejected = np.flatnonzero(~is_heartbeat)
        counted = is_heartbeat.copy()
        counted[rejected[np.unique(self.owners[rejected], return_index=True)[1]]] = True
        return counted


def suffix(element: Any) -> str:
    """Return the suffix, such as `#3`, that turns the id of a message into the id of its element."""
    return f"{ELEMENT}{element.number}"


def expanded(each: Place, attributes: Attributes, payloads: Sequence[Any]) -> Iterator[Rows]:
    """Yield the rows of messages in groups, in order. No message is split. Without messages, yield one empty group."""
    owners, elements, first, repeated = list[int](), list[Element | Rejection | Undecided](), 0, 0
    for message, (held, payload) in enumerate(zip(attributes.dicts(), payloads, strict=True)):
        is_unread = isinstance(payload, Rejection | Undecided)
        found = payload if is_unread else elements_of(each, held, payload)
        of_message = found if isinstance(found, list) else [found]
        owners += [message - first] * len(of_message)
        elements += of_message
        repeated += len(of_message) * _length(held)
        if len(owners) >= ROWS_AT_ONCE or repeated >= REPEATED_AT_ONCE:
            yield Rows(first, message + 1, np.array(owners, dtype=np.int64), elements)
            owners, elements, first, repeated = [], [], message + 1, 0
    if owners or not first:
        yield Rows(first, len(payloads), np.array(owners, dtype=np.int64), elements)


def elements_of(each: Place, attributes: Mapping[str, str], payload: Any) -> list[Element] | Rejection:
    """Return the elements of a message, or its rejection if `each` is not an array, is empty or is too large."""
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
        wrong = f"{each} has {len(found)} elements; a message may have at most {MOST_ELEMENTS}"
        return Rejection(RejectionReason.TOO_MANY_ELEMENTS, f"{wrong}: publish several messages")
    if len(found) * (length := _length(attributes)) > MOST_REPEATED:
        wrong = f"{each} has {len(found)} elements, each of which would repeat {length} characters of attributes"
        return Rejection(RejectionReason.TOO_MANY_ELEMENTS, f"{wrong}: publish several messages")
    whole = cache(lambda path: finder(path)(payload))  # each path is looked up once for all elements
    return [Element(number, value, whole) for number, value in enumerate(found)]


def _length(attributes: Mapping[str, str]) -> int:
    return sum(len(name) + len(attributes[name]) for name in attributes)

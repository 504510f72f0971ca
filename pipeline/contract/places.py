"""Places of values in a message: an attribute, the payload, an element of the payload's array, or the publish time."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any, NamedTuple

import jmespath
import orjson
from jmespath.exceptions import JMESPathError
from jmespath.functions import Functions

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN_PATH = re.compile(rf"{PLAIN_NAME.pattern}(\.{PLAIN_NAME.pattern})*")
BARE = re.compile(rf"{PLAIN_PATH.pattern}(\[\])?")
"""A path without its prefix."""
ITSELF = "@"
"""The JMESPath of the whole value."""
LONGEST_PATH = 200
"""Most characters of a path. jmespath recurses with a path's nesting; this stays far from Python's recursion limit."""
LONGEST_ID = 1024
"""Most characters of an id from the payload. Pub/Sub allows an attribute value as many bytes."""
UNFIT = (JMESPathError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors that jmespath raises if a path does not fit a payload, such as `length` of a number."""


class PlaceKind(StrEnum):
    """The parts of a message that carry values."""

    ATTRIBUTE = "attribute"
    PAYLOAD = "payload"
    EACH = "each"
    PUBLISH_TIME = "publish_time"


WRITTEN = {
    PlaceKind.ATTRIBUTE: "attribute:NAME",
    PlaceKind.PAYLOAD: "payload:PATH",
    PlaceKind.EACH: "each:PATH",
    PlaceKind.PUBLISH_TIME: "publish_time",
}
"""The notation of each kind in the settings."""


def _what_to_write(text: str, among: Collection[PlaceKind]) -> str:
    """List the allowed forms, with an example that adds the missing prefix to `text` if possible."""
    *others, last = (WRITTEN[kind] for kind in among)
    allowed = f"{', '.join(others)} or {last}" if others else last
    if not BARE.fullmatch(text) or text == PlaceKind.PUBLISH_TIME:
        examples = ["attribute:ts", "payload:device.id"] if others else ["payload:readings[]"]
    elif PlaceKind.ATTRIBUTE in among and PLAIN_NAME.fullmatch(text):
        examples = [f"attribute:{text}", f"payload:{text}"]
    else:
        examples = [f"payload:{text}"]
    return f"write {allowed}, such as {' or '.join(examples)}"


@dataclass(frozen=True, slots=True)
class Place:
    """An attribute by name, a value of the payload or of an element by path, or the publish time."""

    kind: PlaceKind
    name: str = ""

    @classmethod
    def of(cls, text: str, among: Collection[PlaceKind] = tuple(PlaceKind)) -> "Place":
        """Parse `attribute:NAME`, `payload:PATH`, `each:PATH` or `publish_time`. Raises ValueError if the kind is not
        `among` those allowed, which the message lists, or if the path is invalid."""
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
        """Return the value at this place, or None. `payload` may be an Element. Not defined for the publish time."""
        if self.kind is PlaceKind.ATTRIBUTE:
            return attributes.get(self.name)
        if type(payload) is Element:
            return payload.find(self)
        return finder(self.name)(payload)


class WholePayload:
    """A parsed payload that looks up each path once, regardless of the number of elements that need it."""

    __slots__ = ("_found", "_payload")

    def __init__(self, payload: Any) -> None:
        self._payload, self._found = payload, dict[str, Any]()

    def find(self, path: str) -> Any:
        """Return the value at a path, or None."""
        if path not in self._found:
            self._found[path] = finder(path)(self._payload)
        return self._found[path]


class Element(NamedTuple):
    """An element of an array in a payload: its number, its value, and the payload."""

    number: int
    value: Any
    whole: WholePayload

    def find(self, place: Place) -> Any:
        """Return the value at a place of the element or the payload, or None."""
        return finder(place.name)(self.value) if place.kind is PlaceKind.EACH else self.whole.find(place.name)


@cache
def finder(path: str) -> Callable[[Any], Any]:
    """Return a function from a parsed payload to the value at a JMESPath, or None. The function never raises.

    Plain names joined by dots are looked up without jmespath. Raises ValueError for an invalid path.
    """
    if len(path) > LONGEST_PATH:
        raise ValueError(f"a path has at most {LONGEST_PATH} characters")
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
            f"{path} is not a JMESPath: {str(error).partition(chr(10))[0].rstrip(':')} (put names with characters "
            'other than letters, digits and _ in double quotes, such as payload:"device-id")'
        ) from error

    def search(payload: Any) -> Any:
        try:  # a result that JSON cannot hold, such as an integer of 100 digits, counts as none
            return orjson.loads(orjson.dumps(expression.search(payload)))
        except UNFIT:
            return None

    return search


@cache
def flattened(path: str) -> Callable[[Any], Any] | None:
    """Return the finder of the array in a path such as `readings[]`, whose elements are to be flattened; None for other
    paths."""
    within = path.removesuffix("[]")
    return finder(within or ITSELF) if within != path and (not within or PLAIN_PATH.fullmatch(within)) else None


def values_in(place: Place, payloads: Sequence[Any]) -> list[Any]:
    """Return the value at a place of each payload or element, or None. If one payload is an Element, all others must be
    Elements or None."""
    if type(next((payload for payload in payloads if payload is not None), None)) is not Element:
        return values_at(place.name, payloads)
    if place.kind is PlaceKind.EACH:
        return values_at(place.name, [None if element is None else element.value for element in payloads])
    return [None if element is None else element.find(place) for element in payloads]


def values_at(path: str, payloads: Sequence[Any]) -> list[Any]:
    """Return the value at a path in each payload, or None."""
    if PLAIN_NAME.fullmatch(path):
        return [payload.get(path) if type(payload) is dict else None for payload in payloads]
    return list(map(finder(path), payloads))


def id_of(value: Any) -> str | None:
    """Return a text, or a whole number of at most 64 bits, from the payload as an id. None for any other value, an
    empty text, and a text longer than `LONGEST_ID`."""
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

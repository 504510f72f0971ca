"""Bounds of one payload, checked before a parser makes objects of it. They depend on its bytes alone."""

import re

from tidemark.pipeline.contract.payloads.rejections import Unreadable

MOST_VALUES = 1_000_000
"""Values of one payload: numbers, texts, objects, arrays. As Python objects, a value takes up to some 300 bytes."""

DEEPEST = 64
"""Levels of a schema, and so of its values: their readers recurse."""

TEXT = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class TooMany(Unreadable):
    """A payload has more than `MOST_VALUES`."""

    def __init__(self) -> None:
        super().__init__(f"more than {MOST_VALUES} values")


class TooDeep(Unreadable):
    """A payload has more levels than `DEEPEST`."""

    def __init__(self) -> None:
        super().__init__(f"more than {DEEPEST} levels")


class Budget:
    """How many values and levels one payload may still have."""

    def __init__(self) -> None:
        self.left = MOST_VALUES
        self._deeper = DEEPEST

    def take(self, values: int) -> None:
        """Count values. Raises TooMany."""
        self.left -= values
        if self.left < 0:
            raise TooMany

    def enter(self) -> None:
        """What follows is a level deeper. Raises TooDeep."""
        self._deeper -= 1
        if self._deeper < 0:
            raise TooDeep

    def leave(self) -> None:
        """What follows is a level higher."""
        self._deeper += 1


def refuse_many_values(text: bytes, an_object: int = 1) -> None:
    """Raise TooMany for a JSON text of too many values, of which each object counts as `an_object` values.

    A value follows a comma or an opening bracket, so that these are counted, without what is quoted.
    """
    if len(text) * an_object <= MOST_VALUES or _values(text, an_object) <= MOST_VALUES:
        return
    if _values(TEXT.sub(b'""', text), an_object) > MOST_VALUES:
        raise TooMany


def _values(text: bytes, an_object: int) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{") * an_object

"""A cache for objects that a process creates once, such as clients, tables and the state read from the log."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeVar, cast

Made = TypeVar("Made")


class Kept:
    """A cache of objects by key. Beyond `at_most` objects, the oldest are evicted. A new process starts with an empty
    cache, and every object can be created again."""

    def __init__(self, at_most: int | None = None) -> None:
        self._made: dict[Hashable, Any] = {}
        self._at_most = at_most

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """Return the object of this key; the first call creates it. Concurrent first calls may each call `make`, but
        all return the same object."""
        with suppress(KeyError):
            return cast("Made", self._made[key])
        made = self._made.setdefault(key, make())  # other threads may evict it at once
        for oldest in list(self._made)[: -self._at_most or None] if self._at_most else ():
            self._made.pop(oldest, None)
        return cast("Made", made)

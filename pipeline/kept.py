"""Objects that a process makes once and keeps: clients, tables, and the log's fold."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar, cast

Made = TypeVar("Made")


class Kept:
    """Objects by key, at most so many: the ones that were made first go. It is a cache: a new process begins with an
    empty one, and everything in it can be made again."""

    def __init__(self, at_most: int | None = None) -> None:
        self._made: dict[Hashable, Any] = {}
        self._at_most = at_most

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The object of this key, made by the first call. Of threads that make it at once, all get the same one."""
        if key not in self._made:
            self._made.setdefault(key, make())
            for oldest in list(self._made)[: -self._at_most or None] if self._at_most else ():
                self._made.pop(oldest, None)
        return cast("Made", self._made[key])

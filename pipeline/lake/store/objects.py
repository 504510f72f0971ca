"""Create-only objects behind one small protocol, and which implementation a lake's address means."""

from collections.abc import Iterator
from typing import Protocol


class ObjectStore(Protocol):
    """Named, immutable objects.

    Guarantee of every implementation: an object appears whole or not at all, exactly one of any number of
    concurrent creators of a name succeeds, and an object that was created is durable and visible to all.
    Names are `/`-separated paths of letters, digits, `.`, `_`, `-` and `=`; content is bounded by memory.
    """

    @property
    def uri(self) -> str:
        """Where the objects are, as a person would write it."""
        ...

    def create(self, name: str, content: bytes) -> None:
        """Write a new object. A repeated create of the same content by the same caller may succeed again.

        Raises ObjectExists (somebody else's is there), LakeFull, LakeUnwritable, LakeUnreachable.
        """
        ...

    def read(self, name: str) -> bytes:
        """The content. Raises ObjectMissing, LakeUnreachable."""
        ...

    def names(self, prefix: str) -> Iterator[str]:
        """The names that start with `prefix`, in order. A folder that is not there has none."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; one that is not there is no error. Only housekeeping and repairs delete."""
        ...

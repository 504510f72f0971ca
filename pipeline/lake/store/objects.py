"""The protocol of a store of create-only objects."""

from collections.abc import Iterator
from typing import Protocol


class ObjectStore(Protocol):
    """Named, immutable objects.

    Every implementation guarantees: an object appears whole or not at all; exactly one of any number of concurrent
    creators of a name succeeds; a created object is durable and visible to all. Names are `/`-separated paths of
    letters, digits, `.`, `_`, `-` and `=`. Content fits in memory.
    """

    @property
    def uri(self) -> str:
        """Where the objects are, for people."""

    def create(self, name: str, content: bytes) -> None:
        """Write a new object. Raises ObjectExists if another creator's is there, LakeFull, LakeUnwritable,
        LakeUnreachable."""

    def read(self, name: str) -> bytes:
        """The content. Raises ObjectMissing, LakeUnreachable."""

    def names(self, prefix: str) -> Iterator[str]:
        """The names that start with `prefix`, in order."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists. Only housekeeping and repairs delete."""

"""The protocols of a store of objects: create-only, or replaced where derived; and a count of a bucket's calls."""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import timedelta
from threading import Lock
from typing import Protocol

LOCAL_PROJECT = "tidemark-local"
"""The project named to a server on loopback, which has none of its own."""
RETRY_FOR = timedelta(seconds=10)
"""No attempt of an operation starts later than this after the first."""

CLASSES = {"create": "A", "list": "A", "get": "B", "delete": "free"}
"""The class by which Cloud Storage charges each call for a single file."""

_lock = Lock()
_counted: Counter[str] = Counter()


def count_call(call: str) -> None:
    """Count an attempt at a call of a bucket. Safe from several threads."""
    with _lock:
        _counted[call] += 1


def counted_calls() -> Mapping[str, int]:
    """The calls of buckets since the process began, by name."""
    with _lock:
        return dict(_counted)


class ObjectStore(Protocol):
    """Named objects: immutable ones, and derived ones that are replaced.

    Every implementation guarantees: an object appears whole or not at all; exactly one of any number of concurrent
    creators of a name succeeds; a created object is durable and visible to all. Names are `/`-separated paths of
    letters, digits, `.`, `_`, `-` and `=`. Content fits in memory.

    A generation is a number that stands for one writing of an object; 0 stands for none. Of any number of concurrent
    writers over one generation at most one succeeds, and readers see the earlier content or the later one, whole.
    `read_generation` and `replace` try once and wait a few seconds at most, for callers with little time.
    """

    @property
    def uri(self) -> str:
        """The address of the objects, for people."""

    def create(self, name: str, content: bytes) -> None:
        """Write a new object. Raises ObjectExists if another creator's is there, LakeFull, LakeUnwritable,
        LakeUnreachable."""

    def read(self, name: str) -> bytes:
        """The content. Raises ObjectMissing, LakeUnreachable."""

    def read_generation(self, name: str) -> tuple[bytes, int]:
        """The content and its generation. Raises ObjectMissing, LakeError."""

    def replace(self, name: str, content: bytes, generation: int) -> int:
        """Write an object over this generation of it, and return its new one. Raises ObjectReplaced if another one is
        there, or another writer is at it; LakeError, after which it may or may not have been written."""

    def names(self, prefix: str) -> Iterator[str]:
        """The names that start with `prefix`, in order."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists. Only housekeeping and repairs delete."""

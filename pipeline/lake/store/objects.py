"""The protocol of an object store. Also counts the calls to a bucket, and reads objects in parallel, because each read
in a bucket is a separate request."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from threading import Lock
from typing import Protocol, TypeVar

LOCAL_PROJECT = "tidemark-local"
"""The project ID sent to a server on loopback, which has no projects."""
RETRY_FOR = timedelta(seconds=10)
"""Maximum time from the first attempt of an operation to the start of the last attempt."""

CLASSES = {"create": "A", "list": "A", "get": "B", "delete": "free"}
"""The operation class in which Cloud Storage bills each call."""

_lock = Lock()
_counted: Counter[str] = Counter()


def count_call(call: str) -> None:
    """Count an attempted bucket call. Thread-safe."""
    with _lock:
        _counted[call] += 1


def counted_calls() -> Mapping[str, int]:
    """Return the number of bucket calls since the process started, by call name."""
    with _lock:
        return dict(_counted)


class ObjectStore(Protocol):
    """Named objects: immutable ones, and derived ones that can be replaced.

    Guarantees of every implementation: An object appears whole or not at all. If several writers create a name
    concurrently, exactly one succeeds. A created object is durable and visible to all. Names are `/`-separated paths of
    letters, digits, `.`, `_`, `-` and `=`. Content fits in memory.

    A generation is a number that identifies one write of an object; 0 means that the object does not exist. If several
    writers replace the same generation concurrently, at most one succeeds. Readers see the old or the new content,
    always whole. `read_generation` and `replace` try once and wait a few seconds at most, for callers with little time.
    """

    @property
    def uri(self) -> str:
        """The human-readable address of the objects."""

    def create(self, name: str, content: bytes) -> None:
        """Write a new object. Raises ObjectExists if another creator took the name, LakeFull, LakeUnwritable,
        LakeUnreachable."""

    def read(self, name: str) -> bytes:
        """Return the content. Raises ObjectMissing, LakeUnreachable."""

    def read_generation(self, name: str) -> tuple[bytes, int]:
        """Return the content and its generation. Raises ObjectMissing, LakeError."""

    def replace(self, name: str, content: bytes, generation: int) -> int:
        """Overwrite this generation of an object, and return the new generation. Raises ObjectReplaced if the object
        has another generation or another writer is replacing it. After any other LakeError, the write may or may not
        have happened."""

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with `prefix`, in order."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists. Only housekeeping and repairs delete."""


Item = TypeVar("Item")
Read = TypeVar("Read")

READERS = 8
"""Number of objects read in parallel."""
READ_AHEAD = 4 * READERS
"""Maximum number of results held in memory before they are consumed."""


def read_ahead(read: Callable[[Item], Read], items: Iterable[Item]) -> Iterator[tuple[Item, Read]]:
    """Yield each item with the result of `read`, in the given order. `read` is called from several threads."""
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
    try:
        reads = ((item, pool.submit(read, item)) for item in items)
        asked = deque(islice(reads, READ_AHEAD))
        while asked:
            item, found = asked.popleft()
            yield item, found.result()
            asked.extend(islice(reads, 1))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

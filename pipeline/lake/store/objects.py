"""The protocol of an object store, a counter of the calls to a bucket, and a function that reads many objects in
parallel."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import islice
from threading import Lock
from typing import Protocol, TypeVar

LOCAL_PROJECT = "tidemark-local"
"""Project ID in requests to a server on loopback. Such a server has no projects."""
RETRY_FOR = timedelta(seconds=15)
"""Maximum time from the start of an operation's first attempt to the start of its last one."""

CLASSES = {"create": "A", "list": "A", "get": "B", "delete": "free"}
"""The billing class of each kind of bucket call in Cloud Storage."""

Before = Callable[[str], None]
"""A function that a store calls before each of its operations, with the kind of call, a key of CLASSES. If the function
raises a LakeError, the operation does nothing and raises that error."""

_lock = Lock()
_counted: Counter[str] = Counter()


def allow(_call: str) -> None:
    """Allow every call (see Before)."""


def count_call(call: str) -> None:
    """Count one attempt of a bucket call. `call` is a key of CLASSES. Thread-safe."""
    with _lock:
        _counted[call] += 1


def counted_calls() -> Mapping[str, int]:
    """Return how many bucket calls of each kind this process has made."""
    with _lock:
        return dict(_counted)


class ObjectStore(Protocol):
    """A store of named objects. Most objects are immutable. Some are replaceable; their content can be derived again.

    Every implementation guarantees:
    - An object appears complete or not at all.
    - If several writers create the same name concurrently, exactly one succeeds.
    - A created object is durable and visible to all readers.
    - If several writers replace the same generation of an object concurrently, at most one succeeds.
    - A reader of a replaceable object sees either its complete old content or its complete new content.

    A name is a path of letters, digits, `.`, `_`, `-` and `=`, separated by `/`. Content fits in memory. The generation
    of an object is a number that identifies its last write; 0 means that the object does not exist. `read_generation`
    and `replace` make one attempt, which takes a few seconds at most.
    """

    @property
    def uri(self) -> str:
        """The address of the store, for error messages."""

    def create(self, name: str, content: bytes) -> None:
        """Write a new object. Raises ObjectExists if another writer has created an object of this name. Also raises
        other LakeErrors, such as LakeFull."""

    def read(self, name: str) -> bytes:
        """Return the content of an object. Raises ObjectMissing and LakeError."""

    def read_generation(self, name: str) -> tuple[bytes, int]:
        """Return the content and the generation of an object. Raises ObjectMissing and LakeError."""

    def replace(self, name: str, content: bytes, generation: int) -> int:
        """Overwrite the object if it still has this generation, and return its new generation. Raises ObjectReplaced if
        it has another generation, or if another writer is replacing it right now. After any other LakeError, it is
        unknown whether the object was overwritten."""

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with `prefix`, in order. Raises LakeError."""

    def delete(self, name: str) -> None:
        """Delete an object if it exists. Raises LakeError."""


Item = TypeVar("Item")
Read = TypeVar("Read")

READERS = 8
READ_AHEAD = 4 * READERS
"""Default number of items that `read_ahead` reads ahead."""


def read_ahead(
    read: Callable[[Item], Read], items: Iterable[Item], ahead: int = READ_AHEAD
) -> Iterator[tuple[Item, Read]]:
    """Call `read` for each item in parallel threads. Yield each item with its result, in the order of `items`. At most
    `ahead` items are read before the caller takes their results."""
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="reader")
    try:
        reads = ((item, pool.submit(read, item)) for item in items)
        asked = deque(islice(reads, ahead))
        while asked:
            item, found = asked.popleft()
            yield item, found.result()
            asked.extend(islice(reads, 1))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

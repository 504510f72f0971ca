"""Reads many objects in order, several in parallel: in a bucket, each read is a separate request."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

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

"""Reads many objects in order, several at a time: on a bucket, each is a request of its own."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")
Read = TypeVar("Read")

READERS = 8
"""Objects read at the same time."""
READ_AHEAD = 4 * READERS
"""The most that is held in memory before it is used."""


def read_ahead(read: Callable[[Item], Read], items: Iterable[Item]) -> Iterator[tuple[Item, Read]]:
    """Yield each item with what `read` returns for it, in the order given. `read` is called from several threads."""
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

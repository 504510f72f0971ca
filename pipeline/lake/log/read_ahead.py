"""Reads many entries of a log in order, several at a time."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

READERS = 8
"""Entries read at the same time. On a bucket each is a request."""
READ_AHEAD = 4 * READERS
"""The most entries held in memory before they are used."""


def read_ahead(read: Callable[[int], T], numbers: Iterable[int]) -> Iterator[tuple[int, T]]:
    """What `read` returns for each number, in the order given. `read` is called from several threads."""
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="tracking-log")
    asked: deque[tuple[int, Future[T]]] = deque()
    try:
        for number in numbers:
            asked.append((number, pool.submit(read, number)))
            if len(asked) >= READ_AHEAD:
                first, entry = asked.popleft()
                yield first, entry.result()
        while asked:
            first, entry = asked.popleft()
            yield first, entry.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

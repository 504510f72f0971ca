"""Counts what this process asks of buckets: an integer a call, whether anybody looks or not."""

from collections import Counter
from collections.abc import Mapping
from threading import Lock

CLASSES = {"create": "A", "list": "A", "get": "B", "delete": "free"}
"""How Cloud Storage charges the calls that tidemark makes for single files."""

_lock = Lock()
_counted: Counter[str] = Counter()


def count(call: str) -> None:
    """One attempt at a call was made. Safe from several threads."""
    with _lock:
        _counted[call] += 1


def counted() -> Mapping[str, int]:
    """The calls since the process began, by name."""
    with _lock:
        return dict(_counted)

"""Copies: messages that a publisher sent again, with the same stream, id, event time and payload.

A copy does not hold the watermark if its first copy is in the log. The first copy holds it until it has landed.
"""

import uuid
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.watermark.histogram import Ints

MOST_REMEMBERED = 1_000_000
"""Maximum number of remembered messages: 16 MB, or ten minutes at 1,600 messages a second."""

ATTEMPTS_NOTED = 4
"""Maximum number of a process's attempts that may still be settled: a round runs while the previous one is settled."""


class RememberedCopies:
    """The tracked messages that this process has made durable, each with its smallest publish time.

    Guarantee: `are_copies` is true only for a message that was remembered with an earlier or equal publish time. A
    message is remembered only after the attempt that counted it is in the log. Messages beyond `at_most`, or older than
    `within`, are forgotten. A forgotten message counts as a first copy, which at worst holds the watermark longer.

    A message is identified by a 64-bit hash of its key, salted with the process's secret. With a million messages
    remembered, the chance of a false match is 1 in 10 trillion; such a message may be late.
    """

    def __init__(self, within: timedelta = timedelta(0), at_most: int = MOST_REMEMBERED) -> None:
        self._within_us, self._at_most = duration_us(within), at_most if within else 0
        self._keys, self._publish_us = np.empty((2, 0), dtype=np.int64)
        self._noted: dict[str, tuple[Ints, Ints]] = {}

    @property
    def is_on(self) -> bool:
        """True if this process remembers messages."""
        return self._at_most > 0

    def are_copies(self, keys: Ints, publish_us: Ints) -> npt.NDArray[np.bool_]:
        """Return a mask of the messages for which a copy with an earlier or equal publish time is remembered."""
        if not len(self._keys):
            return np.zeros(len(keys), dtype=np.bool_)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known: npt.NDArray[np.bool_] = (self._keys[place] == keys) & (self._publish_us[place] <= publish_us)
        return known

    def note(self, keys: Ints, publish_us: Ints) -> str:
        """Note the messages that an attempt counted in full, and return the attempt's name."""
        attempt = uuid.uuid4().hex
        if self.is_on and len(keys):
            self._noted[attempt] = keys, publish_us
        return attempt

    def settle(self, attempts: Collection[str]) -> None:
        """Remember the messages of these attempts, which are now in the log, and drop older attempts."""
        for attempt in [name for name in self._noted if name in attempts]:
            self._remember(*self._noted.pop(attempt))
        for name in list(self._noted)[:-ATTEMPTS_NOTED]:
            del self._noted[name]

    def _remember(self, keys: Ints, publish_us: Ints) -> None:
        oldest_us = max(int(column.max()) for column in (publish_us, self._publish_us) if len(column)) - self._within_us
        order = np.lexsort((publish_us, keys))
        keys, publish_us = keys[order], publish_us[order]
        first = np.ones(len(keys), dtype=np.bool_)
        first[1:] = keys[1:] != keys[:-1]
        keys, publish_us = self._merged(keys[first], publish_us[first])
        kept = publish_us >= oldest_us
        if np.count_nonzero(kept) > self._at_most:
            kept = np.zeros(len(keys), dtype=np.bool_)
            kept[np.argpartition(publish_us, -self._at_most)[-self._at_most :]] = True
        self._keys, self._publish_us = (keys, publish_us) if kept.all() else (keys[kept], publish_us[kept])

    def _merged(self, keys: Ints, publish_us: Ints) -> tuple[Ints, Ints]:
        """Merge messages with sorted, unique keys into the memory, without sorting the memory itself, which is long."""
        place = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), dtype=np.bool_)
        inside = place < len(self._keys)
        known[inside] = self._keys[place[inside]] == keys[inside]
        least_us = self._publish_us.copy()
        least_us[place[known]] = np.minimum(least_us[place[known]], publish_us[known])
        new = ~known
        return np.insert(self._keys, place[new], keys[new]), np.insert(least_us, place[new], publish_us[new])


def keys_of(*columns: Iterable[Any]) -> Ints:
    """Hash each message's stream, id, event time and payload, which copies share. The payload is included because base
    may reject one payload and accept another."""
    return np.fromiter(map(hash, zip(*columns, strict=True)), dtype=np.int64)

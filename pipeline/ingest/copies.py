"""Copies: messages that a publisher sent again, with the same stream, id, event time and payload.

A copy whose first copy is in the log does not hold the watermark: the first one does, until it has landed.
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
"""Messages that are remembered at most: 16 MB, and ten minutes of 1,600 a second."""

ATTEMPTS_NOTED = 4
"""Attempts of a process that may still be settled: one round is under way while the one before is."""


class RememberedCopies:
    """The messages that this process has made durable on tracking: for each the least publish time.

    Guarantee: `are_copies` says so only of a message that was remembered with an earlier or equal publish time, and one
    is remembered only after its histogram is an entry of the log: by the attempt that was counted there. What is
    forgotten, by its publish time or beyond `at_most`, counts as a first copy, which only holds the watermark longer.

    A message is known by a 64-bit hash of its key, with the secret of the process. Beside a million others it is taken
    for a copy of one by mistake with a chance of 1 in 10 trillion; then it may be late.
    """

    def __init__(self, within: timedelta = timedelta(0), at_most: int = MOST_REMEMBERED) -> None:
        self._within_us, self._at_most = duration_us(within), at_most if within else 0
        self._keys, self._publish_us = np.empty((2, 0), dtype=np.int64)
        self._noted: dict[str, tuple[Ints, Ints]] = {}

    @property
    def is_on(self) -> bool:
        """True if anything is ever remembered."""
        return self._at_most > 0

    def are_copies(self, keys: Ints, publish_us: Ints) -> npt.NDArray[np.bool_]:
        """Tell for each message whether an earlier copy, or one of the same publish time, is remembered."""
        if not len(self._keys):
            return np.zeros(len(keys), dtype=np.bool_)
        place = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known: npt.NDArray[np.bool_] = (self._keys[place] == keys) & (self._publish_us[place] <= publish_us)
        return known

    def note(self, keys: Ints, publish_us: Ints) -> str:
        """Note messages that an attempt has counted in full. The attempt's name."""
        attempt = uuid.uuid4().hex
        if self.is_on and len(keys):
            self._noted[attempt] = keys, publish_us
        return attempt

    def settle(self, attempts: Collection[str]) -> None:
        """Remember what these attempts have counted, which is in the log now, and drop what is older."""
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
        """Merge messages, whose keys are in order and unique, into the memory. Sorts nothing: the memory is long."""
        place = np.searchsorted(self._keys, keys)
        known = np.zeros(len(keys), dtype=np.bool_)
        inside = place < len(self._keys)
        known[inside] = self._keys[place[inside]] == keys[inside]
        least_us = self._publish_us.copy()
        least_us[place[known]] = np.minimum(least_us[place[known]], publish_us[known])
        new = ~known
        return np.insert(self._keys, place[new], keys[new]), np.insert(least_us, place[new], publish_us[new])


def keys_of(*columns: Iterable[Any]) -> Ints:
    """Hash what makes messages copies of one heartbeat, to a number each: stream, id, event time, and payload, as base
    may reject one payload and accept another."""
    return np.fromiter(map(hash, zip(*columns, strict=True)), dtype=np.int64)

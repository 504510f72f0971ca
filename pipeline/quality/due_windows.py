"""Which windows of a table of one's own are due: not computed yet, or computed before `heartbeat_diffs` was again.

The table follows `heartbeat_diffs`. A digest of the runs that computed the windows of `heartbeat_diffs` over a window's
input stands for that input. Where one of them was computed again, because heartbeats were missed, files were damaged or
somebody asked, the digest is another one and the window is due.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.lake.tables.own_table import Made
from tidemark.pipeline.windows import Window, Windowing

NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The windows that have input, by number in order, and the digest of each one's input."""

    windowing: Windowing
    numbers: npt.NDArray[np.int64]
    digests: npt.NDArray[np.uint64]

    def digest(self, window: Window) -> str:
        """The digest of a window's input."""
        number = self.windowing.number_of(window.start)
        at = int(np.searchsorted(self.numbers, number))
        is_there = at < len(self.numbers) and int(self.numbers[at]) == number
        return _text(int(self.digests[at]) if is_there else 0)


def inputs_of(runs: Mapping[str, str], base: Windowing, own: Windowing, lookback: timedelta) -> Inputs:
    """The inputs of a table with windows like `own` that look back by `lookback`. `runs` says which run computed each
    window of `heartbeat_diffs`, whose windows are like `base`."""
    keys = sorted(runs)
    numbers = np.array([base.number_of(base.named(key).start) for key in keys], dtype=np.int64)
    hashes = np.array([_hash(f"{key} {runs[key]}") for key in keys], dtype=np.uint64)
    if not keys:
        return Inputs(own, numbers, hashes)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes, dtype=np.uint64)])
    ratio, back = own.length // base.length, -(-lookback // base.length)
    reached = np.unique(np.concatenate([numbers // ratio + step for step in range(-(-back // ratio) + 1)]))
    low, high = np.searchsorted(numbers, reached * ratio - back), np.searchsorted(numbers, (reached + 1) * ratio)
    has_any = high > low
    return Inputs(own, reached[has_any], (sums[high] - sums[low])[has_any])


@dataclass(frozen=True, slots=True)
class Followed:
    """`heartbeat_diffs` as tables follow it: the run that computed each window, the closed windows, and those of them
    that are still to be computed, by number. `is_expiring`: heartbeats before them are not kept, but for the lookback.
    """

    windowing: Windowing
    lookback: timedelta
    runs: Mapping[str, str]
    closed: range
    waiting: Sequence[range]
    is_expiring: bool = False

    def due(self, own: Windowing, lookback: timedelta, made: Mapping[str, Made]) -> list[int]:
        """The numbers of the due windows of a table with windows like `own` that look back by `lookback`, in order, by
        what made those that are computed. A window whose input is still to be computed in `heartbeat_diffs` is not due:
        it would be computed twice."""
        inputs, whole = inputs_of(self.runs, self.windowing, own, lookback), self._whole(own, lookback)
        ratio, back = own.length // self.windowing.length, -(-lookback // self.windowing.length)
        waiting = [range(span.start // ratio, (span.stop - 1 + back) // ratio + 1) for span in self.waiting]
        found = []
        for number, digest in zip(inputs.numbers.tolist(), inputs.digests.tolist(), strict=True):
            if number in whole and not any(number in span for span in waiting):
                there = made.get(own.numbered(number).key)
                if there is None or there.input != _text(digest):
                    found.append(number)
        return found

    def _whole(self, own: Windowing, lookback: timedelta) -> range:
        """The windows that lie wholly in the closed ones, and whose input is kept."""
        ratio, further = own.length // self.windowing.length, further_back(lookback, self.lookback)
        expired = -(-further // self.windowing.length) if self.is_expiring else 0
        return range(-(-(self.closed.start + expired) // ratio), self.closed.stop // ratio)


def further_back(lookback: timedelta, of_diffs: timedelta) -> timedelta:
    """By how much a table looks back further than `heartbeat_diffs`, whose lookback says which heartbeats are kept."""
    return max(lookback - of_diffs, NO_TIME)


def newest_stretch(due: Iterable[int], at_most: int) -> range:
    """The newest due windows without a gap between them, at most so many."""
    newest = sorted(due)[-at_most:]
    first, there = newest[-1], set(newest)
    while first - 1 in there:
        first -= 1
    return range(first, newest[-1] + 1)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _text(digest: int) -> str:
    return f"{digest:016x}"

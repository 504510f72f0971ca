"""Which windows of a table of one's own are due: not computed yet, or computed from less than `heartbeat_diffs` is now.

The table follows `heartbeat_diffs`. A window's *input* is told by the runs that computed the windows of
`heartbeat_diffs` over it: where one of them was computed again, because heartbeats were missed, files were damaged or
somebody asked, the digest of the input changes and the window is due again.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.lake.tables.own_table import Made
from tidemark.pipeline.windows import Window, Windowing

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Inputs:
    """The windows of a table of one's own that have input, by number in order, and the digest of each one's input."""

    windowing: Windowing
    numbers: Numbers
    digests: npt.NDArray[np.uint64]

    def digest(self, window: Window) -> str:
        """The digest of a window's input."""
        at = int(np.searchsorted(self.numbers, number := self.windowing.number_of(window.start)))
        is_there = at < len(self.numbers) and int(self.numbers[at]) == number
        return f"{int(self.digests[at]) if is_there else 0:016x}"

    def due(self, made: Mapping[str, Made], closed: range, waiting: Iterable[range]) -> list[int]:
        """The numbers of the due windows within `closed`, in order. A window whose input overlaps one that is `waiting`
        is not due: it would be computed twice."""
        found = []
        spans = sorted((span.start, span.stop) for span in waiting)
        for number, digest in zip(self.numbers.tolist(), self.digests.tolist(), strict=True):
            if number not in closed or any(start <= number < stop for start, stop in spans):
                continue
            there = made.get(self.windowing.numbered(number).key)
            if there is None or there.input != f"{digest:016x}":
                found.append(number)
        return found


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
    low = np.searchsorted(numbers, reached * ratio - back)
    high = np.searchsorted(numbers, (reached + 1) * ratio)
    has_any = high > low
    return Inputs(own, reached[has_any], (sums[high] - sums[low])[has_any])


def overlapping(due: Iterable[range], base: Windowing, own: Windowing, lookback: timedelta) -> list[range]:
    """The windows like `own` whose input overlaps one of these windows like `base`."""
    ratio, back = own.length // base.length, -(-lookback // base.length)
    return [range(span.start // ratio, (span.stop - 1 + back) // ratio + 1) for span in due]


def whole_windows(closed: range, base: Windowing, own: Windowing, further: timedelta = timedelta(0)) -> range:
    """The windows like `own` that lie wholly in these neighbouring windows like `base`, but for what is `further` from
    their beginning: input that is not kept any more."""
    ratio = own.length // base.length
    return range(-(-(closed.start + -(-further // base.length)) // ratio), closed.stop // ratio)


def newest_stretch(due: Sequence[int], at_most: int) -> range:
    """The newest due windows without a gap between them, at most so many."""
    first = last = due[-1]
    newest = set(due[-at_most:])
    while first - 1 in newest:
        first -= 1
    return range(first, last + 1)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

"""The due windows of a custom table: not computed yet, or computed before `heartbeat_diffs` was computed again.

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

from tidemark.pipeline.lake.tables.own_table import MadeWindows
from tidemark.pipeline.lake.tables.window_index import KeptWindows, WindowIndex, window_numbers
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


@dataclass(frozen=True, slots=True)
class ComputedWindows:
    """The windows of `heartbeat_diffs` that are computed, by number in order, and `sums`, with one more: those of the
    hashes of all windows before, so that a difference stands for any stretch of them."""

    windowing: Windowing
    numbers: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, runs: Mapping[str, str], windowing: Windowing) -> "ComputedWindows":
        """From the run that computed each window, by its key. Windows of another length are left out."""
        numbers, is_of_length = window_numbers(list(runs), windowing)
        hashes = np.array([_hash(f"{key} {run}") for key, run in runs.items()], dtype=np.uint64)[is_of_length]
        numbers = numbers[is_of_length]
        order = np.argsort(numbers)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes[order], dtype=np.uint64)])
        return cls(windowing, numbers[order], sums)

    def inputs(self, own: Windowing, lookback: timedelta) -> Inputs:
        """The inputs of a table with windows like `own` that look back by `lookback`."""
        ratio, back = self._measures(own, lookback)
        reached = np.unique(np.concatenate([self.numbers // ratio + step for step in range(-(-back // ratio) + 1)]))
        low = np.searchsorted(self.numbers, reached * ratio - back)
        high = np.searchsorted(self.numbers, (reached + 1) * ratio)
        has_any = high > low
        return Inputs(own, reached[has_any], (self.sums[high] - self.sums[low])[has_any])

    def reached_by(self, spans: Iterable[range], own: Windowing, lookback: timedelta) -> list[range]:
        """The windows like `own` whose input overlaps one of these stretches."""
        ratio, back = self._measures(own, lookback)
        return [range(span.start // ratio, (span.stop - 1 + back) // ratio + 1) for span in spans]

    def within(self, closed: range, own: Windowing, expired: timedelta) -> range:
        """The windows like `own` that lie wholly in a stretch, except what has `expired` of its beginning."""
        ratio, first = self._measures(own, expired)
        return range(-(-(closed.start + first) // ratio), closed.stop // ratio)

    def _measures(self, own: Windowing, time: timedelta) -> tuple[int, int]:
        """The length of a window like `own`, and a time, rounded up, in windows."""
        return own.length // self.windowing.length, -(-time // self.windowing.length)


@dataclass(frozen=True, slots=True)
class Followed:
    """`heartbeat_diffs` as tables follow it: its computed windows, how far it looks back, the closed windows, and those
    of them that are still to be computed, by number. `is_expiring`: heartbeats before them are not kept, except the
    lookback."""

    computed: ComputedWindows
    lookback: timedelta
    closed: range
    waiting: Sequence[range]
    is_expiring: bool = False

    @classmethod
    def read(
        cls, computed: ComputedWindows, lookback: timedelta, closed: range, index: WindowIndex, kept: KeptWindows
    ) -> "Followed":
        """Read the state of the lake now. Raises LakeError."""
        return cls(computed, lookback, closed, list(index.update().due(closed)), kept.since() is not None)

    def due(self, own: Windowing, lookback: timedelta, made: MadeWindows) -> list[int]:
        """The numbers of the due windows of a table with windows like `own` that look back by `lookback`, in order, by
        what made those that are computed. A window whose input is still to be computed in `heartbeat_diffs` is not due:
        it would be computed twice. Raises LakeError."""
        inputs, waiting = self.computed.inputs(own, lookback), self.computed.reached_by(self.waiting, own, lookback)
        expired = further_back(lookback, self.lookback) if self.is_expiring else NO_TIME
        whole = self.computed.within(self.closed, own, expired)
        keys = [own.numbered(number).key for number in inputs.numbers.tolist()]
        done = made.made_of(dict(zip(keys, map(_text, inputs.digests.tolist()), strict=True)))
        return [
            number
            for number, key in zip(inputs.numbers.tolist(), keys, strict=True)
            if key not in done and number in whole and not any(number in span for span in waiting)
        ]


def further_back(lookback: timedelta, of_diffs: timedelta) -> timedelta:
    """The time that a table looks back further than `heartbeat_diffs`, whose lookback says which heartbeats are
    kept."""
    return max(lookback - of_diffs, NO_TIME)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _text(digest: int) -> str:
    return f"{digest:016x}"

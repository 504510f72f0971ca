"""Finds the windows of a custom table that are due: not computed yet, or computed from windows of `heartbeat_diffs`
that have since been recomputed.

The input of a custom table's window is a range of windows of `heartbeat_diffs`. The digest of this input is derived
from the runs that computed these windows. If a window of the input is recomputed, the digest changes, and the custom
table's window is due.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.window_index import window_numbers
from tidemark.pipeline.lake.tables.windowed import MadeWindows
from tidemark.pipeline.windows import Spans, Window, Windowing

NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class ComputedWindows:
    """The computed windows of `heartbeat_diffs`, from which digests of ranges of windows are calculated.

    `numbers` are the windows' numbers, ascending. Each window has a hash of its key and its run. `sums[n]` is the sum
    of the first n hashes. The difference of two sums is therefore a digest of a range of windows.
    """

    windowing: Windowing
    numbers: npt.NDArray[np.int64]
    sums: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, runs: Mapping[str, str], windowing: Windowing) -> "ComputedWindows":
        """Build an instance from `runs`, which maps the key of each computed window to the run that computed the
        window. Windows of a different length are left out."""
        numbers, is_of_length = window_numbers(list(runs), windowing)
        hashes = np.array([_hash(f"{key} {run}") for key, run in runs.items()], dtype=np.uint64)[is_of_length]
        numbers = numbers[is_of_length]
        order = np.argsort(numbers)
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes[order], dtype=np.uint64)])
        return cls(windowing, numbers[order], sums)

    def inputs(self, own: Windowing) -> dict[int, str]:
        """Return the digest of each window's input, keyed by the window's number, in order. The windows are those of a
        custom table with the windowing `own`; windows without input are left out. A digest has 16 hexadecimal
        digits."""
        ratio, back = self._measures(own, own.lookback)
        reached = np.unique(np.concatenate([self.numbers // ratio + step for step in range(-(-back // ratio) + 1)]))
        digests, has_any = self._digests(reached, own)
        found = zip(reached[has_any].tolist(), digests[has_any].tolist(), strict=True)
        return {number: f"{digest:016x}" for number, digest in found}

    def digests(self, windows: Sequence[Window], own: Windowing) -> dict[str, str]:
        """Return the digest of each window's input, keyed by the window's key. `windows` are windows of a custom table
        with the windowing `own`."""
        numbers = np.array([own.number_of(window.start) for window in windows], np.int64)
        digests, _ = self._digests(numbers, own)
        return {window.key: f"{digest:016x}" for window, digest in zip(windows, digests.tolist(), strict=True)}

    def _digests(
        self, numbers: npt.NDArray[np.int64], own: Windowing
    ) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.bool_]]:
        """Return two arrays about a custom table's windows: the digest of the input, and whether there is any input.
        If two lookbacks reach equally many windows of `heartbeat_diffs`, their digests still differ."""
        ratio, back = self._measures(own, own.lookback)
        is_whole = own.lookback % self.windowing.length == NO_TIME
        of_part = np.uint64(0 if is_whole else _hash(format_duration(own.lookback)))
        low = np.searchsorted(self.numbers, numbers * ratio - back)
        high = np.searchsorted(self.numbers, (numbers + 1) * ratio)
        return self.sums[high] - self.sums[low] + of_part, high > low

    def reached_by(self, spans: Iterable[range], own: Windowing) -> list[range]:
        """For each range of `heartbeat_diffs` windows in `spans`, return the custom table's windows whose input has at
        least one window of the range. The custom table has the windowing `own`."""
        ratio, back = self._measures(own, own.lookback)
        return [range(span.start // ratio, (span.stop - 1 + back) // ratio + 1) for span in spans]

    def within(self, closed: range, own: Windowing, expired: timedelta) -> range:
        """Return the numbers of a custom table's windows that lie wholly in `closed`, a range of window numbers of
        `heartbeat_diffs`. `own` is the table's windowing. Windows that start less than `expired` after the start of the
        range are left out, because they may lack input."""
        ratio, first = self._measures(own, expired)
        return range(-(-(closed.start + first) // ratio), closed.stop // ratio)

    def _measures(self, own: Windowing, time: timedelta) -> tuple[int, int]:
        return own.length // self.windowing.length, -(-time // self.windowing.length)


@dataclass(frozen=True, slots=True)
class Followed:
    """The state of the table `heartbeat_diffs`, on which custom tables depend.

    `closed` contains the numbers of the closed windows, and `waiting` the numbers of the closed windows that are still
    to be computed. `is_expiring` is true if retention has deleted heartbeats.
    """

    computed: ComputedWindows
    closed: range
    waiting: Sequence[range]
    is_expiring: bool = False

    @classmethod
    def read(cls, lake: Lake, windowing: Windowing, closed: range) -> "Followed":
        """Read the state, given `heartbeat_diffs`' windowing. Raises LakeError and InvalidSettings."""
        computed = ComputedWindows.of(lake.diffs().runs(), windowing)
        waiting = lake.window_index(windowing).update().due(closed)
        kept_from = lake.kept_windows(windowing).since()
        return cls(computed, closed, list(waiting), kept_from is not None)

    def due(self, own: Windowing, made: MadeWindows) -> list[int]:
        """Return the numbers of the due windows of a custom table, in order. The table has the windowing `own`. `made`
        has the origin of each computed window.

        A window is not due while part of its input is not computed yet, because it would have to be computed again
        afterwards. Raises LakeError.
        """
        inputs = self.computed.inputs(own)
        waiting = Spans(*self.computed.reached_by(self.waiting, own))
        expired = further_back(own.lookback, self.computed.windowing.lookback) if self.is_expiring else NO_TIME
        whole = self.computed.within(self.closed, own, expired)
        keys = [own.numbered(number).key for number in inputs]
        done = made.made_of(dict(zip(keys, inputs.values(), strict=True)))
        missing = (number for number, key in zip(inputs, keys, strict=True) if key not in done)
        return [number for number in missing if number in whole and number not in waiting]


def further_back(lookback: timedelta, of_diffs: timedelta) -> timedelta:
    """Return the time by which a custom table's lookback exceeds that of `heartbeat_diffs`; zero if it does not.
    Retention may have deleted heartbeats that only the longer lookback needs."""
    return max(lookback - of_diffs, NO_TIME)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")

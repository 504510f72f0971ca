"""Disorder by stream: whose messages are out of order, and who is to blame for it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pipeline.replay.trace import Batch
from pipeline.tuning.tally import Tally
from pipeline.watermark.histogram import Ints

STEP_US = 100_000
"""Every duration here is in steps of a tenth of a second, and right to within one."""

SECOND_STEPS = 1_000_000 // STEP_US


@dataclass(frozen=True, slots=True)
class StreamDisorder:
    """One stream. `beyond_band` counts the messages with a disorder above the band, `slow_beyond_band` and
    `fast_beyond_band` those that are to blame for more than the band themselves. `offset_seconds` is how much later
    than the typical message its median one is published, below zero for a clock that runs fast."""

    stream: str
    messages: int
    offset_seconds: float
    disorder_p50_seconds: float
    disorder_p99_seconds: float
    disorder_max_seconds: float
    beyond_band: int
    slow_p99_seconds: float
    slow_max_seconds: float
    slow_beyond_band: int
    fast_p99_seconds: float
    fast_max_seconds: float
    fast_beyond_band: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Of each message of a batch, in steps: its disorder; its blame, above zero if it is slow, below if it is fast;
    and how far it is behind the typical message, below zero if ahead."""

    disorder: Ints
    blame: Ints
    behind: Ints


class StreamTable:
    """What the second pass keeps of each stream: sparse counts, and its extremes."""

    def __init__(self, band_us: int) -> None:
        self._band_us = band_us
        self._codes: dict[str, int] = {}
        self._disorder, self._blame, self._behind = Tally(), Tally(), Tally()
        self._messages = np.zeros(0, dtype=np.int64)
        self._beyond, self._slow_beyond, self._fast_beyond = (np.zeros(0, dtype=np.int64) for _ in range(3))
        self._most, self._slowest, self._fastest = (np.zeros(0, dtype=np.int64) for _ in range(3))

    @property
    def names(self) -> list[str]:
        """The streams, by their code."""
        return list(self._codes)

    def add(self, batch: Batch, measured: Measured) -> None:
        """Messages of known streams; others are passed over."""
        if batch.streams is None:
            return
        own = np.array(
            [self._codes.setdefault(name, len(self._codes)) for name in batch.streams.names] or [0], dtype=np.int64
        )
        known = batch.streams.codes >= 0
        codes = own[batch.streams.codes[known]]
        disorder, blame, behind = measured.disorder[known], measured.blame[known], measured.behind[known]
        self._grow(len(self._codes))
        self._disorder.add(codes, _whole_seconds(disorder))
        self._blame.add(codes, _whole_seconds(blame))
        self._behind.add(codes, _whole_seconds(behind))
        for counted, which in (
            (self._messages, slice(None)),
            (self._beyond, disorder * STEP_US > self._band_us),
            (self._slow_beyond, blame * STEP_US > self._band_us),
            (self._fast_beyond, -blame * STEP_US > self._band_us),
        ):
            counted += np.bincount(codes[which], minlength=len(counted))
        for most, of in ((self._most, disorder), (self._slowest, blame), (self._fastest, -blame)):
            np.maximum.at(most, codes, of)

    @property
    def seen(self) -> int:
        """How many streams have a message; a name alone is none."""
        return int(np.count_nonzero(self._messages))

    def beyond_band(self) -> tuple[int, int]:
        """How many streams have a message that is to blame for more than the band: slow ones, and fast ones."""
        return int(np.count_nonzero(self._slow_beyond)), int(np.count_nonzero(self._fast_beyond))

    def worst(self, count: int) -> tuple[tuple[StreamDisorder, ...], tuple[StreamDisorder, ...]]:
        """The slowest and the fastest streams: by how many messages are to blame for more than the band, then by the
        most that one is to blame for. A stream that is to blame for nothing is not among them."""
        by_slowness = np.lexsort((-self._slowest, -self._slow_beyond))[:count]
        by_fastness = np.lexsort((-self._fastest, -self._fast_beyond))[:count]
        slow = [code for code in by_slowness.tolist() if self._slowest[code] > 0]
        fast = [code for code in by_fastness.tolist() if self._fastest[code] > 0]
        details = dict(self._details(sorted({*slow, *fast})))
        return tuple(details[code] for code in slow), tuple(details[code] for code in fast)

    def _details(self, codes: Sequence[int]) -> Iterator[tuple[int, StreamDisorder]]:
        disorder_p50_seconds, disorder_p99_seconds = _by_code(self._disorder, 0.5), _by_code(self._disorder, 0.99)
        slow_p99_seconds, fast_p99_seconds = _by_code(self._blame, 0.99), _by_code(self._blame, 0.01)
        offset, names = _by_code(self._behind, 0.5), self.names
        for code in codes:
            yield (
                code,
                StreamDisorder(
                    stream=names[code],
                    messages=int(self._messages[code]),
                    offset_seconds=float(offset[code]),
                    disorder_p50_seconds=float(disorder_p50_seconds[code]),
                    disorder_p99_seconds=float(disorder_p99_seconds[code]),
                    disorder_max_seconds=_seconds(self._most[code]),
                    beyond_band=int(self._beyond[code]),
                    slow_p99_seconds=float(max(0, slow_p99_seconds[code])),
                    slow_max_seconds=_seconds(self._slowest[code]),
                    slow_beyond_band=int(self._slow_beyond[code]),
                    fast_p99_seconds=float(max(0, -fast_p99_seconds[code])),
                    fast_max_seconds=_seconds(self._fastest[code]),
                    fast_beyond_band=int(self._fast_beyond[code]),
                ),
            )

    def _grow(self, size: int) -> None:
        for name in ("_messages", "_beyond", "_slow_beyond", "_fast_beyond", "_most", "_slowest", "_fastest"):
            column = getattr(self, name)
            if len(column) < size:
                setattr(self, name, np.concatenate([column, np.zeros(size - len(column), dtype=np.int64)]))


def _whole_seconds(steps: Ints) -> Ints:
    """Rounded to the nearest, so that a stream's counts stay few."""
    return (steps + SECOND_STEPS // 2) // SECOND_STEPS


def _seconds(steps: Ints) -> float:
    return float(steps) * STEP_US / 1e6


def _by_code(tally: Tally, share: float) -> dict[int, int]:
    codes, values = tally.quantiles(share)
    return dict(zip(codes.tolist(), values.tolist(), strict=True))

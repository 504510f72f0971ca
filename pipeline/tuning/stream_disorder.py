"""Disorder by stream, and the streams to blame for it."""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.figures import quantile
from tidemark.pipeline.replay.totals import Tally, Totals
from tidemark.pipeline.replay.trace import Batch
from tidemark.pipeline.watermark.histogram import Ints

STEP_US = 100_000
"""Step in which durations are counted: a tenth of a second. They are accurate to within one step."""

STEPS_IN_A_SECOND = 1_000_000 // STEP_US

NO_STREAM = -1

COUNTED = ("messages", "beyond_band", "slow_beyond_band", "fast_beyond_band")
GREATEST = ("disorder_max", "slow_max", "fast_max")
"""Figures of a stream that are summed, and those of which the maximum is taken."""

Side = Literal["slow", "fast"]
SIDES: tuple[Side, ...] = ("slow", "fast")


@dataclass(frozen=True, slots=True)
class StreamDisorder:
    """The disorder of one stream. `beyond_band` counts the messages with a disorder above the band; `slow_beyond_band`
    and `fast_beyond_band` those that are themselves to blame for more than the band. `offset_seconds` is how much later
    its median message is published than the typical message; negative for a fast clock."""

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

    def blame(self, side: Side) -> tuple[int, float, float]:
        """Return the number of messages to blame for more than the band on this side, and the 99th percentile and
        maximum of the seconds that messages are to blame for."""
        beyond, p99, most = (
            getattr(self, f"{side}_{figure}") for figure in ("beyond_band", "p99_seconds", "max_seconds")
        )
        return beyond, p99, most


@dataclass(frozen=True, slots=True)
class Blame:
    """The blame on one side of a topic. `beyond_band` counts the messages that are themselves to blame for more than
    the band, `streams` the streams that have such a message. `max_seconds` is the most that any message is to blame
    for, and `worst` has the worst streams (empty if the trace has no streams)."""

    beyond_band: int
    max_seconds: float
    streams: int
    worst: tuple[StreamDisorder, ...]


class StreamTable:
    """The second pass, by stream: sums and maxima, and the distribution in whole seconds."""

    def __init__(self, band_us: int) -> None:
        self._band_us = band_us
        self._codes: dict[str, int] = {}
        self._totals = Totals(1, [np.add] * len(COUNTED) + [np.maximum] * len(GREATEST))
        self._disorder, self._blame, self._behind = Tally(), Tally(), Tally()

    def add(self, batch: Batch, disorder: Ints, blame: Ints, behind: Ints) -> None:
        """Add a batch with each message's measurements, in steps. Messages without a stream count under `NO_STREAM`."""
        codes = self._codes_of(batch)
        slow, fast = np.maximum(blame, 0), np.maximum(-blame, 0)
        judged = (disorder, slow, fast)
        self._totals.add(codes, np.ones_like(codes), *map(self._beyond_band, judged), *judged)
        for tally, steps in ((self._disorder, disorder), (self._blame, blame), (self._behind, behind)):
            tally.add(codes, (steps + STEPS_IN_A_SECOND // 2) // STEPS_IN_A_SECOND)

    def __len__(self) -> int:
        """Count the streams."""
        return int(self._streams().num_rows)

    def beyond_band(self) -> int:
        """Count the messages with a disorder above the band, including those without a stream."""
        return int(pc.sum(self._rows()["beyond_band"]).as_py())

    def blame(self, side: Side, count: int) -> Blame:
        """Return one side, with its worst streams: first those with the most messages to blame for more than the band,
        then those with the worst message. Streams that are to blame for nothing are left out."""
        whole, streams, names = self._rows(), self._streams(), list(self._codes)
        beyond, most = f"{side}_beyond_band", f"{side}_max"
        order = [(beyond, "descending"), (most, "descending"), ("stream", "ascending")]
        worst = streams.filter(pc.field(most) > 0).sort_by(order).slice(0, count).to_pylist()
        return Blame(
            beyond_band=pc.sum(whole[beyond]).as_py(),
            max_seconds=_seconds(pc.max(whole[most]).as_py()),
            streams=streams.filter(pc.field(beyond) > 0).num_rows,
            worst=tuple(self._described(names[row["stream"]], row) for row in worst),
        )

    def _rows(self) -> pa.Table:
        return pa.table(self._totals.rows(), ["stream", *COUNTED, *GREATEST])

    def _streams(self) -> pa.Table:
        return self._rows().filter(pc.field("stream") != NO_STREAM)

    def _described(self, name: str, row: dict[str, Any]) -> StreamDisorder:
        def at(tally: Tally, share: float) -> float:
            values, counts = tally.of(row["stream"])
            return float(quantile(values, share, counts))

        greatest: dict[str, Any] = {f"{figure}_seconds": _seconds(row[figure]) for figure in GREATEST}
        return StreamDisorder(
            stream=name,
            offset_seconds=at(self._behind, 0.5),
            disorder_p50_seconds=at(self._disorder, 0.5),
            disorder_p99_seconds=at(self._disorder, 0.99),
            slow_p99_seconds=max(0.0, at(self._blame, 0.99)),
            fast_p99_seconds=max(0.0, -at(self._blame, 0.01)),
            **{figure: row[figure] for figure in COUNTED},
            **greatest,
        )

    def _codes_of(self, batch: Batch) -> Ints:
        """Return each message's stream as a number that is the same in the whole trace."""
        if batch.streams is None:
            return np.full(len(batch), NO_STREAM, dtype=np.int64)
        names = batch.streams.dictionary.to_pylist()
        codes: Ints = batch.streams.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        own = [self._codes.setdefault(str(name), len(self._codes)) for name in names]
        return np.array([*own, NO_STREAM], dtype=np.int64)[codes]

    def _beyond_band(self, steps: Ints) -> Ints:
        return (steps * STEP_US > self._band_us).astype(np.int64)


def _seconds(steps: int) -> float:
    return steps * STEP_US / 1e6

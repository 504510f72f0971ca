"""Counts the streams in each window, those that stopped or started, and those that missed heartbeats."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa

from tidemark.pipeline.lake.tables.diffs import StatusKind
from tidemark.pipeline.lake.tables.streams import KnownStreams, streams_in
from tidemark.pipeline.lake.tables.windowed import PARTITION, WindowedTable
from tidemark.pipeline.windows import Windowing


@dataclass(frozen=True, slots=True)
class WindowSilence:
    """The number of streams per category in a computed window. Only heartbeats in computed windows count.

    `streams`: streams with a heartbeat in the window.
    `absent`: streams with an earlier heartbeat, but none in the window.
    `stopped`: absent streams with a heartbeat in the lookback.
    `started`: streams with a heartbeat in the window, but none in the lookback.
    `new`: started streams without any earlier heartbeat.
    `missing`: streams that missed heartbeats.
    `missed_heartbeats`: heartbeats that these streams missed, in total.
    """

    window: str
    streams: int = 0
    absent: int = 0
    stopped: int = 0
    started: int = 0
    new: int = 0
    missing: int = 0
    missed_heartbeats: int = 0

    @property
    def stopped_share(self) -> float:
        """The fraction of the streams in the lookback that stopped; 0 if the lookback has none."""
        before = self.streams - self.started + self.stopped
        return self.stopped / before if before else 0.0


def silence_of(
    diffs: WindowedTable, status: pa.Table, known: KnownStreams, windowing: Windowing, windows: Collection[str]
) -> list[WindowSilence]:
    """Count the streams in each of `windows` that is computed. The result is sorted by window. `status` contains the
    rows of `stream_status` for the windows. Raises LakeError."""
    by_kind = status.group_by([PARTITION, "kind"], use_threads=False)
    sums = by_kind.aggregate([([], "count_all"), ("missed_heartbeats", "sum"), ("stream_id", "list")]).to_pylist()
    of_kind = {(each[PARTITION], each["kind"]): each for each in sums}
    nothing = {"count_all": 0, "missed_heartbeats_sum": 0, "stream_id_list": []}
    found = []
    for key, streams in streams_in(diffs, windows).items():
        window = windowing.named(key)
        stopped, started, missed = (
            of_kind.get((key, kind), nothing) for kind in (StatusKind.STOPPED, StatusKind.STARTED, StatusKind.MISSED)
        )
        begun = known.begun_in(window.start, window.end) if started["count_all"] else set()
        found.append(
            WindowSilence(
                window=key,
                streams=streams,
                absent=max(0, known.begun_before(window.end) - streams),
                stopped=stopped["count_all"],
                started=started["count_all"],
                new=len(begun.intersection(started["stream_id_list"])),
                missing=missed["count_all"],
                missed_heartbeats=missed["missed_heartbeats_sum"] or 0,
            )
        )
    return found

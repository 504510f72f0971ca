"""Windows at a glance: how many streams were there, stopped, started, and missed beats."""

from collections.abc import Collection
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.tables.diffs import HeartbeatDiffs
from pipeline.lake.tables.stream_status import Kind, StreamStatus
from pipeline.lake.tables.streams import KnownStreams, streams_in
from pipeline.lake.tables.windowed import PARTITION
from pipeline.windows import Windowing


@dataclass(frozen=True, slots=True)
class WindowSilence:
    """A computed window: streams with a heartbeat in it; those known by then that have none, however long; of these,
    those that stopped; those that started, and of them those that had never been there before; those that missed
    heartbeats, and how many. What was there before is known as far as it is computed."""

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
        """Of the streams that were there before the window, those that stopped."""
        before = self.streams - self.started + self.stopped
        return self.stopped / before if before else 0.0


def silence_of(
    diffs: HeartbeatDiffs, status: StreamStatus, known: KnownStreams, windowing: Windowing, windows: Collection[str]
) -> tuple[list[WindowSilence], pa.Table]:
    """These windows, in order, and their rows of the status; windows that are not computed are left out."""
    rows = status.rows(windows)
    of_each = {}
    for entry in (
        rows.group_by([PARTITION, "kind"], use_threads=False)
        .aggregate([([], "count_all"), ("missed_heartbeats", "sum")])
        .to_pylist()
    ):
        of_each[entry[PARTITION], entry["kind"]] = (entry["count_all"], entry["missed_heartbeats_sum"] or 0)
    found = []
    for key, streams in streams_in(diffs, windows).items():
        window = windowing.named(key)
        new = 0
        if (key, Kind.STARTED) in of_each:
            begun = pa.array(sorted(known.begun_in(window.start, window.end)), pa.string())
            here = rows.filter(pc.and_(pc.equal(rows[PARTITION], key), pc.equal(rows["kind"], str(Kind.STARTED))))
            new = pc.sum(pc.is_in(here["stream_id"], begun)).as_py() or 0
        missing, missed = of_each.get((key, Kind.MISSED), (0, 0))
        found.append(
            WindowSilence(
                window=key,
                streams=streams,
                absent=max(0, known.begun_before(window.end) - streams),
                stopped=of_each.get((key, Kind.STOPPED), (0, 0))[0],
                started=of_each.get((key, Kind.STARTED), (0, 0))[0],
                new=new,
                missing=missing,
                missed_heartbeats=missed,
            )
        )
    return found, rows

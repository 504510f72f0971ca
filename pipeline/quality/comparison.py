"""What the windows of `heartbeat_diffs` hold against what has landed, told from the contents of the two tables alone.

It reads both, hour by hour, and so serves where following their logs does not: commits or replaced files were removed.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from pipeline.clock import duration_us, to_us
from pipeline.errors import CorruptObject
from pipeline.lake.tables.diffs import PARTITION as WINDOW
from pipeline.lake.tables.heartbeats import HOUR_FORMAT
from pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from pipeline.lake.tables.table import MOMENT, table_errors
from pipeline.quality.arrivals import ARRIVED, IDENTITY, READ, identified
from pipeline.quality.missed import Reach
from pipeline.watermark.histogram import Ints

HOUR = timedelta(hours=1)
HOURS_AT_ONCE = 6
"""Of 10,000 streams, an hour of both tables takes some seconds."""


@dataclass(frozen=True, slots=True)
class Compared:
    """The heartbeats that their windows do not hold, as rows of ARRIVED; and the windows in whose lookback heartbeats
    have landed whose own window was not compared, so that its rows do not say what was there to be read."""

    lacking: pa.Table
    untold: frozenset[str]


def compared(
    heartbeats: DeltaTable, diffs: DeltaTable, computed: Mapping[str, int], reach: Reach
) -> Generator[int, None, Compared]:
    """What has landed against the windows of `computed`, which has their starts in microseconds, by key. After every
    few event hours it says how many are left.

    A window holds a heartbeat if a row of it has the stream, the event time, and the message id of one of its copies.
    Which version a heartbeat first landed with cannot be told: the newest is taken. One event hour is in memory at a
    time. Raises LakeError.
    """
    starts = np.array(sorted(computed.values()), dtype=np.int64)
    keys = {start: key for key, start in computed.items()}
    length_us = duration_us(reach.windowing.length)
    wanted = np.unique(np.concatenate([starts - before_us for before_us in reach.starts(0)]))
    found, untold = [ARRIVED.empty_table()], set[str]()
    hours = sorted({partition[EVENT_HOUR] for partition in heartbeats.partitions()})
    for number, hour in enumerate(hours):
        if number and number % HOURS_AT_ONCE == 0:
            yield len(hours) - number
        begins_us = to_us(datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC))
        overlapping = wanted[(wanted > begins_us - length_us) & (wanted < begins_us + duration_us(HOUR))]
        if not len(overlapping):
            continue
        landed = _landed(heartbeats, hour)
        event_us = landed["event_time"].cast(pa.int64()).combine_chunks().to_numpy()
        own_us = reach.own_starts(event_us)
        is_compared = np.isin(own_us, starts)
        untold.update(keys[start] for start in _reached(event_us[~is_compared], reach) & keys.keys())
        landed = landed.filter(pa.array(is_compared))
        held = _held(diffs, [keys[start] for start in overlapping.tolist() if start in keys])
        both = landed.join(held, ["stream_id", "event_time", "message_id"], use_threads=False)
        of_each = both.group_by(list(IDENTITY), use_threads=False).aggregate([("is_held", "max")])
        lacking = of_each.filter(pc.is_null(of_each["is_held_max"])).select(list(IDENTITY))
        version = pa.array([heartbeats.version()] * lacking.num_rows, pa.int64())
        missed = pa.array([False] * lacking.num_rows, pa.bool_())
        found.append(lacking.append_column("version", version).append_column("missed", missed).cast(ARRIVED))
    return Compared(pa.concat_tables(found), frozenset(untold))


def _reached(event_us: Ints, reach: Reach) -> set[int]:
    """The starts of the windows that these event times matter to: of each window's, the last reaches furthest."""
    own, rows = np.unique(reach.own_starts(event_us), return_inverse=True)
    last = own.copy()
    np.maximum.at(last, rows, event_us)
    return {
        start_us
        for own_us, last_us in zip(own.tolist(), last.tolist(), strict=True)
        for start_us in reach.starts(own_us)
        if start_us - duration_us(reach.lookback) <= last_us
    }


def _landed(heartbeats: DeltaTable, hour: str) -> pa.Table:
    """Identity and message id of every row of an event hour."""
    rows = _read(heartbeats, (EVENT_HOUR, "=", hour), READ)
    return identified(rows).append_column("message_id", rows["message_id"].cast(pa.string()))


def _held(diffs: DeltaTable, windows: list[str]) -> pa.Table:
    rows = _read(diffs, (WINDOW, "in", windows), ("stream_id", "event_time", "message_id"))
    return pa.table(
        {
            "stream_id": rows["stream_id"].cast(pa.string()),
            "event_time": rows["event_time"].cast(MOMENT),
            "message_id": rows["message_id"].cast(pa.string()),
            "is_held": pa.array([True] * rows.num_rows, pa.bool_()),
        }
    )


def _read(table: DeltaTable, partition: tuple[str, str, object], columns: tuple[str, ...]) -> pa.Table:
    with table_errors(table.table_uri):
        try:
            dataset = table.to_pyarrow_dataset(file_pruning_predicate=[partition])
            return dataset.to_table(columns=list(columns), use_threads=False)
        except FileNotFoundError as error:
            raise CorruptObject(
                f"{table.table_uri} has lost a file of its newest version: {error}; put back a copy"
            ) from error

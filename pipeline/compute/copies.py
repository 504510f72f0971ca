"""Finds copies among landed heartbeats in tasks, with column operations: Spark then reads each heartbeat once, without
an exchange.

Copies share one event time, so a time slice holds all copies of a heartbeat. A copy is identified by its file and its
row number. Most heartbeats have no copies, so the tasks' answers are small.
"""

import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from tidemark.pipeline.compute.columns import in_order, without_copies
from tidemark.pipeline.compute.slices import Slice, cut, scan
from tidemark.pipeline.lake.tables.heartbeats import HeartbeatFiles
from tidemark.pipeline.spark.executors import answers_of, run_slices
from tidemark.pipeline.spark.session import cores_of
from tidemark.pipeline.windows import Window

PLACE = ("file", "row")
"""The columns that identify a landed row: the end of its file's path, and its row number in the file, from 0."""

COPIES = pa.schema(
    {
        "unable": pa.string(),
        "file": pa.string(),
        "dropped": pa.list_(pa.int64()),
        "in_time": pa.list_(pa.int64()),
    }
)
"""One row per file with copies: the rows to drop in favour of another copy, and the rows marked late although one of
their copies landed in time."""


@dataclass(frozen=True, slots=True)
class Search:
    """The description of the search, sent to each task."""

    slices: Sequence[Slice]
    storage_options: Mapping[str, str]

    def answers(self, one: Slice) -> Iterator[dict[str, Any]]:
        """Yield the copies among the heartbeats of a slice, by file: rows of COPIES."""
        since, end = one.windows[0].start, one.windows[-1].end
        of_files = [
            scan(one, [path], {}, self.storage_options, since, end, "row").with_columns(file=pl.lit(place_of(path)))
            for path in one.paths
        ]
        if not of_files:
            return
        read = pl.concat(of_files).collect()
        moment = pl.struct("stream_id", "event_time").hash()
        shared = in_order(read.filter(moment.is_duplicated()))  # a few hash collisions are harmless
        kept = without_copies(shared.lazy()).collect()
        dropped = shared.join(kept, on=PLACE, how="anti")
        in_time = shared.filter("late").join(kept.filter(~pl.col("late")), on=PLACE, how="semi")
        found = pl.concat([dropped.select(*PLACE, is_dropped=True), in_time.select(*PLACE, is_dropped=False)])
        for (file,), rows in found.partition_by("file", as_dict=True).items():
            yield {
                "file": file,
                "dropped": rows.filter("is_dropped")["row"].to_list(),
                "in_time": rows.filter(~pl.col("is_dropped"))["row"].to_list(),
            }


def place_of(path: str) -> str:
    """Return the end of a file's path, unique in the table: its partition and its name."""
    return "/".join(path.split("/")[-2:])


def without_landed_copies(
    landed: DataFrame,
    files: HeartbeatFiles,
    storage_options: Mapping[str, str],
    start: datetime,
    windows: Sequence[Window],
) -> DataFrame:
    """Drop the copies from `landed`, which reads these files: each heartbeat from `start` to the end of the windows
    keeps the copy with the smallest publish time. It is late only if none of its copies landed in time. Assumption: the
    windows are contiguous. Raises ExecutorsUnable."""
    session = landed.sparkSession
    reached = [Window(start, windows[0].start), *windows] if start < windows[0].start else windows
    search = Search(cut(reached, files, timedelta(0), cores_of(session)), storage_options)
    task = partial(run_slices, pickle.dumps(search), COPIES)
    found = [
        (answer["file"], row, is_dropped)
        for answer in answers_of(session, len(search.slices), task, COPIES)
        for is_dropped, rows in ((True, answer["dropped"]), (False, answer["in_time"]))
        for row in rows
    ]
    late = F.coalesce("late", F.lit(True))
    if not found:
        return landed.withColumn("late", late)
    file, row, is_dropped = zip(*found, strict=True)
    copies = session.createDataFrame(pa.table({"file": file, "row": row, "is_dropped": is_dropped}))
    placed = landed.select(
        "*",
        F.substring_index("_metadata.file_path", "/", -2).alias("file"),
        F.col("_metadata.row_index").alias("row"),
    )
    single = placed.join(copies, [*PLACE], "left").where(F.col("is_dropped").isNull() | ~F.col("is_dropped"))
    return single.withColumn("late", late & F.col("is_dropped").isNull()).select(*landed.columns)

"""Runs the readers of a round as tasks of a Spark job.

Every reader pulls from the whole subscription: Pub/Sub has no partitions and distributes messages itself (the static
split of FLINK-20625).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from threading import Timer
from typing import Any, cast

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.ingest.outcome import Taken
from tidemark.pipeline.ingest.readers import Reader, Share
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.executors import require_able
from tidemark.pipeline.watermark.state import Snapshot

IDS_IN_A_ROW = 20_000
"""Maximum number of ack ids in one row of an answer, about 4 MB."""

HANGS_AFTER = timedelta(minutes=2)
"""A round that overruns its time by this much fails the run: no executor has a free slot, or one hangs. Ticks pull
until the next run."""

TAKEN = pa.schema(
    {"reader": pa.int64(), "what": pa.binary(), "histogram": pa.binary(), "ack_ids": pa.list_(pa.string())}
)
"""One row per reader, and further rows with only ack ids. `what` is JSON; `histogram` is an entry of the log."""

AS_JSON = TypeAdapter(Taken)

KEPT = Kept(at_most=2)
"""The readers that a Spark worker process keeps open, one per settings, shared by all runs."""

Read = Callable[[Share, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read_share(share: Share, readers: Iterable[pa.RecordBatch], kept: Kept = KEPT) -> Iterator[pa.RecordBatch]:
    """The function that Spark runs. Each reader whose number is in the column `id` takes, and returns rows of TAKEN.
    Acknowledges nothing. Raises PubSubError or LakeError; if Spark retries a task, it takes what is left."""
    reader = kept.get(share.settings.model_dump_json(), lambda: Reader(share.settings))
    reader.copies.settle(share.settled)
    for numbers in readers:
        for number in numbers["id"].to_pylist():
            for row in rows_of(reader.take(share, share.side(number))):
                yield pa.RecordBatch.from_pylist([{"reader": number, **row}], TAKEN)


def rows_of(taken: Taken) -> Iterator[dict[str, Any]]:
    """Encode a reader's Taken as rows of TAKEN."""
    what = AS_JSON.dump_json(taken, exclude={"histogram", "ack_ids"})
    yield {"what": what, "histogram": encode(Snapshot(taken.histogram), "")}
    for first in range(0, len(taken.ack_ids), IDS_IN_A_ROW):
        yield {"ack_ids": taken.ack_ids[first : first + IDS_IN_A_ROW]}


def taken_of_rows(rows: pa.Table) -> list[Taken]:
    """Decode the rows of all readers of a round: the inverse of `rows_of`."""
    ids, found = defaultdict[int, list[str]](list), dict[int, Taken]()
    for reader, what, histogram, ack_ids in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        ids[reader] += ack_ids or ()
        if what is not None:
            entry = cast(Snapshot, decode(histogram, "the answer of a reader"))
            found[reader] = replace(AS_JSON.validate_json(what), histogram=entry.histogram)
    return [replace(taken, ack_ids=ids[reader]) for reader, taken in found.items()]


@dataclass(frozen=True, slots=True)
class SparkReaders:
    """Runs readers as tasks of a Spark job. `interrupt` stops the session's running jobs. `read` is the function that
    the tasks run.

    Assumption: executors reach Pub/Sub and the lake at the same addresses as this process, and have tidemark.
    """

    spark: SparkSession
    interrupt: Callable[[], object] = lambda: None
    read: Read = read_share

    def require_able(self) -> None:
        """Raise ExecutorsUnable if executors lack tidemark. Nothing is pulled before this check."""
        require_able(self.spark)

    def __call__(self, share: Share) -> list[Taken]:
        """Run the readers of one round, and return what they took. Raises Spark's error if a task fails too often."""
        watchdog = Timer((share.time + HANGS_AFTER).total_seconds(), self.interrupt)
        watchdog.daemon = True
        watchdog.start()
        try:
            readers = self.spark.range(0, share.readers, 1, share.readers)
            rows = readers.mapInArrow(partial(self.read, share), from_arrow_schema(TAKEN)).toArrow()
        finally:
            watchdog.cancel()
        return taken_of_rows(rows)


def readers_for(settings: Settings, places: int) -> int:
    """Return the number of readers of a run, given the number of Spark slots: one slot is left for windows."""
    return min(settings.ingest.readers, max(1, places - 1))

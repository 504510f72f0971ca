"""The readers of a round as the tasks of a Spark job.

Every reader is given the whole subscription: Pub/Sub has no partitions, and shares out its messages itself (the static
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
"""Ids to acknowledge in one row of an answer, some 4 MB."""

HANGS_AFTER = timedelta(minutes=2)
"""A round that takes so much longer than its time fails the run: no executor has a free slot, or one hangs. Ticks pull
until the next run."""

TAKEN = pa.schema(
    {"reader": pa.int64(), "what": pa.binary(), "histogram": pa.binary(), "ack_ids": pa.list_(pa.string())}
)
"""One row a reader, and further ones with no more than ids. `what` is JSON; `histogram` is an entry of the log."""

AS_JSON = TypeAdapter(Taken)

KEPT = Kept(at_most=2)
"""The readers that a worker process of Spark keeps open, one for all runs of the same settings."""

Read = Callable[[Share, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def read_share(share: Share, readers: Iterable[pa.RecordBatch], kept: Kept = KEPT) -> Iterator[pa.RecordBatch]:
    """The function that Spark runs: each reader whose number is in the column `id` takes, and answers with what it has
    taken. Acknowledges nothing. Raises PubSubError or LakeError; a task that Spark tries again takes what is left."""
    reader = kept.get(share.settings.model_dump_json(), lambda: Reader(share.settings))
    reader.copies.settle(share.settled)
    for numbers in readers:
        for number in numbers["id"].to_pylist():
            for row in rows_of(reader.take(share, share.side(number))):
                yield pa.RecordBatch.from_pylist([{"reader": number, **row}], TAKEN)


def rows_of(taken: Taken) -> Iterator[dict[str, Any]]:
    """Write what a reader has taken as rows of TAKEN."""
    what = AS_JSON.dump_json(taken, exclude={"histogram", "ack_ids"})
    yield {"what": what, "histogram": encode(Snapshot(taken.histogram), "")}
    for first in range(0, len(taken.ack_ids), IDS_IN_A_ROW):
        yield {"ack_ids": taken.ack_ids[first : first + IDS_IN_A_ROW]}


def taken_of_rows(rows: pa.Table) -> list[Taken]:
    """Read what the readers of a round have taken: the inverse of `rows_of`, for all of them."""
    ids, found = defaultdict[int, list[str]](list), dict[int, Taken]()
    for reader, what, histogram, ack_ids in zip(*(column.to_pylist() for column in rows.columns), strict=True):
        ids[reader] += ack_ids or ()
        if what is not None:
            entry = cast(Snapshot, decode(histogram, "the answer of a reader"))
            found[reader] = replace(AS_JSON.validate_json(what), histogram=entry.histogram)
    return [replace(taken, ack_ids=ids[reader]) for reader, taken in found.items()]


@dataclass(frozen=True, slots=True)
class SparkReaders:
    """Has readers take as tasks of a Spark job. `interrupt` ends what the session has under way. `read` is what the
    tasks run.

    Assumption: executors reach Pub/Sub and the lake at the same addresses as this process, and have tidemark.
    """

    spark: SparkSession
    interrupt: Callable[[], object] = lambda: None
    read: Read = read_share

    def require_able(self) -> None:
        """Raise ExecutorsUnable, before anything is pulled, where executors lack tidemark."""
        require_able(self.spark)

    def __call__(self, share: Share) -> list[Taken]:
        """Run the readers of one round, and return what they took. Raises what Spark raises when a task has failed too
        often."""
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
    """Return the number of readers of a run, where Spark has so many slots for tasks: one is left for windows."""
    return min(settings.ingest.readers, max(1, places - 1))

"""Lands messages under a name, so that Spark can safely start a micro-batch twice. A manifest lists the rows that
landed under the name. If a manifest exists, a reader returns its rows, and does not use this module.

The guarantee follows from the order of steps: pull, make durable, create the manifest, acknowledge.
"""

import sys
import uuid
from collections.abc import Callable
from datetime import datetime

import pyarrow as pa

from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import LandingOver, ObjectExists
from tidemark.pipeline.ingest.take import Batches, Landing, take
from tidemark.pipeline.lake.landings import MANIFEST, PIECE, NamedLanding, piece_name
from tidemark.pipeline.lake.store.notes import Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.heartbeats import PARTITION
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles


class _Pieces:
    def __init__(self, objects: ObjectStore, name: str) -> None:
        self._notes, self._name, self._attempt = Notes(objects, PIECE), name, uuid.uuid4().hex[:12]
        self.written: list[str] = []

    def write(self, rows: pa.Table) -> list[NewFile]:
        piece = piece_name(self._name, self._attempt, len(self.written))
        self._notes.create(piece, rows.drop_columns(PARTITION))
        self.written.append(piece)
        return [NewFile(piece, "", len(rows), 0, {})]

    def delete(self) -> None:
        self._notes.delete(*self.written)


def land_named(
    name: str,
    batches: Batches,
    *,
    objects: ObjectStore,
    quarantine: NewFiles,
    watermark: datetime | None,
    readers: int = 1,
    reader: HeartbeatReader,
    is_over: Callable[[], bool],
) -> NamedLanding:
    """Pull `batches` of messages, make them durable, create the manifest with this name, and acknowledge them. Return
    this landing, or the one that a faster reader created. Call this function only if no such manifest exists.

    Guarantee: a manifest is never replaced, and each acknowledged message is in rows that the manifest lists, or in
    `quarantine`. This holds even if several readers try the name at the same time, die, or are restarted. Only the
    reader that creates the manifest acknowledges its messages; those of other readers are redelivered. If no heartbeat
    is pulled, the manifest lists no rows.

    A heartbeat below `watermark` is late. `readers` is the number of the batch's readers, for the manifest. `is_over`
    returns true if Spark has finished the batch. The manifest may then have existed and been deleted, so the function
    raises LandingOver and acknowledges nothing. Raises PubSubError or LakeError. After an error, the guarantee still
    holds, and a retry is safe.
    """
    if is_over():
        raise _over(name)
    manifests = Notes(objects, MANIFEST)
    pieces, subscription, clock = _Pieces(objects, name), batches.subscription, batches.clock
    until = clock.monotonic() + batches.budget.max_time.total_seconds()
    # The pieces are not divided by event hour, so no message is given back because of its hour.
    keeper = Landing(pieces, quarantine, reader, lambda: watermark, clock, most_hours=sys.maxsize)
    taken = take(batches, subscription, keeper, until)
    ack_ids = taken.ack_ids
    try:
        quarantine.add(taken.rejected, {})
        landing = NamedLanding(tuple(pieces.written), taken.ingested.oldest_publish_time, watermark, readers)
        try:
            manifests.create(name, landing)
        except ObjectExists:  # another reader was first: our messages are redelivered, and no manifest lists our pieces
            first = manifests.find(name)
            pieces.delete()
            if first is None:
                raise _over(name) from None
            return first
        if is_over():
            raise _over(name)
        subscription.acknowledge(ack_ids)
        ack_ids = []
    finally:
        subscription.give_back(ack_ids)  # unless they were acknowledged
    return landing


def _over(name: str) -> LandingOver:
    return LandingOver(
        f"the batch of the landing {name} is finished, and its rows may have been deleted. Nothing was acknowledged. "
        "This is normal for a task that outlived its batch. If you set the stream's checkpoint back by more than "
        "keepBatches batches, start a new checkpoint"
    )

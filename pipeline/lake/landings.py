"""Named landings: the messages that a reader on Spark has stored, as Parquet objects and a manifest that lists them.

Spark may run a reader twice, so two readers may land messages under the same name. The manifest is written last, and
cannot be overwritten, so only one reader creates it. The other reader returns the messages that this manifest lists.
"""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.lake.store.notes import JsonKind, NoContent, Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore

FOLDER = "landings/"
FENCES_KEPT = 2
"""Number of the newest fences to keep. With two, a listing finds at least one, even while a new fence is being written
and an old one deleted."""

NUMBERED = re.compile(r"\d{9}")
Microseconds = Annotated[datetime, BeforeValidator(from_us), PlainSerializer(to_us)]


@dataclass(frozen=True, slots=True)
class NamedLanding:
    """The manifest of a landing. `pieces` are the names of the objects with its heartbeats. `oldest_publish_time` is
    the earliest publish time of its messages, including rejected ones, or None if the reader pulled no message.
    `watermark` and `readers` are the watermark and the number of readers of its batch."""

    pieces: tuple[str, ...]
    oldest_publish_time: Annotated[Microseconds | None, Field(alias="oldest_publish_time_us")]
    watermark: Annotated[Microseconds | None, Field(alias="watermark_us")] = None
    readers: int = 0


MANIFEST = JsonKind(FOLDER, "restore a backup: the landing's messages are already acknowledged", holds=NamedLanding)
"""Stores the manifests of landings. The key is the landing's name."""

PIECE = ParquetKind("", "restore a backup: the messages in this object are already acknowledged", suffix="")
"""Stores a part of a landing's heartbeats, with the columns of the `heartbeats` table except the partition column.
The key is the full name of the object, as in the manifest."""


def piece_name(name: str, attempt: str, number: int) -> str:
    """Return the name of the object for part `number` of a landing. `name` is the name of the landing, and `attempt`
    distinguishes the readers that land messages under that name."""
    return f"{FOLDER}{name}-{attempt}-{number}.parquet"


class LandedBatches:
    """The landings of one run. Several readers share a batch of messages, and each has its own landing. A fence is an
    object that marks the end of a batch.

    After a batch has ended, its landings and their manifests may be deleted. Without a fence, a slow reader of the
    batch could then create a manifest again, and acknowledge messages that Spark never reads. Two rules prevent this:
    - A fence is written before any landing is deleted.
    - A reader that has created a manifest looks for a fence before it acknowledges.
    """

    def __init__(self, objects: ObjectStore, run: str) -> None:
        self._objects = objects
        self._run = run
        fences = JsonKind(f"{FOLDER}{run}/over-", key=NUMBERED.pattern, suffix="", holds=NoContent)
        self._fences = Notes(objects, fences)

    def name(self, batch: int, reader: int) -> str:
        """Return the name of the landing for one reader's part of a batch. `batch` and `reader` are numbers."""
        return f"{self._run}/{batch:09d}-{reader:04d}"

    def planned(self, batch: int) -> tuple[int, datetime | None] | None:
        """Return the number of readers of this batch, and its watermark, according to its landings. Return None if it
        has no landing."""
        manifests = Notes(self._objects, MANIFEST)
        if not (landed := manifests.listed(f"{self._run}/{batch:09d}-")):
            return None
        last = manifests.read(landed[-1])
        return max(last.readers, int(landed[-1][-4:]) + 1), last.watermark

    def is_over(self, batch: int) -> bool:
        """Return True if this batch or a later one has ended."""
        return any(int(number) >= batch for number in self._fences.listed())

    def end(self, batch: int, keep: int) -> int:
        """Mark all batches up to `batch` as ended, and delete their landings except those of the last `keep` batches.
        Returns the number of deleted objects. If the process dies during the call, the next call deletes the rest."""
        self._fences.ensure(f"{batch:09d}", NoContent())  # an earlier call may have been killed after this line
        landed = f"{FOLDER}{self._run}/"
        numbered = [(NUMBERED.match(name, len(landed)), name) for name in self._objects.names(landed)]
        done = [name for number, name in numbered if number and int(number[0]) <= batch - keep]
        for name in done:
            self._objects.delete(name)
        self._fences.keep_newest(FENCES_KEPT)
        return len(done)

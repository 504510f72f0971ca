"""Named landings: Parquet objects with landed messages, and a manifest that lists the objects.

The manifest is written last, and create-only. If several readers land under the same name, one of them creates the
manifest, and the others serve the objects listed in that manifest.
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
"""Number of newest fences that are kept. With two, a listing always finds at least one of them, even while a new fence
is being written and an old one deleted."""

NUMBERED = re.compile(r"\d{9}")


@dataclass(frozen=True, slots=True)
class NamedLanding:
    """The messages that landed under one name.

    `pieces` are the names of the objects that contain the heartbeats. `oldest_publish_time` also takes rejected
    messages into account.
    """

    pieces: tuple[str, ...]
    oldest_publish_time: Annotated[
        Annotated[datetime, BeforeValidator(from_us), PlainSerializer(to_us)] | None,
        Field(alias="oldest_publish_time_us"),
    ]


MANIFEST = JsonKind(FOLDER, "restore a copy: the messages it lists are acknowledged already", holds=NamedLanding)
"""The manifest of a landing. Its key is the landing's name."""

PIECE = ParquetKind("", "restore a copy: its messages are acknowledged already", suffix="")
"""An object with part of a landing's heartbeats. Its columns are those of the `heartbeats` table, except the partition
column. Its key is the object's full name, as listed in the manifest."""


def piece_name(name: str, attempt: str, number: int) -> str:
    """Return the object name of piece number `number`, for an `attempt` to land messages under `name`."""
    return f"{FOLDER}{name}-{attempt}-{number}.parquet"


class LandedBatches:
    """The landings of one run. Several readers land each batch together. A fence object marks a batch that is over.

    The landings of a batch that is over may be deleted, including their manifests. A slow reader of that batch would
    then find no manifest, create one, and acknowledge messages that nobody requests again. To prevent this:
    - A fence is written before any landing is deleted.
    - A reader that has created a manifest checks for the fence before it acknowledges.
    """

    def __init__(self, objects: ObjectStore, run: str) -> None:
        self._objects = objects
        self._run = run
        self._fences = Notes(
            objects, JsonKind(f"{FOLDER}{run}/over-", key=NUMBERED.pattern, suffix="", holds=NoContent)
        )

    def name(self, batch: int, reader: int) -> str:
        """Return the name under which reader number `reader` lands its part of the batch."""
        return f"{self._run}/{batch:09d}-{reader:04d}"

    def is_over(self, batch: int) -> bool:
        """True if this batch or a later one has ended."""
        return any(int(number) >= batch for number in self._fences.listed())

    def end(self, batch: int, keep: int) -> int:
        """Mark all batches up to `batch` as over, and delete their landings, except the landings of the last `keep`
        batches. Returns the number of deleted objects. The call may be repeated. If the process dies in the call, the
        next call finishes the deletion."""
        self._fences.ensure(f"{batch:09d}", NoContent())  # an earlier call may have been killed after this line
        landed = f"{FOLDER}{self._run}/"
        numbered = [(NUMBERED.match(name, len(landed)), name) for name in self._objects.names(landed)]
        done = [name for number, name in numbered if number and int(number[0]) <= batch - keep]
        for name in done:
            self._objects.delete(name)
        self._fences.keep_newest(FENCES_KEPT)
        return len(done)

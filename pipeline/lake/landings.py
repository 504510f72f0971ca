"""Landings under a name: Parquet objects beside a manifest that lists them, and the end of a batch of landings.

The manifest is written last and create-only. Of all readers that land under one name, one creates it, and the others
serve what it lists. Objects have no folder of their own, so that no empty folders pile up on disk.
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
"""Newest fences that stay: a listing that runs while one is written and an older one deleted sees one of them."""

NUMBERED = re.compile(r"\d{9}")


@dataclass(frozen=True, slots=True)
class NamedLanding:
    """The messages that landed under a name. `pieces` are the objects that hold its heartbeats.

    `oldest_publish_time` is of rejected messages as well. `is_served` says that it had landed before, or that another
    reader was first. Nothing was acknowledged for it then.
    """

    pieces: tuple[str, ...]
    oldest_publish_time: Annotated[
        Annotated[datetime, BeforeValidator(from_us), PlainSerializer(to_us)] | None,
        Field(alias="oldest_publish_time_us"),
    ]
    is_served: Annotated[bool, Field(exclude=True)] = True


MANIFEST = JsonKind(FOLDER, "put back a copy: what it lists is acknowledged already", holds=NamedLanding)
"""Its key is the name that something landed under."""

PIECE = ParquetKind("", "put back a copy: its messages are acknowledged already", suffix="")
"""Rows of `heartbeats` without the partition column. Its key is the object's name, as a manifest lists it."""


def piece_name(name: str, attempt: str, number: int) -> str:
    """An object with heartbeats that an attempt to land under this name writes."""
    return f"{FOLDER}{name}-{attempt}-{number}.parquet"


class LandedBatches:
    """The landings of one run of batches, each by several readers, and which of its batches are over.

    Landings of a batch that is over may be deleted, manifests included. A straggler of that batch would find no
    manifest, create it, and acknowledge messages that are never asked for. So a fence is written before anything
    is deleted, and a reader that has created a manifest looks for the fence before it acknowledges.
    """

    def __init__(self, objects: ObjectStore, run: str) -> None:
        self._objects = objects
        self._run = run
        self._fences = Notes(
            objects, JsonKind(f"{FOLDER}{run}/over-", key=NUMBERED.pattern, suffix="", holds=NoContent)
        )

    def name(self, batch: int, reader: int) -> str:
        """The name that a reader lands under."""
        return f"{self._run}/{batch:09d}-{reader:04d}"

    def is_over(self, batch: int) -> bool:
        """Return whether this batch, or a later one, was ended."""
        return any(int(number) >= batch for number in self._fences.listed())

    def end(self, batch: int, keep: int) -> int:
        """Note that all batches up to this one are over, and delete what they landed, except the last `keep` of them.
        Safe to repeat, and to be killed at any point: the next end deletes what is left. Returns the number of deleted
        objects."""
        self._fences.ensure(f"{batch:09d}", NoContent())  # it may have ended before, and not to the end
        landed = f"{FOLDER}{self._run}/"
        numbered = [(NUMBERED.match(name, len(landed)), name) for name in self._objects.names(landed)]
        done = [name for number, name in numbered if number and int(number[0]) <= batch - keep]
        for name in done:
            self._objects.delete(name)
        self._fences.keep_newest(FENCES_KEPT)
        return len(done)

"""Named landings: Parquet objects and a manifest that lists them. Also deletes the landings of batches that are over.

The manifest is written last and create-only. If several readers land under one name, one creates the manifest, and the
others serve the objects that it lists. Landings have no folders of their own, so no empty folders accumulate on disk.
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
"""Number of newest fences kept. With two, a listing sees at least one while a new fence is written and an old one
deleted."""

NUMBERED = re.compile(r"\d{9}")


@dataclass(frozen=True, slots=True)
class NamedLanding:
    """The messages that landed under a name. `pieces` are the objects that hold their heartbeats.

    `oldest_publish_time` includes rejected messages. `is_served` is true if an earlier attempt or another reader landed
    the messages. This reader then acknowledged nothing.
    """

    pieces: tuple[str, ...]
    oldest_publish_time: Annotated[
        Annotated[datetime, BeforeValidator(from_us), PlainSerializer(to_us)] | None,
        Field(alias="oldest_publish_time_us"),
    ]
    is_served: Annotated[bool, Field(exclude=True)] = True


MANIFEST = JsonKind(FOLDER, "restore a copy: the messages it lists are acknowledged already", holds=NamedLanding)
"""The manifest of a landing. Its key is the name of the landing."""

PIECE = ParquetKind("", "restore a copy: its messages are acknowledged already", suffix="")
"""Rows of `heartbeats` without the partition column. The key is the object's name, as listed in a manifest."""


def piece_name(name: str, attempt: str, number: int) -> str:
    """Return the name of the object for one piece, written by an attempt to land under `name`."""
    return f"{FOLDER}{name}-{attempt}-{number}.parquet"


class LandedBatches:
    """The landings of one run. Several readers land each batch together, and fences mark the batches that are over.

    Landings of a batch that is over may be deleted, including their manifests. A straggler of that batch would find no
    manifest, create one, and acknowledge messages that are never requested again. So a fence is written before anything
    is deleted, and a reader that has created a manifest checks for the fence before it acknowledges.
    """

    def __init__(self, objects: ObjectStore, run: str) -> None:
        self._objects = objects
        self._run = run
        self._fences = Notes(
            objects, JsonKind(f"{FOLDER}{run}/over-", key=NUMBERED.pattern, suffix="", holds=NoContent)
        )

    def name(self, batch: int, reader: int) -> str:
        """Return the name under which a reader lands its part of a batch."""
        return f"{self._run}/{batch:09d}-{reader:04d}"

    def is_over(self, batch: int) -> bool:
        """True if this batch or a later one has ended."""
        return any(int(number) >= batch for number in self._fences.listed())

    def end(self, batch: int, keep: int) -> int:
        """End all batches up to `batch`, and delete their landings except those of the last `keep` batches. Returns the
        number of deleted objects. The call may be repeated, or killed at any point: the next call finishes the
        deletion."""
        self._fences.ensure(f"{batch:09d}", NoContent())  # an earlier call may have been killed after this line
        landed = f"{FOLDER}{self._run}/"
        numbered = [(NUMBERED.match(name, len(landed)), name) for name in self._objects.names(landed)]
        done = [name for number, name in numbered if number and int(number[0]) <= batch - keep]
        for name in done:
            self._objects.delete(name)
        self._fences.keep_newest(FENCES_KEPT)
        return len(done)

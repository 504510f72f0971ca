"""What killed drains and killed writes leave behind beside the tables: it is told by its name and its age alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.clock import from_us
from pipeline.lake.store.address import arrow_files, table_uri
from pipeline.lake.store.disk import TEMPORARY
from pipeline.lake.store.objects import ObjectStore
from pipeline.lake.tables.landings import FOLDER as LANDINGS
from pipeline.settings import LakeSettings
from pipeline.upkeep.orphans import Place

DRAIN = "drain-"
"""Begins the name of a drain's folder of manifests. What they list is in the tables: nobody asks for them again once
their run is over. What a stream has landed, under any other name, may still be asked for."""

COMMIT, OF_COMMIT = "_commit_", ".tmp"
"""How the Delta library calls a commit on a disk that it has not put in place yet."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object of the lake, by its name, and when it was written."""

    name: str
    written_at: datetime


def leftovers(lake: LakeSettings, now: datetime, grace: timedelta) -> list[Leftover]:
    """Those that are older than a grace time, which is longer than any run and any write. Raises LakeError."""
    return [found for found in (*_of_drains(lake), *_temporary(lake)) if now - found.written_at >= grace]


def remove_leftovers(found: list[Leftover], objects: ObjectStore) -> None:
    """Delete them. Safe to repeat. Raises LakeError."""
    for leftover in found:
        objects.delete(leftover.name)


def _of_drains(lake: LakeSettings) -> Iterator[Leftover]:
    folder = LANDINGS.rstrip("/")
    for info in Place(arrow_files(lake, folder), table_uri(lake, folder)).listed():
        path = info.path.lstrip("/")
        if path.startswith(DRAIN):
            yield Leftover(f"{LANDINGS}{path}", info.mtime)


def _temporary(lake: LakeSettings) -> Iterator[Leftover]:
    """On a disk; a bucket shows an object when it is whole."""
    if lake.folder is None:
        return
    for path in sorted(lake.folder.rglob("*")):
        is_commit = path.name.startswith(COMMIT) and path.name.endswith(OF_COMMIT)
        if (path.name.startswith(TEMPORARY) or is_commit) and path.is_file():
            yield Leftover(path.relative_to(lake.folder).as_posix(), from_us(path.stat().st_mtime_ns // 1000))

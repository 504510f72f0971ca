"""The progress of the staleness check, kept in the lake as one small object that can be recomputed."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import orjson
import pyarrow as pa
from pydantic import ConfigDict, TypeAdapter

from tidemark.pipeline.errors import DamagedNote
from tidemark.pipeline.lake.store.notes import Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.quality.missed.first_landings import LANDINGS

logger = logging.getLogger(__name__)

CHECKPOINTS = ParquetKind("staleness/", "the tables are checked from the beginning", columns=LANDINGS.names)
"""The unread landings as rows, everything else as JSON in the metadata. The key holds the versions of both tables."""

CHECKED = "tidemark.checked"
COMMITS_BETWEEN = 200
"""After this many commits a checkpoint is written even if nothing changed: this bounds what a new process reads."""


@dataclass(frozen=True, slots=True)
class StalenessCheckpoint:
    """A state of the check: everything that landed through `heartbeats_version` is checked against the windows computed
    as of `diffs_version`.

    `tables` are the ids of the two tables. `unread` has the heartbeats that some computed window lacks, as rows of
    LANDINGS. `unknown` has the computed windows whose input is unknown. `mended` counts the heartbeats that were missed
    once and no longer are. `damaged` maps unreadable files of `heartbeats` to their event hours."""

    __pydantic_config__: ClassVar = ConfigDict(arbitrary_types_allowed=True)

    tables: tuple[str, str]
    heartbeats_version: int = -1
    diffs_version: int = -1
    unread: pa.Table = field(default_factory=LANDINGS.empty_table)
    unknown: frozenset[str] = frozenset()
    mended: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)


AS_JSON = TypeAdapter(StalenessCheckpoint)


class CheckpointStore:
    """Stores the newest checkpoint. If it is absent or damaged, the check starts over: slower, with the same result."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, CHECKPOINTS)
        self._kept: StalenessCheckpoint | None = None

    def newest(self) -> StalenessCheckpoint | None:
        """Read the newest checkpoint; None if it is absent or damaged. Raises NewerFormat, LakeUnreachable."""
        for key in reversed(self._notes.listed()):
            try:
                self._kept = self._found(key)
            except DamagedNote as error:
                logger.warning("%s", error)
                return None
            if self._kept is not None:
                return self._kept
        return None

    def keep(self, checkpoint: StalenessCheckpoint) -> None:
        """Store the checkpoint if its content changed or it is COMMITS_BETWEEN commits further. Raises LakeError."""
        if self._kept is not None and not _is_news(self._kept, checkpoint):
            return
        earlier = self._notes.listed()
        key = f"{checkpoint.heartbeats_version:012d}-{checkpoint.diffs_version:012d}"
        checked = AS_JSON.dump_json(checkpoint, exclude={"unread"})
        # Another process may have checked the same versions.
        self._notes.ensure(key, checkpoint.unread.replace_schema_metadata({CHECKED: checked}))
        self._notes.delete(*(old for old in earlier if old != key))
        self._kept = checkpoint

    def _found(self, key: str) -> StalenessCheckpoint | None:
        """Read a checkpoint; None if another process has replaced it meanwhile."""
        rows = self._notes.find(key)
        if rows is None:
            return None
        try:
            checked = orjson.loads((rows.schema.metadata or {}).get(CHECKED.encode(), b""))
            unread = rows.select(LANDINGS.names).cast(LANDINGS).replace_schema_metadata(None)
            return AS_JSON.validate_python({**checked, "unread": unread})
        except (pa.ArrowException, ValueError, TypeError) as error:
            raise CHECKPOINTS.broken(self._notes.place(key), error) from error


def _is_news(kept: StalenessCheckpoint, new: StalenessCheckpoint) -> bool:
    commits = new.heartbeats_version - kept.heartbeats_version + new.diffs_version - kept.diffs_version
    return (
        commits >= COMMITS_BETWEEN
        or (kept.tables, kept.unknown, kept.mended, kept.damaged) != (new.tables, new.unknown, new.mended, new.damaged)
        or not kept.unread.equals(new.unread)
    )

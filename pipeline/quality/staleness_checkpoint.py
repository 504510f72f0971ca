"""How far a check of staleness has come, kept in the lake as one small object that can be derived again."""

import io
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.pipeline.errors import ObjectExists, ObjectMissing
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.quality.first_landings import LANDINGS
from tidemark.pipeline.version import marks, refuse_newer

logger = logging.getLogger(__name__)

FOLDER = "staleness/"
METADATA_KEY = "tidemark.checked"
COMMITS_BETWEEN = 200
"""After this many commits a checkpoint is written even if it says nothing new: it bounds what a new process reads."""


@dataclass(frozen=True, slots=True)
class StalenessCheckpoint:
    """Everything that landed through `heartbeats_version` is judged for the windows computed as of `diffs_version`.

    `tables` are the ids of the two tables. `unread` has the heartbeats that some computed window lacks, as rows of
    LANDINGS. `unknown` has the computed windows of which nobody can say what they have read. `mended` counts the
    heartbeats that were missed once and are not any more. `damaged` has the files of `heartbeats` that could not be
    read, with their event hours.
    """

    tables: tuple[str, str]
    heartbeats_version: int = -1
    diffs_version: int = -1
    unread: pa.Table = field(default_factory=LANDINGS.empty_table)
    unknown: frozenset[str] = frozenset()
    mended: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)


class CheckpointStore:
    """Keeps the newest checkpoint. If there is none, or it is damaged, a check begins anew: slower, same result."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._kept: StalenessCheckpoint | None = None

    def newest(self) -> StalenessCheckpoint | None:
        """The newest checkpoint that was kept. Raises NewerFormat, LakeUnreachable."""
        for name in reversed(list(self._objects.names(FOLDER))):
            try:
                self._kept = _decoded(self._objects.read(name), f"{self._objects.uri}/{name}")
            except ObjectMissing:  # another process has replaced it meanwhile
                continue
            except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
                logger.warning("%s is damaged (%s): the tables are checked from the beginning", name, error)
                return None
            return self._kept
        return None

    def keep(self, checkpoint: StalenessCheckpoint) -> None:
        """Keep this one if it says something new, or is COMMITS_BETWEEN further. Raises LakeError."""
        if self._kept is not None and not _is_news(self._kept, checkpoint):
            return
        earlier = list(self._objects.names(FOLDER))
        name = f"{FOLDER}{checkpoint.heartbeats_version:012d}-{checkpoint.diffs_version:012d}.parquet"
        with suppress(ObjectExists):  # another process has checked the same versions
            self._objects.create(name, _encoded(checkpoint))
        for old in earlier:
            if old != name:
                self._objects.delete(old)
        self._kept = checkpoint


def _is_news(kept: StalenessCheckpoint, new: StalenessCheckpoint) -> bool:
    commits = new.heartbeats_version - kept.heartbeats_version + new.diffs_version - kept.diffs_version
    return (
        commits >= COMMITS_BETWEEN
        or (kept.tables, kept.unknown, kept.mended, kept.damaged) != (new.tables, new.unknown, new.mended, new.damaged)
        or not kept.unread.equals(new.unread)
    )


def _encoded(checkpoint: StalenessCheckpoint) -> bytes:
    values = {field.name: getattr(checkpoint, field.name) for field in fields(checkpoint) if field.name != "unread"}
    values["unknown"] = sorted(checkpoint.unknown)
    sink = io.BytesIO()
    rows = checkpoint.unread.replace_schema_metadata({METADATA_KEY: json.dumps(values), **marks()})
    pq.write_table(rows, sink, compression="zstd")
    return sink.getvalue()


def _decoded(content: bytes, name: str) -> StalenessCheckpoint:
    rows = pq.read_table(io.BytesIO(content), use_threads=False)
    refuse_newer(name, rows.schema.metadata)
    values = json.loads(rows.schema.metadata[METADATA_KEY.encode()])
    values |= {"tables": tuple(values["tables"]), "unknown": frozenset(values["unknown"])}
    unread = rows.select(LANDINGS.names).cast(LANDINGS).replace_schema_metadata(None)
    return StalenessCheckpoint(unread=unread, **values)

"""What a check of staleness leaves for the next, kept as one small object that can be made again from the tables."""

import io
import json
import logging
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import ObjectExists, ObjectMissing
from pipeline.lake.store.objects import ObjectStore
from pipeline.quality.arrivals import ARRIVED

logger = logging.getLogger(__name__)

FOLDER = "staleness/"
KEPT_AS = b"tidemark.checked"
COMMITS_BETWEEN = 200
"""After so many versions of a table it is kept again, also when nothing else has changed."""


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check leaves for the next: how far it looked, in which tables; the heartbeats that some computed window
    has not read (columns of ARRIVED); the computed windows of which nobody can say what they have read."""

    tables: tuple[str, str]
    heartbeats_version: int = -1
    diffs_version: int = -1
    arrived: pa.Table = field(default_factory=ARRIVED.empty_table)
    unknown: frozenset[str] = frozenset()
    mended: int = 0


class CheckedStore:
    """Keeps the newest. Who finds none, or a damaged one, begins anew: slower, with the same result."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._kept: Checked | None = None

    def newest(self) -> Checked | None:
        """What was kept last. Raises LakeUnreachable."""
        for name in reversed(list(self._objects.names(FOLDER))):
            try:
                self._kept = _decoded(self._objects.read(name))
            except ObjectMissing:  # a newer one was kept meanwhile, and this one removed
                continue
            except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
                logger.warning("%s is damaged (%s): the tables are checked from the beginning", name, error)
                return None
            return self._kept
        return None

    def keep(self, checked: Checked) -> None:
        """Keep this one, if it says something else than the last or is much further. Raises LakeError."""
        if self._kept is not None and not _is_news(self._kept, checked):
            return
        earlier = list(self._objects.names(FOLDER))
        name = f"{FOLDER}{checked.heartbeats_version:012d}-{checked.diffs_version:012d}.parquet"
        try:
            self._objects.create(name, _encoded(checked))
        except ObjectExists:  # another process has checked the same versions
            logger.debug("%s is there already", name)
        for old in earlier:
            if old != name:
                self._objects.delete(old)
        self._kept = checked


def _is_news(kept: Checked, checked: Checked) -> bool:
    commits = checked.heartbeats_version - kept.heartbeats_version + checked.diffs_version - kept.diffs_version
    return (
        kept.tables != checked.tables
        or kept.unknown != checked.unknown
        or kept.mended != checked.mended
        or not kept.arrived.equals(checked.arrived)
        or commits >= COMMITS_BETWEEN
    )


def _encoded(checked: Checked) -> bytes:
    said = {
        "tables": checked.tables,
        "heartbeats_version": checked.heartbeats_version,
        "diffs_version": checked.diffs_version,
        "unknown": sorted(checked.unknown),
        "mended": checked.mended,
    }
    rows = checked.arrived.replace_schema_metadata({KEPT_AS: json.dumps(said).encode()})
    sink = io.BytesIO()
    pq.write_table(rows, sink, compression="zstd")
    return sink.getvalue()


def _decoded(content: bytes) -> Checked:
    rows = pq.read_table(io.BytesIO(content), use_threads=False)
    said = json.loads(rows.schema.metadata[KEPT_AS])
    heartbeats, diffs = said["tables"]
    return Checked(
        tables=(heartbeats, diffs),
        heartbeats_version=said["heartbeats_version"],
        diffs_version=said["diffs_version"],
        arrived=rows.select(ARRIVED.names).cast(ARRIVED).replace_schema_metadata(None),
        unknown=frozenset(said["unknown"]),
        mended=said["mended"],
    )

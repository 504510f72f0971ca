"""Finds the heartbeats that the windows of `heartbeat_diffs` lack, by comparing both tables hour by hour.

Used if the tables' logs no longer show what landed when, because commits or replaced files were removed.
"""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.pipeline.lake.tables.heartbeats import HOUR, HOUR_FORMAT, IDENTITY, identities
from tidemark.pipeline.lake.tables.heartbeats import PARTITION as EVENT_HOUR
from tidemark.pipeline.lake.tables.table import MOMENT, DamagedFile, LakeTable, listed, microseconds
from tidemark.pipeline.quality.missed.affected import NOT_COMPUTED, AffectedWindows
from tidemark.pipeline.quality.missed.first_landings import EVERY, LANDINGS, NO_ROWS, files_by_hour, landings, read_rows

logger = logging.getLogger(__name__)

HOURS_AT_ONCE = 6
"""Event hours per step of a comparison. With 10,000 streams, reading an hour of both tables takes some seconds."""

HELD = pa.schema({"stream_id": pa.string(), "event_time": MOMENT, "message_id": pa.string()})
"""The columns of `heartbeat_diffs` that identify the copy from which a row was computed."""


def ids_of(heartbeats: DeltaTable, diffs: DeltaTable) -> tuple[str, str]:
    """Return the ids of the two tables. A table that was lost and created again has a new id."""
    return str(heartbeats.metadata().id), str(diffs.metadata().id)


class TableComparison:
    """A comparison in progress between one version of `heartbeats` and one of `heartbeat_diffs`.

    `lacking` has the heartbeats found so far that are not in their own window, as rows of LANDINGS. The version with
    which they first landed is unknown, so the compared version is used. `unknown` has the windows found so far that may
    not have read everything in their lookback. `damaged` maps unreadable files of `heartbeats` to their event hours,
    which are not compared. One event hour is in memory at a time.
    """

    def __init__(
        self,
        landed: LakeTable,
        computed: LakeTable,
        versions: tuple[int, int],
        affected: AffectedWindows,
    ) -> None:
        """Raises ObjectMissing if one of the two versions can no longer be read, LakeError."""
        heartbeats, diffs = (table.at(at) for table, at in zip((landed, computed), versions, strict=True))
        self.tables = ids_of(heartbeats, diffs)
        self.heartbeats, self.diffs = heartbeats, diffs
        self.lacking = LANDINGS.empty_table()
        self.unknown: set[str] = set()
        self.damaged: dict[str, str] = {}
        self._landed, self._computed, self._files = landed, computed, listed(heartbeats)
        self._affected = affected
        self._hours = sorted({partition[EVENT_HOUR] for partition in heartbeats.partitions()})

    def advance(self, versions: Mapping[str, int]) -> int:
        """Compare the next HOURS_AT_ONCE event hours, and return the number of hours left. Hours without a window in
        `versions` are skipped. Raises LakeError; the next call then retries the same hour."""
        for hour in self._hours[:HOURS_AT_ONCE]:
            begins = datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)
            if any(key in versions for key in self._affected.keys_between(begins, begins + HOUR)):
                self._compare(hour, versions)
            self._hours.remove(hour)
        return len(self._hours)

    def _compare(self, hour: str, versions: Mapping[str, int]) -> None:
        rows = self._rows(hour)
        if rows is None:
            return
        landed = identities(rows).append_column("message_id", rows["message_id"].cast(pa.string()))
        ((own, _), *_) = self._affected.starts(microseconds(landed["event_time"]))
        held = self._held([key for key in map(self._affected.key, np.unique(own).tolist()) if key in versions])
        of_copies = landed.join(held, HELD.names, use_threads=False).group_by(list(IDENTITY), use_threads=False)
        each = of_copies.aggregate([("is_held", "max")])
        is_held = pc.fill_null(each["is_held_max"], False).combine_chunks().to_numpy(zero_copy_only=False)
        ((own, _), *later) = self._affected.starts(microseconds(each["event_time"]))
        own_version = self._affected.versions_of(own, versions)
        is_lacking = ~is_held & (own_version != NOT_COMPUTED)
        lacking = landings(each.filter(pa.array(is_lacking)).select(IDENTITY), self.heartbeats.version())
        self.lacking = pa.concat_tables([self.lacking, lacking])
        for starts, affects in later:
            # A window has certainly read what another window holds that was computed from the same version or earlier.
            may_lack = ~is_lacking & affects & (self._affected.versions_of(starts, versions) < own_version)
            self.unknown.update(map(self._affected.key, np.unique(starts[may_lack]).tolist()))

    def _rows(self, hour: str) -> pa.Table | None:
        """Read the landed rows of an event hour; None if one of its files is damaged or gone."""
        found = [NO_ROWS]
        for file in files_by_hour(self.heartbeats, self._files, [hour]).get(hour, ()):
            try:
                found.append(read_rows(self._landed, file, EVERY).cast(NO_ROWS.schema))
            except (DamagedFile, FileNotFoundError) as error:
                logger.warning("missed heartbeats of the event hour %s are not known: %s", hour, error)
                self.damaged[file.path] = hour
                return None
        return pa.concat_tables(found)

    def _held(self, windows: list[str]) -> pa.Table:
        """Read the rows of these windows, with a column `is_held` that is true."""
        rows = self._computed.rows(self.diffs, HELD.names, partitions=windows) if windows else HELD.empty_table()
        rows = rows.cast(HELD)
        return rows.append_column("is_held", pa.array([True] * rows.num_rows, pa.bool_()))

"""Finds what the windows of `heartbeat_diffs` lack, by comparing both tables hour by hour.

It serves where the tables' logs do not say what landed when: commits or replaced files were removed.
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
"""Event hours in one step of a comparison. With 10,000 streams, reading an hour of both tables takes some seconds."""

HELD = pa.schema({"stream_id": pa.string(), "event_time": MOMENT, "message_id": pa.string()})
"""The columns of `heartbeat_diffs` that identify the copy that a row was made from."""


def ids_of(heartbeats: DeltaTable, diffs: DeltaTable) -> tuple[str, str]:
    """The ids of the two tables: a table that was lost and begun again has another one."""
    return str(heartbeats.metadata().id), str(diffs.metadata().id)


class TableComparison:
    """A comparison under way between one version of `heartbeats` and one of `heartbeat_diffs`.

    `lacking` has the heartbeats found so far that their own window does not hold, as rows of LANDINGS. The version that
    they first landed with is not known, so the compared version stands for it. `unknown` has the windows found so far
    that may or may not have read what landed in their lookback. `damaged` has the files of `heartbeats` that cannot be
    read, with their hours, of which nothing is told. One event hour is in memory at a time.
    """

    def __init__(
        self,
        landed: LakeTable,
        computed: LakeTable,
        versions: tuple[int, int],
        affected: AffectedWindows,
    ) -> None:
        """Raises ObjectMissing if one of the versions of the two tables cannot be read any more, LakeError."""
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
        """Compare the next few event hours of the windows with known versions, and return how many hours are left.
        Raises LakeError; then the next call tries the same hour again."""
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
            # A window has read for certain what another window holds that was computed from the same version or before.
            may_lack = ~is_lacking & affects & (self._affected.versions_of(starts, versions) < own_version)
            self.unknown.update(map(self._affected.key, np.unique(starts[may_lack]).tolist()))

    def _rows(self, hour: str) -> pa.Table | None:
        """Read what landed of an event hour; None if a file of it is damaged or gone."""
        found = [NO_ROWS]
        for file in files_by_hour(self.heartbeats, self._files, [hour]).get(hour, ()):
            try:
                found.append(read_rows(self._landed, file, EVERY).cast(NO_ROWS.schema))
            except (DamagedFile, FileNotFoundError) as error:
                logger.warning("what is missed of the event hour %s is not known: %s", hour, error)
                self.damaged[file.path] = hour
                return None
        return pa.concat_tables(found)

    def _held(self, windows: list[str]) -> pa.Table:
        """The rows of these windows, each marked as held."""
        rows = self._computed.rows(self.diffs, HELD.names, partitions=windows) if windows else HELD.empty_table()
        rows = rows.cast(HELD)
        return rows.append_column("is_held", pa.array([True] * rows.num_rows, pa.bool_()))

"""Which heartbeats of some files first landed with them: the files' rows, less what the version before them held."""

from collections.abc import Generator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from pipeline.errors import LakeError, ObjectMissing
from pipeline.lake.tables.delta_log import AddedFile, DeltaLog
from pipeline.lake.tables.heartbeats import PARTITION
from pipeline.lake.tables.table import MOMENT, LakeTable, table_errors

IDENTITY = ("stream_id", "event_time", "id")
"""What copies of a heartbeat share, as in the micro-batch: `id` is the publisher's with a `p` before it where there is
one, else the message's with an `m`."""

ARRIVED = pa.schema(
    [
        pa.field("stream_id", pa.string()),
        pa.field("event_time", MOMENT),
        pa.field("id", pa.string()),
        pa.field("version", pa.int64()),
        pa.field("missed", pa.bool_()),
    ]
)
"""One row a heartbeat: the version that it first landed with, and whether its own window stands without it."""

READ = ("stream_id", "event_time", "publisher_id", "message_id")

FILES_AT_ONCE = 200
"""Opened, and the whole event hours that they are of, before it says how many are left."""


class Arrivals:
    """Reads first landings from the table of heartbeats."""

    def __init__(self, heartbeats: LakeTable, log: DeltaLog) -> None:
        self._heartbeats = heartbeats
        self._log = log

    def first_in(self, files: Sequence[AddedFile], before_us: int) -> Generator[int, None, pa.Table]:
        """The heartbeats below an event time that first landed with these files, each once, with its version. Now and
        then it says how many files are left.

        The version before the oldest of the files says what had landed before. One event hour is held at a time, and
        of what had landed before, the streams of these heartbeats alone. Assumption: copies that came later than the
        oldest of the files are in files that are among them. Raises ObjectMissing where a file, or that version, is
        gone.
        """
        by_hour: dict[str, list[AddedFile]] = {}
        for file in files:
            by_hour.setdefault(file.partition, []).append(file)
        known = self._version(min(file.version for file in files) - 1)
        found, left, read = [], len(files), 0
        for hour, of_hour in sorted(by_hour.items()):
            if read >= FILES_AT_ONCE:
                yield left
                read = 0
            left, read = left - len(of_hour), read + len(of_hour)
            rows = earliest(pa.concat_tables([self._rows(file, before_us) for file in of_hour]))
            if rows.num_rows and known is not None:
                held = self._held(known, hour, rows)
                rows = rows.join(held, list(IDENTITY), join_type="left anti", use_threads=False).select(ARRIVED.names)
            found.append(rows)
        return pa.concat_tables(found)

    def _version(self, version: int) -> DeltaTable | None:
        if version < 0:
            return None
        try:
            return self._heartbeats.at(version)
        except LakeError as error:
            raise ObjectMissing(
                f"version {version} of {self._heartbeats.uri} cannot be read any more: {error}"
            ) from error

    def _rows(self, file: AddedFile, before_us: int) -> pa.Table:
        below = pc.field("event_time") < pa.scalar(before_us, pa.int64()).cast(MOMENT)
        with table_errors(self._heartbeats.uri):
            try:
                rows = pq.read_table(
                    file.path, columns=list(READ), filesystem=self._log.files(), filters=below, use_threads=False
                )
            except FileNotFoundError as error:
                raise ObjectMissing(f"{self._heartbeats.uri}/{file.path} was removed before it was checked") from error
        version = pa.array([file.version] * rows.num_rows, pa.int64())
        missed = pa.array([False] * rows.num_rows, pa.bool_())
        return identified(rows).append_column("version", version).append_column("missed", missed)

    def _held(self, known: DeltaTable, hour: str, rows: pa.Table) -> pa.Table:
        """The identities in a version that may be those of `rows`: of the same hour, time range and streams."""
        moments = pc.min_max(rows["event_time"])
        alike = (
            (pc.field("event_time") >= moments["min"])
            & (pc.field("event_time") <= moments["max"])
            & pc.field("stream_id").isin(pc.unique(rows["stream_id"]))
        )
        with table_errors(self._heartbeats.uri):
            try:
                dataset = known.to_pyarrow_dataset(file_pruning_predicate=[(PARTITION, "=", hour)])
                return identified(dataset.to_table(columns=list(READ), filter=alike, use_threads=False))
            except FileNotFoundError as error:
                raise ObjectMissing(
                    f"{self._heartbeats.uri} has lost files of version {known.version()}: {error}"
                ) from error


def identified(rows: pa.Table) -> pa.Table:
    """Stream, event time and id of rows with the columns of READ."""
    publisher, message = rows["publisher_id"], rows["message_id"]
    own = pc.binary_join_element_wise("p", publisher, "")
    given = pc.binary_join_element_wise("m", message, "")
    return pa.table(
        {
            "stream_id": rows["stream_id"].cast(pa.string()),
            "event_time": rows["event_time"].cast(MOMENT),
            "id": pc.coalesce(own, given).cast(pa.string()),
        }
    )


def earliest(rows: pa.Table) -> pa.Table:
    """Each heartbeat of rows with the columns of ARRIVED once, with the least version; missed if any row was."""
    first = rows.group_by(list(IDENTITY), use_threads=False).aggregate([("version", "min"), ("missed", "max")])
    return first.rename_columns({"version_min": "version", "missed_max": "missed"}).select(ARRIVED.names).cast(ARRIVED)

"""The chores on one table: rewrite small files as larger ones, drop partitions, and delete old versions.

Each may be killed at any time, and may run concurrently with all other processes. Rewriting makes no window stale,
because the commit is marked `dataChange: false`. It disturbs no reader, because the replaced files stay until `trim`
deletes them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs
from deltalake import DeltaTable

from tidemark.pipeline.clock import EPOCH, SystemClock, to_us
from tidemark.pipeline.errors import REFUSALS, LakeError, LakeFull, TableConflict
from tidemark.pipeline.lake.store.disk import why_unwritable
from tidemark.pipeline.lake.store.objects import read_ahead
from tidemark.pipeline.lake.tables.heartbeats import HOUR
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles, refuse_old
from tidemark.pipeline.lake.tables.table import SPARE, DataFile, LakeTable, by_partition, kept_for, merged, table_errors

TARGET_BYTES, MOST_TARGET_BYTES = 16 << 20, 128 << 20
"""Minimum and maximum target size, in bytes, of the files in a rewritten partition. A file of the minimum size has the
rows of 10,000 streams for a few minutes. So a run that reads one window can skip most files of an hour by their
statistics. The target exceeds the minimum only if a partition would otherwise have more than FILES files."""

FILES = 64
"""Maximum number of new files per rewritten partition, unless they would be larger than MOST_TARGET_BYTES. Few files
keep commits fast, because every commit goes through the list of all files of a table."""

SMALL_BYTES = TARGET_BYTES // 2
MANY = 8
"""Thresholds for rewriting: files smaller than SMALL_BYTES are rewritten if a partition has at least MANY of them."""

SORTED_FILES, SORTED_BYTES = 8, 512 << 20
"""Maximum size in memory of the rows that are sorted together: as a multiple of a new file's target size, and in bytes.
On disk, rows take about a fifth of that."""

LEFT_BYTES = 256 << 20
"""Minimum free disk space that a rewrite leaves. A rewrite that fills the disk fails, but its new files stay until they
count as orphans."""

NAMED_FEATURES = 7
"""The lowest Delta writer version with which a table lists its features by name."""


Figures = dict[str, int]
"""The results of a chore as numbers, keyed by name. In a dry run, these are the expected results."""

Done = tuple[str, Figures]
"""The outcome of a chore: a sentence, and figures. If the chore had nothing to do, the figures are empty and the
sentence says why."""


def compact(table: LakeTable, last: str, order: str, *, dry_run: bool = False) -> Iterator[tuple[str, Figures]]:
    """Rewrite the small files of a table as fewer, larger files, in each partition up to `last` that has many of them.
    The newest partition comes first, and each partition is a separate commit, so the caller may stop after any
    partition.

    Yields each partition with the number and the bytes of its small files and of the files that replace them. With
    `dry_run`, nothing is rewritten, and only the figures of the small files are yielded.

    Readers see the same rows before and after, and concurrent appends succeed. The rows of the new files are sorted by
    the column `order`, in parts. Raises LakeError, and TableConflict if another process rewrites the same files. An
    error about one partition is raised after the others are done. An error of the storage is raised immediately.
    """
    if (current := table.current()) is None:
        return
    small = by_partition(file for file in table.files(at=current) if file.size < SMALL_BYTES)
    columns = pa.schema(current.schema().to_arrow())
    schema = columns.remove(columns.get_field_index(table.partition_column))

    def rewrite(partition: str) -> Iterator[tuple[str, Figures]]:
        files, size = small[partition], sum(file.size for file in small[partition])
        figures = {"files": len(files), "bytes": size}
        if dry_run:
            yield partition, figures
            return
        if "://" not in table.uri and (problem := why_unwritable(Path(table.uri), size + LEFT_BYTES)):
            raise LakeFull(f"partition {partition} of {table.uri} was not rewritten: {problem}")
        written = [*_rewritten(table, files, schema, order)]
        _exchange(table, partition, files, written)
        yield partition, {**figures, "files_after": len(written), "bytes_after": sum(file.size for file in written)}

    many = (name for name, files in small.items() if len(files) >= MANY)
    yield from of_each(sorted((name for name in many if name <= last), reverse=True), rewrite)


def sorted_bytes(target: int) -> int:
    """Return the size in memory of the rows that are sorted together, for new files of this target size."""
    return min(int(SORTED_FILES * target), SORTED_BYTES)


def _rewritten(table: LakeTable, files: Sequence[DataFile], schema: pa.Schema, order: str) -> Iterator[NewFile]:
    """Write the rows of these files of one partition to new, durable files, and yield the new files. They have about
    the target size, and their rows are sorted."""
    size, new = sum(file.size for file in files), NewFiles(table, SystemClock())
    target, row_bytes = target_bytes(size), max(1, size // max(1, sum(file.rows for file in files)))
    in_order = sorted(files, key=lambda file: (file.oldest or EPOCH, file.added_at))
    read = (rows for _, rows in read_ahead(lambda file: table.file_rows(file.path, schema), in_order))
    for rows in merged(read, sorted_bytes(target)):
        rest = rows.sort_by(order)
        while len(rest):
            file = new.write_part(files[0].partition, rest.slice(0, max(1, target // row_bytes)))
            rest, row_bytes = rest.slice(file.rows), max(1, file.size // file.rows)
            yield file


def _exchange(table: LakeTable, partition: str, files: Sequence[DataFile], written: Sequence[NewFile]) -> None:
    """Replace files of a partition with new ones that have the same rows, in one transaction. The Delta library itself
    would let two rewrites of the same files succeed, which would duplicate rows. Raises TableConflict and LakeError."""
    for _ in table.attempts():
        now_us = to_us(SystemClock().now())
        refuse_old(table, min(file.written_us for file in written), now_us)
        current = table.current()
        there = {file.path for file in table.files([partition], current)}
        if current is None or not there.issuperset(file.path for file in files):
            raise TableConflict(f"another process has rewritten partition {partition} of {table.uri} in the meantime")
        with suppress(TableConflict):
            table.transact(current, [*written, *files], now_us, data_change=False)
            return


def target_bytes(size: int) -> int:
    """Return the target size in bytes of the new files in a rewritten partition. `size` is the total size in bytes of
    the files to rewrite."""
    return min(max(TARGET_BYTES, size // FILES), MOST_TARGET_BYTES)


def trim(table: LakeTable, keep: timedelta, *, dry_run: bool = False) -> Figures:
    """Delete the files and commits that belong only to old versions of a table, and return the numbers of both. A
    version is old if a later one replaced it more than `keep` (whole hours) ago. Its commits stay for SPARE longer.
    Also write a checkpoint, so that the table opens quickly. With `dry_run`, only count the files.

    Files that are not committed yet are not deleted. May be killed at any time, and may run concurrently with all other
    processes. Raises LakeError.
    """
    if (current := table.in_place()) is None:
        return {"files": 0, "commits": 0}

    # Delete only files that a commit has removed, never unlisted files, which may belong to a running run.
    vacuum = partial(current.vacuum, keep // HOUR, enforce_retention_duration=False, full=False)
    with table_errors(table.uri):  # the library also names the files that it has deleted in the last SPARE
        stored = table.folder.get_file_info(pafs.FileSelector("", recursive=True))
        files = len({info.path.lstrip("/") for info in stored}.intersection(vacuum(dry_run=True)))
    if dry_run:
        return {"files": files, "commits": 0}
    before = table.log.versions()
    _keep_commits_for(table, current, keep + SPARE)
    with table_errors(table.uri):
        if files:
            vacuum(dry_run=False)
        current.update_incremental()
        current.create_checkpoint()
        table.make_durable()  # a table whose `_last_checkpoint` survives a power cut needs the checkpoint too
        with suppress(FileNotFoundError):  # lost answer or concurrent deletion: the next call deletes the rest
            current.cleanup_metadata()
    return {"files": files, "commits": len({*before}.difference(table.log.versions()))}


def drop_partitions(table: LakeTable, before: str, *, dry_run: bool = False) -> Figures:
    """Remove the partitions below the value `before` from a table, and return the number of partitions, rows and bytes.
    Their files stay until `trim` deletes them. With `dry_run`, nothing is removed. Raises TableConflict and
    LakeError."""
    for _ in table.attempts():
        current = table.current()
        old = [file for file in table.files(at=current) if file.partition < before]
        if current is None or not old or dry_run:
            break
        with suppress(TableConflict):  # the library's own `delete` panics if the path has one of `[]^|`
            table.transact(current, old, to_us(SystemClock().now()))
            break
    rows, size = sum(file.rows for file in old), sum(file.size for file in old)
    return {"partitions": len({file.partition for file in old}), "rows": rows, "bytes": size}


def _keep_commits_for(table: LakeTable, current: DeltaTable, keep: timedelta) -> None:
    """Set how long the log keeps commits. A table that lists its features by name, such as a table with times without a
    zone, is left unchanged: the library would also turn on `variantType`, which many readers lack."""
    wanted, has_names = kept_for(keep), current.protocol().min_writer_version >= NAMED_FEATURES
    if not has_names and not wanted.items() <= current.metadata().configuration.items():
        with table_errors(table.uri):
            current.alter.set_table_properties(wanted)
        table.make_durable()


def of_each(names: Iterable[str], do: Callable[[str], Iterable[Done]]) -> Iterator[Done]:
    """Do a part of a chore for each table or partition. The first error is raised after the other parts are done. An
    error of the lake's storage itself, such as a full disk, is raised immediately."""
    failed: LakeError | None = None
    for name in names:
        try:
            yield from do(name)
        except REFUSALS:
            raise
        except LakeError as error:
            failed = failed or error
    if failed is not None:
        raise failed

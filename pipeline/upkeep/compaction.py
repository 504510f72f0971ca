"""Keeps a Delta table small: rewrites small files as larger ones, and removes files that only earlier versions need.

A rewrite is marked as changing no data (`dataChange: false`), so it makes no window stale. The replaced files stay as
long as earlier versions are kept, so no reader is disturbed.
"""

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

from deltalake import DeltaTable
from deltalake.table import FilterConjunctionType

from tidemark.pipeline.lake.tables.delta_log import logged
from tidemark.pipeline.lake.tables.heartbeats import HOUR
from tidemark.pipeline.lake.tables.table import DataFile, LakeTable, data_files, table_errors

TARGET_BYTES, MOST_TARGET_BYTES = 16 << 20, 128 << 20
"""Minimum and maximum target size of a rewritten file. The minimum is a few minutes of 10,000 streams, so that a run
skips most of an hour by statistics. Larger targets are used if a partition would have more than `FILES` files."""

FILES = 64
"""Maximum number of files of a rewritten partition, unless they would be too large: each commit goes through all files
of the table."""

SMALL_BYTES = TARGET_BYTES // 2
MANY = 8
"""A partition with at least this many small files is rewritten. A rewrite leaves only a few."""

SORTED_ROWS, SORTED_BYTES = 5_000_000, 256 << 20
"""A larger partition is not sorted, since a sort holds all of it in memory: some 0.4 kB per row."""

SPARE = timedelta(days=1)
"""Tombstones and commits are kept this much longer than the files they remove, so that a vacuum finds all of them."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A partition that was rewritten, or would be in a dry run: its files and their bytes, before and after (0 in a dry
    run)."""

    partition: str
    files: int
    size: int
    files_after: int = 0
    size_after: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """The data removed from a table (in a dry run: to be removed): partitions, their rows, and their files' bytes."""

    partitions: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The numbers of removed files (in a dry run: to be removed): data files listed only by earlier versions, and
    commits."""

    files: int = 0
    commits: int = 0


def compact(table: LakeTable, last: str, order: str, *, dry_run: bool = False) -> Iterator[Rewritten]:
    """Rewrite each partition up to `last` that has many small files, the newest partition first. Each is a separate
    commit, so a caller may stop after any of them and continue another time.

    Guarantee: readers see the same rows before and after, and concurrent appends are not disturbed. Rows are sorted by
    the column `order`. In a large partition they keep the order in which they were added, which bounds memory to some
    2 GB. Raises TableConflict if another process has rewritten the same files; LakeError.
    """
    current = table.current()
    if current is None:
        return
    by_partition = defaultdict[str, list[DataFile]](list)
    for file in data_files(current, table.partition_column):
        by_partition[file.partition].append(file)
    for partition, files in sorted(by_partition.items(), reverse=True):
        if partition > last or sum(file.size < SMALL_BYTES for file in files) < MANY:
            continue
        found = Rewritten(partition, len(files), sum(file.size for file in files))
        if dry_run:
            yield found
            continue
        target = target_bytes(found.size)
        of_partition: FilterConjunctionType = [(table.partition_column, "=", partition)]
        with table_errors(table.uri):
            if sum(file.rows for file in files) <= SORTED_ROWS and found.size <= SORTED_BYTES:
                did = current.optimize.z_order([order], of_partition, target, max_concurrent_tasks=1)
            else:
                did = current.optimize.compact(of_partition, target, max_concurrent_tasks=1)
        table.make_durable()
        yield replace(found, files_after=did["numFilesAdded"], size_after=json.loads(did["filesAdded"])["totalSize"])


def target_bytes(size: int) -> int:
    """Return the target size of a rewritten file in a partition of `size` bytes."""
    return min(max(TARGET_BYTES, size // FILES), MOST_TARGET_BYTES)


def trim(table: LakeTable, keep: timedelta, *, dry_run: bool = False) -> Trimmed:
    """Remove the files and commits of versions that ended more than `keep` ago, in whole hours, and write a checkpoint,
    so that opening the table takes few reads. Younger versions stay readable, and uncommitted files are not touched.
    Safe to kill at any point, and to run concurrently with everything else. Raises LakeError."""
    current = table.current()
    if current is None:
        return Trimmed()

    def vacuum(*, dry_run: bool) -> int:
        with table_errors(table.uri):
            # Delete only what commits say was removed, never unlisted files: these may belong to a running run.
            return len(current.vacuum(keep // HOUR, dry_run=dry_run, enforce_retention_duration=False, full=False))

    files = vacuum(dry_run=True)
    if dry_run:
        return Trimmed(files)
    _keep_commits_for(table, current, keep + SPARE)
    if files:
        files = vacuum(dry_run=False)
    before = len(logged(table))
    with table_errors(table.uri):
        current.update_incremental()
        current.create_checkpoint()
        current.cleanup_metadata()
    return Trimmed(files, max(0, before - len(logged(table))))


def drop_partitions(table: LakeTable, before: str, *, dry_run: bool = False) -> Dropped:
    """Remove the partitions below a name from a table's newest version. Their files are deleted once no kept version
    lists them. Raises TableConflict if another process changed them concurrently; LakeError."""
    current = table.current()
    column = table.partition_column
    old = [file for file in data_files(current, column) if file.partition < before]
    if old and current is not None and not dry_run:
        with table_errors(table.uri):
            current.delete(f"{column} < '{before}'")
        table.make_durable()
    partitions = {file.partition for file in old}
    return Dropped(len(partitions), sum(file.rows for file in old), sum(file.size for file in old))


def _keep_commits_for(table: LakeTable, current: DeltaTable, keep: timedelta) -> None:
    """Make the library keep commits and tombstones for this time."""
    interval = f"interval {keep // HOUR} hours"
    wanted = {"delta.logRetentionDuration": interval, "delta.deletedFileRetentionDuration": interval}
    if wanted.items() <= current.metadata().configuration.items():
        return
    with table_errors(table.uri):
        current.alter.set_table_properties(wanted)
    table.make_durable()

"""A Delta table kept small: small files rewritten as few larger ones, and what only earlier versions need removed.

A rewrite is marked as changing no data (`dataChange: false`), so that it makes no window stale. The files that it
replaces stay as long as earlier versions are kept, so that no reader is disturbed.
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
"""Size of a rewritten file, at least: a few minutes of 10,000 streams, so that a run skips most of an hour by
statistics. And at most, where a partition would have more than `FILES`."""

FILES = 64
"""Files of a rewritten partition, while they are not too large: each commit goes through all files of the table."""

SMALL_BYTES = TARGET_BYTES // 2
MANY = 8
"""A partition with so many small files is rewritten. A rewrite leaves few of them."""

SORTED_ROWS, SORTED_BYTES = 5_000_000, 256 << 20
"""A larger partition is not sorted, since a sort holds it whole: some 0.4 kB a row."""

SPARE = timedelta(days=1)
"""The extra time that tombstones and commits are kept beyond the files that they remove, so that a vacuum finds them
all."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A partition that was rewritten, or would be: its files and their bytes, before and after (0: not yet)."""

    partition: str
    files: int
    size: int
    files_after: int = 0
    size_after: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """The rows taken out of a table, or to be: partitions, their rows, and the bytes of their files."""

    partitions: int = 0
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """The files removed, or to be: data files that only earlier versions list, and commits."""

    files: int = 0
    commits: int = 0


def compact(table: LakeTable, last: str, order: str, *, dry_run: bool = False) -> Iterator[Rewritten]:
    """Rewrite each partition up to `last` that has many small files, the newest partition first. Each is a commit of
    its own, so a caller may stop after any of them and go on another time.

    Guarantee: readers see the same rows before and after, and appends at the same time are not disturbed. Rows come in
    the order of a column. In a large partition they stay in the order in which they were added, so that memory is
    bounded: some 2 GB. Raises TableConflict if somebody else has rewritten the same files; LakeError.
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
    """The size of a rewritten file of a partition of so many bytes."""
    return min(max(TARGET_BYTES, size // FILES), MOST_TARGET_BYTES)


def trim(table: LakeTable, keep: timedelta, *, dry_run: bool = False) -> Trimmed:
    """Remove the files and commits of versions that ended more than `keep` ago, in whole hours, and write a checkpoint,
    so that opening the table takes few reads. Younger versions can be read, and files that are not committed yet are
    not touched. It can be killed at any point, and run beside everything else. Raises LakeError."""
    current = table.current()
    if current is None:
        return Trimmed()

    def vacuum(*, dry_run: bool) -> int:
        with table_errors(table.uri):
            # By what commits say was removed, never by what lies around: that may be of a run under way.
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
    """Take the partitions below a name out of a table's newest version. Their files are deleted once no version that is
    kept lists them. Raises TableConflict if somebody else changed them at the same time; LakeError."""
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
    """Have the library itself keep commits and tombstones for so long."""
    interval = f"interval {keep // HOUR} hours"
    wanted = {"delta.logRetentionDuration": interval, "delta.deletedFileRetentionDuration": interval}
    if wanted.items() <= current.metadata().configuration.items():
        return
    with table_errors(table.uri):
        current.alter.set_table_properties(wanted)
    table.make_durable()

"""A table's small files as few larger ones, in the order of event time, and what is left of its past removed.

Rewriting says of itself that it changes no data, so that it makes no window stale. What it replaced stays readable for
as long as earlier versions are kept: whoever reads one is not disturbed.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta

import pyarrow.fs as pafs
from deltalake import DeltaTable

from pipeline.lake.tables.table import DataFile, LakeTable, data_files, table_errors
from pipeline.upkeep.orphans import LOG_FOLDER

TARGET_BYTES = 16 << 20
"""Of a file: a few minutes of 10,000 streams, so that a micro-batch skips most of an hour by the files' statistics."""

SMALL_BYTES = TARGET_BYTES // 2
MANY = 8
"""So many small files, and a partition is written anew. What a compaction leaves has one at most."""

SPARE = timedelta(days=1)
"""Tombstones and commits outlast the files that are removed by them by this much, so that a vacuum finds them all."""

HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A partition that was written anew, or would be: its files and their bytes, before and after (0: not yet)."""

    partition: str
    files: int
    size: int
    files_after: int = 0
    size_after: int = 0


@dataclass(frozen=True, slots=True)
class Dropped:
    """What was taken out of a table, or would be: partitions, their rows, and the bytes of their files."""

    partitions: int = 0
    rows: int = 0
    size: int = 0


@dataclass(frozen=True, slots=True)
class Trimmed:
    """What was removed of a table's past, or would be: data files that only earlier versions list, commits."""

    files: int = 0
    commits: int = 0


def compact(
    table: LakeTable, is_over: Callable[[str], bool], order: str, *, dry_run: bool = False
) -> Iterator[Rewritten]:
    """Write partitions anew that are over (nothing much is landing there any more) and have many small files, one after
    the other, their rows ordered by a column.

    Guarantee: readers see the same rows, before and after; appends at the same time are not disturbed. Memory follows
    the largest partition. Raises TableConflict where somebody else has rewritten the same files; LakeError.
    """
    current = table.current()
    if current is None:
        return
    for found in _worth_it(current, table.partition_column):
        if not is_over(found.partition):
            continue
        if dry_run:
            yield found
            continue
        with table_errors(table.uri):
            did = current.optimize.z_order(
                [order],
                partition_filters=[(table.partition_column, "=", found.partition)],
                target_size=TARGET_BYTES,
                max_concurrent_tasks=1,
            )
        table.make_durable()
        yield replace(found, files_after=did["numFilesAdded"], size_after=json.loads(did["filesAdded"])["totalSize"])


def trim(table: LakeTable, keep: timedelta, *, dry_run: bool = False) -> Trimmed:
    """Remove the files and commits of versions that ended more than `keep` ago, in whole hours, and note the table's
    state in one file, so that who opens it reads few.

    Guarantee: versions younger than that can be read, and what is not committed yet is not touched. Safe to be killed,
    and to run at the same time as everything else. Raises LakeError.
    """
    current = table.current()
    if current is None:
        return Trimmed()
    hours = keep // HOUR
    files = _vacuum(table, current, hours, dry_run=True)
    if dry_run:
        return Trimmed(len(files))
    _remember_for(table, current, keep + SPARE)
    if files:
        files = _vacuum(table, current, hours, dry_run=False)
    with table_errors(table.uri):
        before = _commits(table)
        current.update_incremental()
        current.create_checkpoint()
        current.cleanup_metadata()
    return Trimmed(len(files), max(0, before - _commits(table)))


def drop_partitions(table: LakeTable, before: str, *, dry_run: bool = False) -> Dropped:
    """Take the partitions below a name out of a table's newest version. Their files go when earlier versions do.

    Raises TableConflict where somebody else changed them at the same time; LakeError.
    """
    current = table.current()
    column = table.partition_column
    old = [] if current is None else [file for file in data_files(current, column) if file.partition < before]
    if old and current is not None and not dry_run:
        with table_errors(table.uri):
            current.delete(f"{column} < '{before}'")
        table.make_durable()
    return Dropped(
        partitions=len({file.partition for file in old}),
        rows=sum(file.rows for file in old),
        size=sum(file.size for file in old),
    )


def _worth_it(current: DeltaTable, column: str) -> list[Rewritten]:
    """The partitions with many small files, in order."""
    by_partition: dict[str, list[DataFile]] = {}
    for file in data_files(current, column):
        by_partition.setdefault(file.partition, []).append(file)
    return [
        Rewritten(partition, len(files), sum(file.size for file in files))
        for partition, files in sorted(by_partition.items())
        if sum(file.size < SMALL_BYTES for file in files) >= MANY
    ]


def _vacuum(table: LakeTable, current: DeltaTable, hours: int, *, dry_run: bool) -> list[str]:
    with table_errors(table.uri):
        # By what commits say was removed, never by what lies around: that may be of a run under way.
        return current.vacuum(retention_hours=hours, dry_run=dry_run, enforce_retention_duration=False, full=False)


def _remember_for(table: LakeTable, current: DeltaTable, keep: timedelta) -> None:
    """Have the library itself keep commits and tombstones for so long."""
    interval = f"interval {keep // HOUR} hours"
    wanted = {"delta.logRetentionDuration": interval, "delta.deletedFileRetentionDuration": interval}
    if wanted.items() <= current.metadata().configuration.items():
        return
    with table_errors(table.uri):
        current.alter.set_table_properties(wanted)
    table.make_durable()


def _commits(table: LakeTable) -> int:
    """How many commits the table's log has."""
    found = table.file_system().get_file_info(pafs.FileSelector(LOG_FOLDER))
    return sum(info.base_name.endswith(".json") for info in found)

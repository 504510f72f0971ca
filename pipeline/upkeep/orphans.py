"""Orphans: files of the lake that nothing names, left behind by runs, appends, drains and writes that were killed.

They are never read. A run that is under way has files that no version of a table lists yet, and these look the same. So
only a file older than a grace time, which is longer than any run and any write, counts as an orphan.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.pipeline.lake.landings import FOLDER as LANDINGS
from tidemark.pipeline.lake.layout import PARTITIONS, Lake
from tidemark.pipeline.lake.store.address import arrow_files, table_uri
from tidemark.pipeline.lake.store.disk import TEMPORARY
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.lake.tables.commit_sync import LOG_FOLDER
from tidemark.pipeline.lake.tables.delta_log import actions, logged
from tidemark.pipeline.lake.tables.table import LakeTable, table_errors
from tidemark.pipeline.lake.tables.windowed import MANIFESTS, RUNS_FOLDER
from tidemark.pipeline.settings_sections import LakeSettings

GRACE = timedelta(days=1)
"""Longer than any run: Dagster ends one after `max_runtime_seconds` in dagster.yaml, two hours."""

COMMIT, OF_COMMIT = "_commit_", ".tmp"
"""Begin and end the name of a commit on a disk that the Delta library has not put in place yet."""

OF_A_DRAIN = f"{LANDINGS}drain-"
"""Begins the names of a drain's manifests. What they list is in the tables, so they are not read once the drain is
over. A stream of `format("pubsub")` lands under other names, and may go on with what it has landed in a year."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphaned file. `location` is where a person finds it, `what` says what left it behind."""

    name: str
    location: str
    size: int
    written_at: datetime
    what: str


def find_orphans(lake: Lake, settings: LakeSettings, before: datetime) -> list[Orphan]:
    """The orphans that were written before a moment, in the order of their names.

    A data file is an orphan if no version of its table lists it, as far back as the table's log goes. What Spark leaves
    beside data (`_SUCCESS`, `_temporary`, checksums) is one if nothing of its file or run is listed, and so is a run's
    manifest. Raises LakeError.
    """
    place = table_uri(settings, "").rstrip("/")
    with table_errors(place):  # listed before the tables are read: files that are committed meanwhile are not orphans
        found = arrow_files(settings, "").get_file_info(pafs.FileSelector("", allow_not_found=True, recursive=True))
    old = {info.path.lstrip("/"): info for info in found if info.type == pafs.FileType.File and info.mtime <= before}
    by_window = lake.by_window()
    what = {name: text for name in old if (text := _left_by_a_kill(name)) is not None}
    for name in dict.fromkeys((*PARTITIONS, *by_window)):
        table = lake.table(name)
        if table.current() is not None:
            keys = {path: _key(path.removeprefix(f"{name}/")) for path in old if path.startswith(f"{name}/")}
            for path in _unnamed(keys, [table]):
                run = _run_of(path.removeprefix(f"{name}/"))
                what[path] = "no version of the table lists it" if run is None else f"left by run {run}"
    manifests = {name: key for name in old if (key := MANIFESTS.key_of(name)) is not None}
    what |= dict.fromkeys(
        _unnamed(manifests, [lake.table(name) for name in by_window]),
        "the manifest of a run that has committed nothing",
    )
    return [
        Orphan(name, f"{place}/{name}", old[name].size, old[name].mtime, text) for name, text in sorted(what.items())
    ]


def remove_orphans(orphans: Iterable[Orphan], objects: ObjectStore) -> None:
    """Delete orphans. Safe to repeat. Raises LakeError."""
    for orphan in orphans:
        objects.delete(orphan.name)


def _left_by_a_kill(name: str) -> str | None:
    """Say what left a file behind, if its name alone tells; None for any other file."""
    file = name.rpartition("/")[2]
    if file.startswith(TEMPORARY) or (file.startswith(COMMIT) and file.endswith(OF_COMMIT)):
        return "a write that was begun and never finished"
    return "left by a drain that was killed" if name.startswith(OF_A_DRAIN) else None


def _key(path: str) -> str | None:
    """The data file, or the run, that a table must list to own a file in its folder. None: it is not judged."""
    folder, _, name = path.rpartition("/")
    if path.startswith(f"{LOG_FOLDER}/"):
        return None
    if name.endswith(".parquet") and not name.startswith((".", "_")) and "_temporary/" not in path:
        return path
    if name.startswith(".") and name.endswith(".parquet.crc"):  # the checksum of a data file, as Spark names it on disk
        return f"{folder}/{name.removeprefix('.').removesuffix('.crc')}".lstrip("/")
    return _run_of(path)


def _run_of(path: str) -> str | None:
    """The run that wrote a file of a table by window; None for a file that is in no run's folder."""
    parts = path.split("/")
    return parts[1] if parts[0] == RUNS_FOLDER and len(parts) > 2 else None


def _unnamed(keys: Mapping[str, str | None], tables: Iterable[LakeTable]) -> list[str]:
    """The files whose key no version of the tables lists. Older versions are read only if the newest leave any."""
    left = [name for name, key in keys.items() if key is not None]
    for listed in (_listed_now, _listed_ever):
        if left:
            paths = set().union(*map(listed, tables))
            named = paths | {_run_of(path) for path in paths}
            left = [name for name in left if keys[name] not in named]
    return left


def _listed_now(table: LakeTable) -> set[str]:
    current = table.current()
    return set() if current is None else {unquote(path) for path in current.get_add_actions()["path"].to_pylist()}


def _listed_ever(table: LakeTable) -> set[str]:
    """Every path that one of the commits which are still there added or removed."""
    if table.current() is None:
        return set()
    with table_errors(table.uri):
        commits = read_ahead(partial(actions, table.folder), logged(table))
        files = (action.get(kind) for _, of_commit in commits for action in of_commit for kind in ("add", "remove"))
        return {unquote(file["path"]) for file in files if file}

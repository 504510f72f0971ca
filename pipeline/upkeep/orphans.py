"""Orphans: what runs and appends that did not end well have left, which no version of a table lists.

Nobody reads them; they cost space. A run that is under way has written files and not committed them yet, and looks the
same: so what is younger than a grace time, longer than any run may take, is named and left alone.
"""

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from urllib.parse import unquote

import pyarrow.fs as pafs
from deltalake.exceptions import TableNotFoundError

from pipeline.lake.store.objects import ObjectStore
from pipeline.lake.tables.delta_log import READERS
from pipeline.lake.tables.table import LakeTable, table_errors
from pipeline.lake.tables.windowed import RUNS_FOLDER

GRACE = timedelta(days=1)
"""Longer than any run: Dagster ends one after `max_runtime_seconds` in dagster.yaml, two hours."""

LOG_FOLDER = "_delta_log"


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphaned file: where it is as a person would write it, its folder's own name for it, its size and when it was
    written, and what it is left of."""

    location: str
    path: str
    size: int
    written_at: datetime
    what: str

    def is_over(self, now: datetime, grace: timedelta) -> bool:
        """Whether it is too old to be of a run that is under way."""
        return now - self.written_at >= grace


@dataclass(frozen=True, slots=True)
class Place:
    """Where orphans are looked for: a folder as Arrow reads it, and how its files are called outside."""

    files: pafs.FileSystem
    uri: str

    def listed(self) -> list[pafs.FileInfo]:
        """The files in it, at any depth, in order."""
        with table_errors(self.uri):
            found = self.files.get_file_info(pafs.FileSelector("", allow_not_found=True, recursive=True))
        return sorted((info for info in found if info.type == pafs.FileType.File), key=lambda info: info.path)

    def orphan(self, info: pafs.FileInfo, what: str) -> Orphan:
        """A file of this place as an orphan."""
        path = info.path.lstrip("/")
        return Orphan(f"{self.uri}/{path}", path, info.size, info.mtime, what)


def orphaned_files(table: LakeTable) -> list[Orphan]:
    """The files in a table's folder that none of its versions lists, as far back as its log goes.

    Beside the data these are what Spark leaves next to it (`_SUCCESS`, `_temporary`, checksums), where nothing of their
    run is listed. Raises LakeError.
    """
    place = _place_of(table)
    if place is None:
        return []
    found = [info for info in place.listed() if not info.path.startswith(f"{LOG_FOLDER}/")]
    listed = _listed_now(table)
    suspects = _unlisted(found, listed)
    if suspects:  # older versions are asked only where it matters
        suspects = _unlisted(suspects, listed | _listed_ever(table))
    return [place.orphan(info, _left_by(run_of(info.path))) for info in suspects]


def _unlisted(found: Sequence[pafs.FileInfo], listed: set[str]) -> list[pafs.FileInfo]:
    committed = {run_of(path) for path in listed}
    return [info for info in found if _is_orphan(info.path, listed, committed)]


def _left_by(run: str | None) -> str:
    return "no version of the table lists it" if run is None else f"left by run {run}"


def _is_orphan(path: str, listed: set[str], committed: set[str | None]) -> bool:
    if is_data(path):
        return path not in listed
    if (beside := data_beside(path)) is not None:
        return beside not in listed
    run = run_of(path)
    return run is not None and run not in committed


def orphaned_manifests(tables: Sequence[LakeTable], manifests: pafs.FileSystem, uri: str) -> list[Orphan]:
    """The manifests of runs of which no version of the tables lists a file: they failed, or others were before them."""
    place = Place(manifests, uri)
    found = [info for info in place.listed() if info.path.endswith(".json")]
    runs = {run_of(path) for table in tables for path in _listed_now(table)}
    if any(_run_of_manifest(info) not in runs for info in found):
        runs |= {run_of(path) for table in tables for path in _listed_ever(table)}
    return [
        place.orphan(info, "the manifest of a run that has committed nothing")
        for info in found
        if _run_of_manifest(info) not in runs
    ]


def remove(orphans: Iterable[Orphan], objects: ObjectStore, folder: str) -> None:
    """Delete orphans of one folder of the lake. Safe to repeat. Raises LakeError."""
    for orphan in orphans:
        objects.delete(f"{folder}/{orphan.path}")


def run_of(path: str) -> str | None:
    """The run that wrote a file of a table by window; None for a file that is in no run's folder."""
    parts = path.split("/")
    return parts[1] if parts[0] == RUNS_FOLDER and len(parts) > 2 else None


def is_data(path: str) -> bool:
    """Whether a file holds rows, by its name."""
    name = path.rpartition("/")[2]
    return name.endswith(".parquet") and not name.startswith((".", "_")) and "_temporary/" not in path


def data_beside(path: str) -> str | None:
    """The data file that a checksum belongs to, as Spark names it on a disk."""
    folder, _, name = path.rpartition("/")
    if not (name.startswith(".") and name.endswith(".parquet.crc")):
        return None
    return f"{folder}/{name.removeprefix('.').removesuffix('.crc')}"


def _run_of_manifest(info: pafs.FileInfo) -> str:
    return str(info.path).lstrip("/").removesuffix(".json")


def _listed_now(table: LakeTable) -> set[str]:
    current = table.current()
    return set() if current is None else {unquote(path) for path in current.get_add_actions()["path"].to_pylist()}


def _listed_ever(table: LakeTable) -> set[str]:
    """Every path that a commit which is still there added or removed: no version that can be read lists another one,
    but for what is in the newest."""
    place = _place_of(table)
    if place is None:
        return set()
    with table_errors(table.uri):
        logged = place.files.get_file_info(pafs.FileSelector(LOG_FOLDER, allow_not_found=True))
        commits = [info.path for info in logged if info.path.endswith(".json") and info.path.count("/") == 1]
        with ThreadPoolExecutor(READERS, thread_name_prefix="orphans") as pool:
            return set().union(*pool.map(partial(_paths_in, place.files), commits))


def _paths_in(files: pafs.FileSystem, commit: str) -> set[str]:
    with files.open_input_stream(commit) as stream:
        actions = [json.loads(line) for line in stream.read().splitlines() if line]
    return {unquote(file["path"]) for action in actions for kind in ("add", "remove") if (file := action.get(kind))}


def _place_of(table: LakeTable) -> Place | None:
    """The table's folder; None where there is none."""
    with table_errors(table.uri):
        try:
            return Place(table.file_system(), table.uri)
        except TableNotFoundError:
            return None

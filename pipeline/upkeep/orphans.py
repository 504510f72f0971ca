"""Finds and deletes orphans: files of a lake that no table or manifest refers to. They are left behind by
killed runs and writes.

No reader uses an orphan. However, nothing refers to the files of a running run either, until the run commits. So a file
only counts as an orphan after a grace time that is longer than any run or write.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import unquote

import pyarrow.fs as pafs

from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.layout import HEARTBEATS, PARTITIONS, QUARANTINE, Lake
from tidemark.pipeline.lake.store.address import arrow_files, table_uri
from tidemark.pipeline.lake.store.disk import TEMPORARY
from tidemark.pipeline.lake.store.objects import ObjectStore, read_ahead
from tidemark.pipeline.lake.tables.table import LakeTable, table_errors
from tidemark.pipeline.lake.tables.table_log import LOG_FOLDER, actions_in, naming_damage
from tidemark.pipeline.lake.tables.windowed import MANIFESTS, RUNS_FOLDER
from tidemark.pipeline.settings_sections import LakeSettings

GRACE = timedelta(days=1)
"""Minimum age of an orphan. No run takes this long: Dagster ends a run after two hours (`max_runtime_seconds` in
dagster.yaml)."""

UNLISTED = "no version of the table lists it"

COMMIT, OF_COMMIT = "_commit_", ".tmp"
"""Prefix and suffix of the temporary file in which the Delta library writes a commit on disk."""


@dataclass(frozen=True, slots=True)
class Orphan:
    """An orphaned file. `location` is its address as shown to users, and `what` says why it is in the lake."""

    name: str
    location: str
    size: int
    written_at: datetime
    what: str

    @property
    def may_have_landed(self) -> bool:
        """True for a data file of `heartbeats` or `quarantine`. Usually, its writer died before the commit. But if
        the table's log was lost or restored from an older copy, the file's messages are already acknowledged."""
        return self.what == UNLISTED and self.name.startswith((f"{HEARTBEATS}/", f"{QUARANTINE}/"))


def find_orphans(lake: Lake, settings: LakeSettings, now: datetime, grace: timedelta = GRACE) -> list[Orphan]:
    """Return the orphans that are older than `grace`, sorted by name. The age is measured at `now`, or at the newest
    file's time if that is earlier, because a machine's clock may be ahead of a bucket's. If a table's log is
    damaged or missing, only temporary files of the table are returned. Raises LakeError.

    Orphans are:
    - a data file that is in no version of its table, as far back as the table's log goes
    - the checksum file of such a data file
    - a run's manifest, and the other files in a run's folder (`_SUCCESS`, `_temporary`), if no version has a file of
      the run
    - a temporary file, as recognized by its name

    The objects that a stream of `format("pubsub")` writes are never orphans, because the stream may read them even
    after a year.
    """
    place = table_uri(settings, "").rstrip("/")
    with table_errors(place):  # files are listed before the tables are read: one committed meanwhile is not an orphan
        found = arrow_files(settings, "").get_file_info(pafs.FileSelector("", allow_not_found=True, recursive=True))
    files = [info for info in found if info.type == pafs.FileType.File]
    before = min(now, max((info.mtime for info in files), default=now)) - grace
    old = {info.path.lstrip("/"): info for info in files if info.mtime <= before}
    by_window = lake.by_window()
    what = {name: "left by an unfinished write" for name in old if _is_unfinished(name.rpartition("/")[2])}
    for name in dict.fromkeys((*PARTITIONS, *by_window)):
        table = lake.table(name)
        with suppress(CorruptObject):  # a table whose log is damaged keeps all of its files
            if table.current() is not None:
                keys = {path: _key(path.removeprefix(f"{name}/")) for path in old if path.startswith(f"{name}/")}
                for path in _unnamed(keys, [table]):
                    run = _run_of(path.removeprefix(f"{name}/"))
                    what[path] = UNLISTED if run is None else f"left by run {run}"
    manifests = {name: key for name in old if (key := MANIFESTS.key_of(name)) is not None}
    with suppress(CorruptObject):  # then it is not known which runs have committed
        tables = {name: lake.table(name) for name in by_window}
        lacks_log = {name for name, table in tables.items() if table.current() is None}
        if not any(path.partition(f"/{RUNS_FOLDER}/")[0] in lacks_log for path in old):  # a log was moved away
            of_no_commit = _unnamed(manifests, tables.values())
            what |= dict.fromkeys(of_no_commit, "the manifest of a run that has committed nothing")
    return [Orphan(name, f"{place}/{name}", old[name].size, old[name].mtime, what[name]) for name in sorted(what)]


def remove_orphans(orphans: Iterable[Orphan], objects: ObjectStore) -> None:
    """Delete these orphans. May be repeated. Raises LakeError."""
    for orphan in orphans:
        objects.delete(orphan.name)


def _is_unfinished(file: str) -> bool:
    return file.startswith(TEMPORARY) or (file.startswith(COMMIT) and file.endswith(OF_COMMIT))


def _key(path: str) -> str | None:
    """Return the key of the file at `path` within its table: the path of a data file, or the name of a run. The file is
    an orphan if no version of the table has this key. Return None if the file is never an orphan."""
    folder, _, name = path.rpartition("/")
    if path.startswith(f"{LOG_FOLDER}/"):
        return None
    if name.endswith(".parquet") and not name.startswith((".", "_")) and "_temporary/" not in path:
        return path
    if name.startswith(".") and name.endswith(".parquet.crc"):  # the checksum of a data file, as Spark names it on disk
        return f"{folder}/{name.removeprefix('.').removesuffix('.crc')}".lstrip("/")
    return _run_of(path)


def _run_of(path: str) -> str | None:
    parts = path.split("/")
    return parts[1] if parts[0] == RUNS_FOLDER and len(parts) > 2 else None


def _unnamed(keys: Mapping[str, str | None], tables: Iterable[LakeTable]) -> list[str]:
    """Return the files whose key is in no version of these tables. `keys` contains the key of each file, as returned by
    `_key`. Earlier versions are read only if the newest versions do not have all keys."""
    left = [name for name, key in keys.items() if key is not None]
    for listed in (_listed_now, _listed_ever):
        if left:
            paths = set().union(*map(listed, tables))
            named = paths | {_run_of(path) for path in paths}
            left = [name for name in left if keys[name] not in named]
    return left


def _listed_now(table: LakeTable) -> set[str]:
    return {unquote(path) for path in table.listed()["path"].to_pylist()}


def _listed_ever(table: LakeTable) -> set[str]:
    with table_errors(table.uri), naming_damage(f"a commit of {table.uri}"):
        commits = (actions_in(content) for _, content in read_ahead(table.log.read, table.log.versions()))
        kinds = "add", "remove", "cdc"  # the last one is a file of the change data feed, if users turn it on
        files = (action.get(kind) for commit in commits for action in commit for kind in kinds)
        return {unquote(file["path"]) for file in files if file}

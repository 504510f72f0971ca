"""Makes a Delta table on a local disk durable by calling fsync. The Delta library itself leaves the files that it
writes in the operating system's cache."""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path
from urllib.parse import unquote

from tidemark.pipeline.lake.store.disk import sync
from tidemark.pipeline.lake.tables import table_log

THREADS = 8
"""Number of files synced in parallel. A file system batches parallel syncs, so they are faster than consecutive
ones."""


class CommitSync:
    """Makes the commits of one Delta table durable, together with the data files that they add and all folders
    above them."""

    def __init__(self, folder: Path, log: table_log.TableLog) -> None:
        self._folder, self._log = folder, log
        self._through = -1
        self._synced: set[Path] = set()

    def opened_at(self, version: int) -> None:
        """Record that the table was opened at `version`. The next `sync_commits` begins with the RECENT_COMMITS commits
        up to `version`, and assumes that earlier ones are durable."""
        self._through = max(version - table_log.RECENT_COMMITS, -1)
        self._synced.clear()

    def sync_files(self, paths: Iterable[str]) -> None:
        """Make data files of the table durable, given their paths within the table. Call this before a commit adds the
        files. Raises OSError."""
        files = {self._folder / path for path in paths}
        self._sync(files)
        self._synced |= files

    def sync_commits(self) -> None:
        """Make all commits since the last call durable. This includes commits of other writers, because a table is
        unreadable if a commit before its newest one is missing. Raises OSError."""
        following = count(self._through + 1)
        new = list(takewhile(lambda version: (self._folder / table_log.commit_name(version)).exists(), following))
        # If the next commit is missing, it was cleaned up long ago, or the table was deleted and recreated.
        versions = new or self._log.versions()[-table_log.RECENT_COMMITS :]
        written = {file for version in versions for file in self._written_by(version)}
        self._sync(written - self._synced)
        self._synced.clear()
        self._through = max(versions, default=self._through)

    def _written_by(self, version: int) -> Iterator[Path]:
        commit = self._folder / table_log.commit_name(version)
        yield commit
        with suppress(ValueError):  # only a commit before the last checkpoint: otherwise the table would not open
            for action in table_log.actions_in(commit.read_bytes()):
                if add := action.get("add"):
                    yield self._folder / unquote(add["path"])
        checkpoint = self._folder / table_log.checkpoint_name(version)
        if checkpoint.exists():
            yield from (checkpoint, self._folder / table_log.LAST_CHECKPOINT)

    def _sync(self, files: set[Path]) -> None:
        lake = self._folder.parent
        folders = {folder for file in files for folder in file.parents if folder.is_relative_to(lake)}
        with ThreadPoolExecutor(THREADS, thread_name_prefix="fsync") as pool:
            for paths in (sorted(files), sorted(folders)):
                list(pool.map(_sync_if_there, paths))


def _sync_if_there(path: Path) -> None:
    with suppress(FileNotFoundError):  # a file of an earlier commit, vacuumed since
        sync(path)

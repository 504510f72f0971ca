"""Opens a Delta table, updates it, and commits to it. A process reads each commit once.

In a folder, the Delta library works in place. In a bucket, it would read each commit twice and a checkpoint eleven
times, and list the log three times for each commit. So it works on copies of a bucket's log: each object is read once.

A commit to a bucket has these steps. The process may die after any of them:

1. The library writes the commit to the copy. No other process sees it.
2. The commit is uploaded under the next version, after its data files. If an object already has that name, another
   writer was first: TableConflict is raised, and nothing is committed. The upload is one atomic request, after which
   all readers see the commit. If only the response is lost, the retry recognizes the object.
3. After some commits, a checkpoint is uploaded, and then `_last_checkpoint`, which points to it, is replaced. If either
   is missing, readers start from the previous checkpoint and read more commits, until the next checkpoint.
"""

import json
import re
import shutil
import tempfile
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate, count
from pathlib import Path
from threading import Lock
from typing import Any

from deltalake import DeltaTable, PostCommitHookProperties
from deltalake.exceptions import DeltaError

from tidemark.pipeline import errors
from tidemark.pipeline.clock import SystemClock, from_us, is_recent
from tidemark.pipeline.lake.store.disk import storage_error
from tidemark.pipeline.lake.store.objects import ObjectStore, read_ahead
from tidemark.pipeline.lake.tables.handed_commits import hand_on, handed, withdraw

LOG_FOLDER = "_delta_log"
COMMIT_FILE = re.compile(r"\d{20}\.json")
LAST_CHECKPOINT = f"{LOG_FOLDER}/_last_checkpoint"

BELIEVED_FOR = timedelta(hours=1)
"""Maximum age at which a commit counts as the newest one if the next version is missing. For an older commit, the Delta
library lists the log, because housekeeping may already have deleted the next version."""

NO_CLEANUP = PostCommitHookProperties(cleanup_expired_logs=False)
"""Commit options that turn off the deletion of expired log files. Otherwise each commit would list the table's log to
find these files. Housekeeping deletes them instead."""

FOLLOWED_AT_MOST = 50
"""Maximum number of commits that a table follows while it is open from copies. Each of them adds a batch of files to
the open table, and each update and commit goes through all batches, at about 0.1 ms per batch. In a folder, checkpoints
merge the batches."""

RECENT_COMMITS = 20
"""Number of recent commits that are checked when a table is opened in place. The next write syncs as many, because a
writer may have died between its commit and the sync. A checkpoint follows after at most this many commits."""

AHEAD = 2
"""Number of commits that are read in parallel when a table is opened from copies. The end of the log is not known, so
AHEAD - 1 extra reads find nothing, and cost a call each."""

COMMIT_ONLY = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""Commit options for a copy that lacks the objects from which a checkpoint is made."""

CACHED_BYTES = 4 << 20
"""Maximum size of a table's cached commits in bytes: about two thousand commits by landing."""

_read: dict[str, tuple[int, list[bytes]]] = {}
"""The cached commits by table address: the version of the first one, and the contents of consecutive commits.

Invariant: if a cached commit still belongs to the table, so do all cached commits before it. Later cached commits may
not, because the table may have been restored to an earlier version."""


class TableLog:
    """The log of a table. `objects` is the store of the table's folder, and `in_place` opens the table without copies.
    With `copies`, the table is opened from copies, unless its log is in a form that only the Delta library knows.

    An open table does not need the copies, so they are deleted after each step. An update copies the new commits, and a
    transaction copies the last one. Not thread-safe. If ticks overlap, the worst result is an error."""

    def __init__(self, objects: ObjectStore, in_place: Callable[[], DeltaTable], *, copies: bool) -> None:
        self.in_place = in_place
        self.newest = b""
        """The content of the commit at the version of the open table."""
        self._objects, self._copies = objects, copies
        self._is_copied = False
        self._opened_at = 0
        """The version at which the table was opened."""
        self._one_at_a_time = Lock()

    @cached_property
    def _place(self) -> Path:
        """The folder of the copies, chosen only when needed, because `gettempdir` fails on a full disk."""
        try:
            return Path(tempfile.gettempdir()) / f"tidemark-log-{uuid.uuid4().hex}"
        except OSError as error:
            raise errors.LakeError(
                f"{self._objects.uri} cannot be opened: {error}; free space, or set TMPDIR to a folder with free space"
            ) from error

    def read(self, version: int) -> bytes:
        """Return a commit of the log. Raises ObjectMissing, LakeError, and CorruptObject if the commit is empty: the
        Delta library would accept an empty one as a commit without files."""
        content = self._objects.read(name := commit_name(version))
        if not content.strip():
            raise errors.CorruptObject(f"{self._objects.uri}/{name} is empty; restore its earlier version or a backup")
        return content

    def between(self, first: int, last: int) -> list[bytes]:
        """Return the commits of the versions `first` to `last`, both included, in order. Reads the last cached commit
        again, but no earlier one. Raises LakeError, and ObjectMissing if a commit is gone (housekeeping deletes old
        ones)."""
        found = self._with_cached(
            first, lambda new: [content for _, content in read_ahead(self.read, range(new, last + 1))]
        )
        return found[: last + 1 - first]

    def since(self, first: int, at_most: int | None = None) -> list[bytes]:
        """Return the commits from version `first` on, in order, up to the newest one. If there are more than `at_most`,
        the result has at least `at_most`, but not always all. The result is empty if there is no version `first`. Reads
        the last cached commit again, but no earlier one. Raises LakeError."""

        def up_to_end(new: int) -> Iterator[bytes]:
            with suppress(errors.ObjectMissing):
                for version in count(new) if at_most is None else range(new, first + at_most):
                    yield self.read(version)

        return self._with_cached(first, up_to_end)

    def versions(self) -> list[int]:
        """Return the versions of all commits that are still in the log, in order. Raises LakeError."""
        names = (name.removeprefix(f"{LOG_FOLDER}/") for name in self._objects.names(f"{LOG_FOLDER}/"))
        return [int(name.removesuffix(".json")) for name in names if COMMIT_FILE.fullmatch(name)]

    def _with_cached(self, first: int, read_from: Callable[[int], Iterable[bytes]]) -> list[bytes]:
        """Return the commits from version `first` on: the cached ones, then those that `read_from` returns for the
        version after the cached ones.

        Finally reads the last cached commit again. Commits are deleted oldest first. So if that commit is still in the
        log, no later one was deleted meanwhile, and all belong to one table."""
        start, kept = _read.get(self._objects.uri) or (self._copies and handed(self._objects.uri)) or (first, [])
        if not start <= first <= start + len(kept):
            start, kept = first, []
        found = [*kept, *read_from(start + len(kept))]
        if kept and not self._has(start + len(kept) - 1, kept[-1]):
            _read[self._objects.uri] = first, []
            return self._with_cached(first, read_from)
        self._cache(start, found)
        return found[first - start :]

    def _cache(self, start: int, commits: list[bytes]) -> None:
        fitting = bisect_right([*accumulate(map(len, reversed(commits)))], CACHED_BYTES)
        cached = start + len(commits) - fitting, commits[len(commits) - fitting :]
        is_new = cached != _read.get(self._objects.uri)
        _read[self._objects.uri] = cached
        if self._copies and is_new:
            hand_on(self._objects.uri, *cached)

    def _has(self, version: int, content: bytes) -> bool:
        """Return True if the commit of this version has this content. If not, the commit was deleted, or the table was
        deleted or recreated."""
        with suppress(errors.ObjectMissing):
            return self.read(version) == content
        return False

    def _cache_own(self, version: int, content: bytes) -> None:
        """Cache the commit that was just uploaded as `version`, if it follows the cached commits."""
        start, kept = _read.get(self._objects.uri, (version - 1, [self.newest]))
        if start + len(kept) == version and kept[-1:] == [self.newest]:
            self._cache(start, [*kept, content])

    def open(self) -> DeltaTable:
        """Return the table at its newest version. Raises LakeError, and the errors of the Delta library."""
        found = self._from_checkpoint() if self._copies else {}
        in_place = None if found else self.in_place()
        if self._copies and not found:
            found = self._from_checkpoint()  # the table may have been created meanwhile
        if found:
            self._is_copied = True
            with self._copied(found):
                try:
                    table = DeltaTable(self._place)
                except DeltaError:  # the next call reads each commit again, because a damaged one may be restored
                    _read.pop(self._objects.uri, None)
                    withdraw(self._objects.uri)
                    raise
            self.newest, self._opened_at = [*found.values()][-1], table.version()
            if self._is_at_end(table):
                return table
        self._is_copied, table = False, in_place or self.in_place()
        if not self._copies:  # otherwise each commit was read
            self._refuse_empty(table.version())
        try:
            self.newest = self.read(table.version())
        except errors.ObjectMissing as error:  # a checkpoint names the version, so the log is damaged
            raise errors.CorruptObject(str(error)) from error
        return table

    def _refuse_empty(self, version: int) -> None:
        """Raise CorruptObject if a commit from which the library has opened the table is empty. Checks the commits
        between the last checkpoint and `version`, at most RECENT_COMMITS."""
        first = version - RECENT_COMMITS
        with suppress(errors.ObjectMissing, KeyError, TypeError, ValueError):
            first = max(first, json.loads(self._objects.read(LAST_CHECKPOINT))["version"] + 1)
        with suppress(errors.ObjectMissing):
            for earlier in range(max(first, 0), version):
                self.read(earlier)

    def is_unchanged(self, table: DeltaTable) -> bool:
        """Return True if the open table's newest commit is still in the log. If not, it was cleaned up, or the table
        was deleted or recreated. Raises LakeError."""
        return self._has(table.version(), self.newest)

    def is_worn(self, table: DeltaTable) -> bool:
        """Return True if the table has followed so many commits that opening it again is cheaper."""
        return self._is_copied and table.version() - self._opened_at > FOLLOWED_AT_MOST

    def update(self, table: DeltaTable) -> bool:
        """Update the table to its newest version. Return False if it must be opened again instead. Raises LakeError."""
        first = table.version()
        found = self.since(first)
        if not found or found[0] != self.newest:
            return False
        with suppress(DeltaError, errors.ObjectMissing):
            if found[1:]:
                with self._copied({commit_name(first + at): found[at] for at in range(1, len(found))}):
                    table.update_incremental()
                is_further = table.version() >= first + len(found)  # another process has committed in between
                self.newest = self.read(table.version()) if is_further else found[-1]
            return True
        return False

    @contextmanager
    def committing(self, table: DeltaTable) -> Iterator[PostCommitHookProperties]:
        """Let the `with` block write a commit with the yielded options. Then finish the commit, and update the table.
        Raises LakeError, the Delta library's errors, and TableConflict if another process has committed since the last
        update."""
        looked_at = SystemClock().now()
        if self._is_copied and not self._is_at_end(table):
            raise errors.TableConflict(f"another writer has committed to {self._objects.uri}; try again")
        version, every = table.version() + 1, int(table.metadata().configuration.get("delta.checkpointInterval", "100"))
        with self._copied({commit_name(version - 1): self.newest}):
            yield COMMIT_ONLY if self._is_copied else NO_CLEANUP
            if self._is_copied:
                content = self._upload(commit_name(version))
                if not is_recent(looked_at, SystemClock().now(), BELIEVED_FOR):
                    self._withdraw_if_late(table, commit_name(version))
                self._cache_own(version, content)
            table.update_incremental()
            self.newest = content if self._is_copied else self.read(table.version())
        if self._is_copied and (version + 1) % every == 0:
            # The commit has succeeded, and the next checkpoint makes up for this one.
            with suppress(errors.LakeError, DeltaError, OSError):
                self._checkpoint()

    def _upload(self, name: str) -> bytes:
        content = (self._place / name).read_bytes()
        try:
            self._objects.create(name, content)
        except errors.ObjectExists as error:
            raise errors.TableConflict(f"another writer has committed {self._objects.uri}/{name} first") from error
        return content

    def _withdraw_if_late(self, table: DeltaTable, name: str) -> None:
        """If the commit before the commit `name` is gone, delete `name` and raise TableConflict. In this case, the
        process was paused for days before the upload, while another writer's commit of this version was cleaned up."""
        if not self.is_unchanged(table):
            self._objects.delete(name)
            raise errors.TableConflict(
                f"{self._objects.uri}/{name} was committed by another writer long ago; try again"
            )

    def _checkpoint(self) -> None:
        with self._copied(self._from_checkpoint()):
            table, generation = DeltaTable(self._place), 0
            table.create_checkpoint()
            self._upload(checkpoint_name(table.version()))
            with suppress(errors.ObjectMissing):
                _, generation = self._objects.read_generation(LAST_CHECKPOINT)
            with suppress(errors.ObjectReplaced):
                self._objects.replace(LAST_CHECKPOINT, (self._place / LAST_CHECKPOINT).read_bytes(), generation)

    def _from_checkpoint(self) -> Mapping[str, bytes]:
        """Return the objects of the last checkpoint and of all commits from there on, in order, by name. Return
        nothing if only the library can find them."""

        def in_parallel(first: int) -> Iterator[bytes]:
            ahead = AHEAD if first == version else 1  # few commits follow the cached ones
            with suppress(errors.ObjectMissing):
                for _, content in read_ahead(self.read, count(first), ahead):
                    yield content

        checkpoint, version = dict[str, bytes](), 0
        try:
            with suppress(errors.ObjectMissing):
                last = checkpoint[LAST_CHECKPOINT] = self._objects.read(LAST_CHECKPOINT)
                version = json.loads(last)["version"]
                name = checkpoint_name(version)
                checkpoint[name] = self._objects.read(name)
        except (KeyError, TypeError, ValueError):
            return {}
        found = self._with_cached(version, in_parallel)
        commits = {commit_name(at): content for at, content in enumerate(found, version)}
        return checkpoint | commits if commits and len(checkpoint) != 1 else {}

    def _is_at_end(self, table: DeltaTable) -> bool:
        """Return True if the table's newest commit is young, or if the library finds no later one. Raises CorruptObject
        if that commit is damaged."""
        with naming_damage(f"the newest commit of {self._objects.uri}"):
            at = commit_time(info_in(actions_in(self.newest)))
        is_young = at is not None and is_recent(at, SystemClock().now(), BELIEVED_FOR)
        return is_young or self.in_place().version() == table.version()

    @contextmanager
    def _copied(self, objects: Mapping[str, bytes]) -> Iterator[None]:
        """If the table is open from copies, keep copies of these objects during the `with` block. Raises LakeError if
        they cannot be copied."""
        with self._one_at_a_time:
            if not self._is_copied:
                yield
                return
            try:
                self._copy(objects)
                yield
            finally:
                shutil.rmtree(self._place, ignore_errors=True)

    def _copy(self, objects: Mapping[str, bytes]) -> None:
        try:
            for name, content in objects.items():
                (self._place / LOG_FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
                (self._place / name).write_bytes(content)
        except OSError as error:
            raise storage_error(str(self._place), str(error)) from error


def actions_in(commit: bytes) -> list[Mapping[str, Any]]:
    """Return the Delta actions in the content of a commit. Raises ValueError."""
    return [json.loads(line) for line in commit.splitlines() if line]


def info_in(actions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Return the time and the metadata of a commit, given its actions; empty if the writer left them out."""
    return next((action["commitInfo"] for action in actions if action.get("commitInfo")), {})


def commit_time(info: Mapping[str, Any]) -> datetime | None:
    """Return the time of a commit, given its metadata; None if the writer left the time out."""
    return from_us(info["timestamp"] * 1000) if info.get("timestamp") else None


@contextmanager
def naming_damage(commit: str) -> Iterator[None]:
    """Turn an error that parsing raises in the `with` block into a CorruptObject that names `commit`."""
    try:
        yield
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.CorruptObject(f"{commit} is damaged ({error!r}); restore a backup") from error


def commit_name(version: int) -> str:
    """Return the path of a commit within its table."""
    return f"{LOG_FOLDER}/{version:020d}.json"


def checkpoint_name(version: int) -> str:
    """Return the path of a checkpoint within its table."""
    return f"{LOG_FOLDER}/{version:020d}.checkpoint.parquet"

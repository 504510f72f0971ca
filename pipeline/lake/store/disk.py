"""Stores objects as files in a local folder, which is the default lake. Also translates error messages of the operating
system and of the Delta library into LakeErrors that say what to do."""

import contextlib
import errno
import fcntl
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tidemark.pipeline import errors
from tidemark.pipeline.lake.store.objects import Before, allow
from tidemark.pipeline.version import newer_format

FULL_BYTES = 1 << 20
"""A disk with fewer free bytes than this counts as full. A tick writes at least about ten kilobytes, so this space
lasts for at most a hundred ticks."""

TEMPORARY = ".tmp-"
"""Prefix of the names of unfinished files. Readers ignore such files. A crash may leave one behind."""


class DiskObjects:
    """An ObjectStore of files in a folder. The whole folder must be on one file system that supports hard links and
    `fsync`."""

    def __init__(self, folder: Path, before: Before = allow) -> None:
        self._folder, self._before = folder, before
        self.uri = f"file:{folder}"

    def create(self, name: str, content: bytes) -> None:
        with self._at("create", name) as path:
            with _written_beside(path, content) as temporary:
                os.link(temporary, path)  # fails if the name is taken: this makes creation exclusive
            sync(path.parent)  # makes the new name itself durable

    def read(self, name: str) -> bytes:
        with self._at("get", name) as path:
            try:
                return path.read_bytes()
            except FileNotFoundError as error:
                raise errors.ObjectMissing(f"{self.uri}/{name} does not exist: restore a copy of it") from error

    def read_generation(self, name: str) -> tuple[bytes, int]:
        content = self.read(name)
        return content, _generation_of(content)

    def replace(self, name: str, content: bytes, generation: int) -> int:
        with self._at("create", name) as path:
            with _written_beside(path, content) as temporary, locked(path.parent):
                there = _generation_of(path.read_bytes()) if path.exists() else 0
                if there != generation:
                    raise errors.ObjectReplaced(f"another writer has replaced {self.uri}/{name}")
                temporary.replace(path)
            sync(path.parent)
        return _generation_of(content)

    def names(self, prefix: str) -> Iterator[str]:
        with self._at("list", prefix.rpartition("/")[0]) as folder:
            walked = os.walk(folder, onerror=_raise_unless_gone)
            files = (Path(place, name) for place, _, names in walked for name in names)
            paths = [path for path in files if not path.name.startswith(TEMPORARY)]
        names = (path.relative_to(self._folder).as_posix() for path in paths)
        # Sorted as text: Path objects sort by their parts.
        yield from sorted(name for name in names if name.startswith(prefix))

    def delete(self, name: str) -> None:
        with self._at("delete", name) as path:
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _at(self, call: str, name: str) -> Iterator[Path]:
        """Yield the path of an object. Translate an OSError of the `with` block into a LakeError."""
        self._before(call)
        with _disk_errors(self._folder / name):
            yield self._folder / name


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


@contextlib.contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except FileExistsError as error:
        raise errors.ObjectExists(f"file:{path} already exists") from error
    except BlockingIOError as error:
        raise errors.ObjectReplaced(f"another writer is replacing file:{path}") from error
    except OSError as error:
        raise storage_error(str(path), error.strerror or str(error)) from error


@contextlib.contextmanager
def _written_beside(path: Path, content: bytes) -> Iterator[Path]:
    """Write a durable temporary file to the folder of `path`, and yield the file's path. The folder is created if it is
    missing. The file is deleted at the end of the `with` block. Raises OSError and LakeError."""
    temporary = path.with_name(f"{TEMPORARY}{uuid.uuid4().hex}")
    check_folder(path.parent)
    made = [*takewhile(lambda folder: not folder.exists(), path.parents)]
    path.parent.mkdir(parents=True, exist_ok=True)
    for folder in made:
        sync(folder.parent)
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield temporary
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder exclusively during the `with` block. If the process dies, the operating system releases the lock.
    Raises BlockingIOError if another process or thread has the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _generation_of(content: bytes) -> int:
    """Return the generation of a file: a hash of the file's content. Two successive contents of a file must therefore
    differ."""
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "big")


def check_folder(folder: Path) -> None:
    """Raise LakeUnwritable if `folder` or one of its parents is a file, and LakeError if the table libraries cannot
    open its path."""
    with _disk_errors(folder):
        if str(folder).encode(errors="replace").decode() != str(folder):
            raise OSError(errno.EILSEQ, "the path is not UTF-8: choose another lake.uri")
        if unquote(str(folder)) != str(folder) or "\\" in str(folder):
            raise OSError(errno.EINVAL, "the path has a backslash or an escape such as %20: choose another lake.uri")
        if not _nearest(folder).is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))


def _nearest(folder: Path) -> Path:
    return next(place for place in (folder, *folder.parents) if place.exists())


def why_unwritable(folder: Path, least: int = FULL_BYTES) -> str | None:
    """Return the reason why files cannot be written to a folder, or None if they can. The reason is a file in the
    folder's place, a missing permission, or fewer than `least` free bytes. If the folder does not exist, its
    nearest existing parent is checked."""
    there = _nearest(folder)
    if not there.is_dir():
        return f"{there} is not a folder"
    if not os.access(there, os.W_OK | os.X_OK):
        return f"{there} cannot be written to"
    free = shutil.disk_usage(there).free
    return f"only {free >> 20} MiB are free on the disk of {there}" if free < least else None


def sync(path: Path) -> None:
    """Make the content of a file, or the list of files in a folder, durable. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


UNWRITABLE = (
    *("os error 13", "os error 30", "os error 20", "Permission denied", "Read-only file system", "Not a directory"),
    *("PermissionDenied", "ReadOnlyFilesystem", "NotADirectory", "Invalid table location", "403 Forbidden"),
    *("401 Unauthorized", "necessary privileges", "valid authentication credentials", "Operation not permitted"),
)
FOREIGN_LOGIN = "Unable to decode service account file"
UNREACHABLE = (
    *("error sending request", "Connection refused", "timed out", "dns error", "error decoding response body"),
    *("408 Request Timeout", "429 Too Many Requests", "500 Internal Server Error", "502 Bad Gateway"),
    *("503 Service Unavailable", "504 Gateway Timeout", "request or response body error"),
)
NEWER = ("Unsupported table features", "Unsupported minimum reader", "Unsupported: Feature")
DAMAGED = (
    *("Invalid JSON", "Json", "Parquet error", "EOF: file size", "corrupt"),
    *("Invalid table version", "Invalid Checkpoint", "found gap", "No table metadata"),
)
OF_CHECKPOINT = ("Kernel error: Invalid Checkpoint", "Kernel error: Arrow error: Parquet error")
FULL = ("os error 28", "os error 122", "No space left", "Disk quota exceeded")
LIMITED = ("os error 24", "Too many open files", "os error 27", "File too large")
"""The constants from UNWRITABLE to LIMITED are the strings by which `storage_error` recognizes the kinds of errors.
The Delta library reports "Invalid table location" if the path of a table's folder is a file."""

CALL = re.compile(r"Error performing (GET|HEAD|PUT|POST|DELETE) (\S+)")
DRAWING = re.compile(r"\x1b\[[0-9;]*m|\u21b3|^ +(\d+: |at ).*$", re.MULTILINE)
"""Matches colour codes, arrows and the lines of a backtrace, which are removed from messages of the Delta library."""

LONGEST = 500
"""Maximum number of characters quoted from a library's error message."""


def storage_error(uri: str, text: str) -> errors.LakeError:
    """Return the LakeError for a library's error message. `text` is the message, and `uri` the address of the file or
    table."""
    plain = plain_text(text)
    why, call = plain[:LONGEST] or "no reason given", _call(plain)
    if any(sign in text for sign in FULL):
        return errors.LakeFull(
            f"no space is left for {uri}; free some space, and ticks continue from the durable state"
        )
    if any(sign in text for sign in LIMITED):
        return errors.LakeFull(
            f"a limit of this process was reached at {uri}: {why}; raise the limit (`ulimit -n` for open files, "
            "`ulimit -f` for the size of a file), and ticks continue from the durable state"
        )
    if FOREIGN_LOGIN in text:
        return errors.LakeUnwritable(
            f"the Delta library cannot use these credentials for {uri}: it supports the machine's own account, a "
            f"user's login and a service account's key, but not federated or impersonated accounts ({why})"
        )
    if any(sign in text for sign in UNWRITABLE):
        needed = "" if call is None else f"{call} is needed. "
        remedy = "let this user write there, or set lake.uri to another place"
        if uri.startswith("gs://"):
            remedy = f"grant these credentials roles/storage.objectUser on gs://{urlsplit(uri).netloc}"
        return errors.LakeUnwritable(f"the lake refuses {uri}: {needed}{why}; {remedy}")
    if any(sign in text for sign in UNREACHABLE):
        during = "" if call is None else f" to {call}"
        return errors.LakeUnreachable(
            f"no answer from the lake at {uri}{during}: {why}; ticks retry from the durable state. If this persists, "
            "check the network"
        )
    if any(sign in text for sign in NEWER):
        return newer_format(uri, {}, why)
    if any(sign in text for sign in DAMAGED):
        remedy = "restore its earlier version or a backup"
        if any(sign in plain for sign in OF_CHECKPOINT):
            remedy = (
                "move _last_checkpoint, and the checkpoint that it names, out of the table's _delta_log: the table "
                f"then opens from the commits. If the commits are gone, {remedy}"
            )
        return errors.CorruptObject(f"{uri} has a damaged file: {why}; {remedy}")
    return errors.LakeError(f"the lake failed at {uri}: {why}")


def plain_text(said: object) -> str:
    """Return a library's error message on one line, without colour codes and backtrace."""
    return " ".join(DRAWING.sub("", str(said)).split())


def _call(text: str) -> str | None:
    """Return the permission that a failed request to a bucket needs, and the name of the object. Return None if the
    error message `text` does not contain a request."""
    if (found := CALL.search(text)) is None:
        return None
    method, url = found[1], urlsplit(found[2])
    name = unquote(url.path).lstrip("/").partition("/")[2]
    if not name:
        return "storage.objects.list"
    verb = {"GET": "get", "HEAD": "get", "DELETE": "delete"}.get(method, "create")
    return f"storage.objects.{verb} of {name}"

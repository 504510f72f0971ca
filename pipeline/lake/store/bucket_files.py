"""The objects of a bucket as Arrow reads and writes files.

Arrow's own file system for Cloud Storage and that of `deltalake` ask for the bucket or list it where a file is looked
for, and the latter keeps Python's lock while it waits for an answer, so that every thread of the process stands still.
Here each request lets other threads run, has a timeout, and is repeated within the bounds of `CloudStorageObjects`.
"""

import errno
import io
import os
from collections.abc import Sequence
from datetime import UTC
from threading import Lock
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.fs as pafs
from cachetools import LRUCache

from tidemark.pipeline.errors import ObjectExists, ObjectMissing
from tidemark.pipeline.lake.store.gcs import CloudStorageObjects, StoredObject

WHOLE_BYTES = 4 << 20
"""A file up to this size is read by one request, footer and columns together."""

READ_BYTES = 1 << 20
"""The least that is read of a larger file at once."""

NOT_ROWS = "_"
"""Begins the path of a file without rows of a table, for Delta Lake and Spark."""


class BucketFiles(pafs.FileSystemHandler):  # type: ignore[misc]
    """The objects under a prefix of a bucket: their paths are the rest of their names.

    A folder is what paths have in common: there is nothing to create, and it is never found by itself. A file that is
    written appears whole when it is closed, at a path that had none. Raises FileNotFoundError for a file that is not
    there, FileExistsError for one that is, and the LakeError of `CloudStorageObjects`.

    Small files with a table's rows are read once and kept, up to `kept_bytes`: their names are never used again. That
    such a file was deleted or damaged meanwhile goes unnoticed.
    """

    def __init__(self, uri: str, endpoint: str | None, kept_bytes: int = 0) -> None:
        self._address = uri, endpoint
        self._objects = CloudStorageObjects(uri, endpoint)
        self._kept: LRUCache[str, bytes] = LRUCache(kept_bytes, len)
        self._kept_lock = Lock()

    def __reduce__(self) -> tuple[type["BucketFiles"], tuple[str, str | None]]:
        return BucketFiles, self._address  # connections are not taken to another process

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BucketFiles) and self._address == other._address

    def __hash__(self) -> int:
        return hash(self._address)

    def get_type_name(self) -> str:
        return "bucket"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [_info(path, self._objects.find(self.normalize_path(path))) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        folder = f"{self.normalize_path(selector.base_dir)}/".removeprefix("/")
        found = self._objects.stored(folder)
        return [
            _info(each.name, each) for each in found if selector.recursive or "/" not in each.name.removeprefix(folder)
        ]

    def open_input_file(self, path: str) -> pa.NativeFile:
        name = self.normalize_path(path)
        with self._kept_lock:
            kept = self._kept.get(name)
        if kept is not None:
            return pa.BufferReader(kept)
        try:
            content = self._objects.read_range(name, 0, WHOLE_BYTES)
        except ObjectMissing as error:
            raise _missing(path) from error
        if len(content) < WHOLE_BYTES:
            if not name.startswith(NOT_ROWS) and len(content) <= self._kept.maxsize:
                with self._kept_lock:
                    self._kept[name] = content
            return pa.BufferReader(content)
        stored = self._objects.find(name)
        if stored is None:
            raise _missing(path)
        return pa.PythonFile(io.BufferedReader(_Ranges(self._objects, stored), READ_BYTES), mode="r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, _metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self._objects, self.normalize_path(path)), mode="w")

    def create_dir(self, path: str, recursive: bool) -> None:
        """Nothing: a bucket has no folders."""

    def delete_file(self, path: str) -> None:
        self._objects.delete(self.normalize_path(path))

    def _refused(self, *_: object) -> NoReturn:
        raise NotImplementedError(f"{self._objects.uri}: files are read, written and deleted here, and nothing else")

    delete_dir = delete_dir_contents = delete_root_dir_contents = move = copy_file = open_append_stream = _refused


class _Ranges(io.RawIOBase):
    """A large object, read range by range."""

    def __init__(self, objects: CloudStorageObjects, stored: StoredObject) -> None:
        super().__init__()
        self._objects, self._stored = objects, stored
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._stored.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        into = memoryview(buffer)
        end = min(self._at + len(into), self._stored.size)
        if end <= self._at:
            return 0
        try:
            content = self._objects.read_range(self._stored.name, self._at, end)
        except ObjectMissing as error:
            raise _missing(self._stored.name) from error
        into[: len(content)] = content
        self._at += len(content)
        return len(content)


class _Upload(io.BytesIO):
    """A file that is being written. It is an object once it is closed, or none at all."""

    def __init__(self, objects: CloudStorageObjects, name: str) -> None:
        super().__init__()
        self._objects, self._name = objects, name

    def close(self) -> None:
        if not self.closed:
            try:
                self._objects.create(self._name, self.getvalue())
            except ObjectExists as error:
                raise FileExistsError(errno.EEXIST, str(error)) from error
            finally:
                super().close()


def _info(path: str, stored: StoredObject | None) -> pafs.FileInfo:
    if stored is None:
        return pafs.FileInfo(path, pafs.FileType.NotFound)
    return pafs.FileInfo(path, pafs.FileType.File, mtime=stored.written_at.astimezone(UTC), size=stored.size)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

"""A bucket's objects as an Arrow file system.

The Cloud Storage file systems of Arrow and `deltalake` look up or list the bucket to find a file, and the latter holds
the GIL while it waits for a response, which blocks every thread of the process. Here each request releases the GIL, has
a timeout, and is retried within the bounds of `CloudStorageObjects`.
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
"""Files smaller than this are read in one request, footer and columns together."""

READ_BYTES = 1 << 20
"""Minimum bytes per read of a larger file."""

NOT_ROWS = "_"
"""Path prefix of files without table rows, by the convention of Delta Lake and Spark."""


class BucketFiles(pafs.FileSystemHandler):  # type: ignore[misc]
    """The objects under a prefix of a bucket. A path is the rest of an object's name.

    Folders are only common prefixes: they need no creation, and a lookup never finds them. A written file appears
    whole when it is closed, at a path that had no file. Raises FileNotFoundError if a file to read is missing,
    FileExistsError if a file to write exists, and the LakeErrors of `CloudStorageObjects`.

    Small files with table rows are read once and cached, up to `kept_bytes`: their names are never reused. If such a
    file is deleted or damaged later, the cache hides that.
    """

    def __init__(self, uri: str, endpoint: str | None, kept_bytes: int = 0) -> None:
        self._address = uri, endpoint
        self._objects = CloudStorageObjects(uri, endpoint)
        self._kept: LRUCache[str, bytes] = LRUCache(kept_bytes, len)
        self._kept_lock = Lock()

    def __reduce__(self) -> tuple[type["BucketFiles"], tuple[str, str | None]]:
        return BucketFiles, self._address  # connections cannot be sent to another process

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
        """Do nothing: a bucket has no folders."""

    def delete_file(self, path: str) -> None:
        self._objects.delete(self.normalize_path(path))

    def _refused(self, *_: object) -> NoReturn:
        raise NotImplementedError(f"{self._objects.uri}: this file system can only read, write and delete files")

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
    """A file being written. Closing it creates the whole object, or nothing if that fails."""

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

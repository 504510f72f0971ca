"""Stores objects in a Cloud Storage bucket, and presents the objects of a bucket as an Arrow file system.

The file systems of Arrow and `deltalake` for Cloud Storage need extra requests to find a file. Also, `deltalake` blocks
all threads while it waits for a response, because it does not release the GIL. The requests of this module release the
GIL, have a timeout, and are retried for a limited time.
"""

import contextlib
import errno
import io
import os
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, timedelta
from functools import partial
from threading import Lock
from typing import Any, NoReturn, TypeVar
from urllib.parse import urlparse

import pyarrow as pa
import pyarrow.fs as pafs
from cachetools import LRUCache
from google.api_core import exceptions as api_errors
from google.auth.exceptions import GoogleAuthError
from google.cloud.storage import Blob, Client
from google.cloud.storage.exceptions import DataCorruption
from google.cloud.storage.retry import DEFAULT_RETRY
from urllib3.exceptions import HTTPError

from tidemark.pipeline import errors
from tidemark.pipeline.lake.store.objects import LOCAL_PROJECT, RETRY_FOR, Before, allow, count_call

T = TypeVar("T")

REQUEST_TIMEOUT_SECONDS = 10.0
"""Timeout of one request. It is below RETRY_FOR, so that a hung request is repeated. Both fit into a tick of 60 s."""
ONCE: dict[str, Any] = {"timeout": REQUEST_TIMEOUT_SECONDS, "retry": None}
"""Options for a request that the client library must not retry, because `_attempt` retries the whole operation."""
BRIEFLY: dict[str, Any] = ONCE | {"timeout": 2.0}
"""Options for a request that reads or replaces a replaceable object. The request is not retried, and has a short
timeout, because a tick must not wait for such an object."""
PAUSES_SECONDS = (0.25, 2.0)
"""First and longest pause between two attempts."""
FAILURES = (api_errors.GoogleAPIError, GoogleAuthError, DataCorruption, OSError, HTTPError, AttributeError)
"""Errors that the client library raises. It raises AttributeError if an answer has no body or is not a JSON object."""
LISTED = "items(name,size,updated),nextPageToken"
CREATOR = "tidemark-creator"
"""Key in an object's metadata. Its value is a random mark, by which a `create` call recognizes the object that it
created."""

NO_BUCKET_LOOKUPS = "DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA"
"""Environment variable that keeps the client library from reading the bucket's metadata on its first call and after
each 404. Each such read costs a call, and needs a permission that the role roles/storage.objectUser does not
include."""


_found_buckets = set[str]()
"""The buckets known to exist, because a request of this process succeeded. From then on, a 404 means that an object is
missing."""


class CloudStorageObjects:
    """An ObjectStore of the objects in a bucket, below a prefix. Thread-safe.

    Uploads have the precondition `ifGenerationMatch=0`, so only one writer can create an object. If the response to an
    upload is lost, the precondition of its retry fails, although the upload has succeeded. To detect that, each
    `create` call writes a random mark to the object's metadata. If the precondition fails, the call raises ObjectExists
    unless the existing object has this mark.

    Checksums are verified for whole objects, not for ranges.
    """

    def __init__(
        self, uri: str, endpoint: str | None = None, before: Before = allow, *, retry_for: timedelta = RETRY_FOR
    ) -> None:
        """Open `gs://bucket` or `gs://bucket/prefix` without making a request. `endpoint` is the address of a server on
        loopback. Raises LakeUnwritable if no credentials are found."""
        parsed = urlparse(uri)
        prefix = parsed.path.strip("/")
        self.uri, self._before = uri.rstrip("/"), before
        self._at_endpoint = f" at {endpoint}" if endpoint else ""
        self._prefix = f"{prefix}/" if prefix else ""
        self._client = _connect(self.uri, endpoint)
        self._bucket = self._client.bucket(parsed.netloc)
        self._place = f"gs://{parsed.netloc}{self._at_endpoint}"
        self._retry = DEFAULT_RETRY.with_timeout(retry_for.total_seconds()).with_delay(*PAUSES_SECONDS)

    def create(self, name: str, content: bytes) -> None:
        mark = uuid.uuid4().hex

        def upload() -> None:
            blob = self._blob(name)
            blob.metadata = {CREATOR: mark}
            try:  # a generation of 0 makes creation exclusive
                blob.upload_from_string(
                    content, content_type="application/octet-stream", if_generation_match=0, checksum="auto", **ONCE
                )
            except api_errors.PreconditionFailed as error:
                found = self._bucket.get_blob(blob.name, **ONCE)
                if found is None or (found.metadata or {}).get(CREATOR) != mark:
                    raise errors.ObjectExists(f"{self.uri}/{name} already exists") from error

        self._attempt("create", name, upload)

    def read(self, name: str) -> bytes:
        return self._attempt("get", name, partial(self._download, name))

    def read_generation(self, name: str) -> tuple[bytes, int]:
        blob = self._blob(name)
        content: bytes = self._attempt(
            "get", name, lambda: blob.download_as_bytes(raw_download=True, checksum="auto", **BRIEFLY), once=True
        )
        return content, blob.generation or 0  # a response without a generation must not lead to an unconditional write

    def replace(self, name: str, content: bytes, generation: int) -> int:
        blob = self._blob(name)

        def upload() -> int:
            try:
                blob.upload_from_string(
                    content, content_type="application/json", if_generation_match=generation, checksum="auto", **BRIEFLY
                )
            except api_errors.PreconditionFailed as error:
                raise errors.ObjectReplaced(f"another writer has replaced {self.uri}/{name}") from error
            return blob.generation or 0

        return self._attempt("create", name, upload, once=True)

    def read_range(self, name: str, start: int, end: int) -> bytes:
        """Return the bytes `[start, end)` of an object, or fewer if the object is shorter. Does not verify a checksum.
        Raises the same errors as `read`."""

        def download() -> bytes:
            try:  # no checksum: the service sends only the checksum of the whole object
                return self._download(name, start=start, end=end - 1, checksum=None)
            except api_errors.RequestRangeNotSatisfiable:
                return b""

        return self._attempt("get", name, download)

    def find(self, name: str) -> pafs.FileInfo:
        """Return an object's size and write time, or a FileInfo of the type NotFound. Raises LakeError."""
        return self._attempt("get", name, lambda: _info(name, self._bucket.get_blob(self._prefix + name, **ONCE)))

    def names(self, prefix: str) -> Iterator[str]:
        """Yield the names that start with `prefix`, in order. Each request returns at most 1,000 names, and is made
        only when the caller needs them."""
        return (found.path for found in self.stored(prefix))

    def stored(self, prefix: str) -> Iterator[pafs.FileInfo]:
        """Like `names`, but also yield the size and the write time of each object."""
        self._before("list")
        try:
            retried = ONCE | {"retry": self._retry}
            found = self._client.list_blobs(self._bucket, prefix=self._prefix + prefix, fields=LISTED, **retried)
            for page in found.pages:
                count_call("list")
                for blob in page:
                    if not blob.name.endswith("/"):  # a folder placeholder, left by other tools
                        yield _info(blob.name.removeprefix(self._prefix), blob)
        except api_errors.NotFound as error:
            raise self._bucket_missing() from error
        except FAILURES as error:
            raise self._explained(error, "list", prefix) from error
        _found_buckets.add(self._place)

    def delete(self, name: str) -> None:
        with contextlib.suppress(errors.ObjectMissing):
            self._attempt("delete", name, lambda: self._blob(name).delete(**ONCE))

    def _blob(self, name: str) -> Blob:
        return self._bucket.blob(self._prefix + name)

    def _download(self, name: str, *, checksum: str | None = "auto", **part: int) -> bytes:
        content: bytes = self._blob(name).download_as_bytes(raw_download=True, checksum=checksum, **part, **ONCE)
        return content

    def _attempt(self, call: str, name: str, operation: Callable[[], T], *, once: bool = False) -> T:
        """Run `operation`. Unless `once` is true, retry it after transient failures, for a limited time. `call` is the
        kind of bucket call, for the counter and for errors. Translates the client's errors into LakeErrors.

        Raises ObjectMissing if the object does not exist, and BucketMissing if the bucket does not exist. Exception:
        a `delete`, or a `get` with `once`, raises ObjectMissing in both cases.
        """

        self._before(call)

        def attempt() -> T:
            count_call(call)
            return operation()

        bounded: Callable[[], T] = attempt if once else self._retry(attempt)
        try:
            return bounded()
        except api_errors.NotFound as error:
            if call == "create":
                raise self._bucket_missing() from error
            if call == "get" and not once and self._place not in _found_buckets:
                next(self.names(name), None)  # raises if the bucket itself is missing
                _found_buckets.add(self._place)
            raise errors.ObjectMissing(f"{self.uri}/{name} does not exist: restore a copy of it") from error
        except FAILURES as error:
            raise self._explained(error, call, name) from error

    def _bucket_missing(self) -> errors.BucketMissing:
        bucket = f"gs://{self._bucket.name}"
        return errors.BucketMissing(
            f"there is no bucket {self._place}; create it (gcloud storage buckets create {bucket} "
            "--uniform-bucket-level-access --location=<where the pipeline runs>), or set lake.uri to another bucket"
        )

    def _explained(self, error: Exception, call: str, name: str) -> errors.LakeError:
        place = f"{self.uri}/{name}{self._at_endpoint}"
        match error:
            case api_errors.Forbidden() | api_errors.Unauthorized():
                return errors.LakeUnwritable(
                    f"these credentials may not use {place}: storage.objects.{call} is needed. Grant them the role "
                    f"roles/storage.objectUser on gs://{self._bucket.name} (it has storage.objects.create, get, list "
                    f"and delete). The service said: {error.message}"
                )
            case api_errors.RetryError():
                return errors.LakeUnreachable(
                    f"Cloud Storage did not serve {place} in time ({error.cause}); check the network"
                    f"{' and lake.endpoint' if self._at_endpoint else ''}. Ticks continue from the durable state"
                )
            case GoogleAuthError():
                return _without_credentials(self.uri, error)
            case DataCorruption():
                return errors.CorruptObject(
                    f"{place} arrived with a wrong checksum; if this happens again, restore a backup of the object"
                )
            case api_errors.GoogleAPICallError():
                return errors.LakeError(f"Cloud Storage refused {place}: {error.message}")
            case _:
                return errors.LakeUnreachable(
                    f"no connection to Cloud Storage for {place}: {error}; check the network, and lake.endpoint if it "
                    "is set"
                )


def _connect(uri: str, endpoint: str | None) -> Client:
    os.environ.setdefault(NO_BUCKET_LOOKUPS, "true")  # the client reads this variable on each call
    if endpoint is not None:
        options = {"api_endpoint": endpoint.rstrip("/")}
        return Client(project=LOCAL_PROJECT, client_options=options, use_auth_w_custom_endpoint=False)
    try:
        return Client(project=None)  # no call here names a project
    except GoogleAuthError as error:
        raise _without_credentials(uri, error) from error


def _without_credentials(uri: str, error: Exception) -> errors.LakeUnwritable:
    return errors.LakeUnwritable(
        f"no usable credentials for {uri}: {error}; run `gcloud auth application-default login`, or set "
        "GOOGLE_APPLICATION_CREDENTIALS to a key file of an account that has roles/storage.objectUser on the bucket; "
        "then start tidemark again"
    )


WHOLE_BYTES = 4 << 20
"""Files below this size are read in one request."""

READ_BYTES = 1 << 20
"""Minimum number of bytes per request, for files that are read in several requests."""

NOT_ROWS = "_"
"""Prefix of paths without table rows, such as `_delta_log`, by a convention of Delta Lake and Spark."""


class BucketFiles(pafs.FileSystemHandler):  # type: ignore[misc]
    """An Arrow file system of the objects in a bucket, below a prefix. The path of a file is the object's name without
    the prefix.

    There are no folders: a listing that is not recursive shows the common prefixes of names as folders. A new file
    becomes visible, and is complete, when its writer closes it. An existing file cannot be overwritten. The methods
    raise FileNotFoundError if a file to read is missing, FileExistsError if a file to write exists, and the errors of
    `CloudStorageObjects`.

    Small files with table rows are cached, up to `kept_bytes` in total. This is safe because their names are never
    reused, but the cache hides the later loss of a file.
    """

    def __init__(self, uri: str, endpoint: str | None, kept_bytes: int = 0) -> None:
        self._address = uri, endpoint
        self._objects = CloudStorageObjects(uri, endpoint)
        self._kept: LRUCache[str, bytes] = LRUCache(kept_bytes, len)
        self._kept_lock = Lock()

    def __reduce__(self) -> tuple[type["BucketFiles"], tuple[str, str | None]]:
        return BucketFiles, self._address  # connections cannot be sent to another process

    def get_type_name(self) -> str:
        return "bucket"

    def normalize_path(self, path: str) -> str:
        return path.strip("/")

    def get_file_info(self, paths: Sequence[str]) -> list[pafs.FileInfo]:
        return [self._objects.find(self.normalize_path(path)) for path in paths]

    def get_file_info_selector(self, selector: pafs.FileSelector) -> list[pafs.FileInfo]:
        folder = f"{self.normalize_path(selector.base_dir)}/".removeprefix("/")
        if selector.recursive:
            return list(self._objects.stored(folder))
        direct = dict[str, pafs.FileInfo]()
        for each in self._objects.stored(folder):
            name, slash, _ = each.path.removeprefix(folder).partition("/")
            direct[name] = pafs.FileInfo(folder + name, pafs.FileType.Directory) if slash else each
        return list(direct.values())

    def open_input_file(self, path: str) -> pa.NativeFile:
        name = self.normalize_path(path)
        with self._kept_lock:
            kept = self._kept.get(name)
        if kept is not None:
            return pa.BufferReader(kept)
        try:
            content = self._objects.read_range(name, 0, WHOLE_BYTES)
        except errors.ObjectMissing as error:
            raise _missing(path) from error
        if len(content) < WHOLE_BYTES:
            if not name.startswith(NOT_ROWS) and len(content) <= self._kept.maxsize:
                with self._kept_lock:
                    self._kept[name] = content
            return pa.BufferReader(content)
        if not (stored := self._objects.find(name)).is_file:
            raise _missing(path)
        return pa.PythonFile(io.BufferedReader(_Ranges(self._objects, stored), READ_BYTES), mode="r")

    def open_input_stream(self, path: str) -> pa.NativeFile:
        """Open the file as it is now, even if its earlier content is cached."""
        with self._kept_lock:
            self._kept.pop(self.normalize_path(path), None)
        return self.open_input_file(path)

    def open_output_stream(self, path: str, _metadata: Any) -> pa.NativeFile:
        return pa.PythonFile(_Upload(self._objects, self.normalize_path(path)), mode="w")

    def create_dir(self, path: str, recursive: bool) -> None:
        """Do nothing: a bucket has no folders."""

    def _refused(self, *_: object) -> NoReturn:
        raise NotImplementedError(f"{self._objects.uri}: this file system can only read and write files")

    delete_file = delete_dir = delete_dir_contents = delete_root_dir_contents = _refused
    move = copy_file = open_append_stream = _refused


class _Ranges(io.RawIOBase):
    """An input stream of a large object. Each read requests one range of bytes."""

    def __init__(self, objects: CloudStorageObjects, stored: pafs.FileInfo) -> None:
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
            content = self._objects.read_range(self._stored.path, self._at, end)
        except errors.ObjectMissing as error:
            raise _missing(self._stored.path) from error
        into[: len(content)] = content
        self._at += len(content)
        return len(content)


class _Upload(io.BytesIO):
    """An output stream for a new object. Closing the stream creates the complete object, or nothing if the upload
    fails."""

    def __init__(self, objects: CloudStorageObjects, name: str) -> None:
        super().__init__()
        self._objects, self._name = objects, name

    def close(self) -> None:
        if not self.closed:
            try:
                self._objects.create(self._name, self.getvalue())
            except errors.ObjectExists as error:
                raise FileExistsError(errno.EEXIST, str(error)) from error
            finally:
                super().close()


def _info(name: str, blob: Blob | None) -> pafs.FileInfo:
    if blob is None:
        return pafs.FileInfo(name, pafs.FileType.NotFound)
    return pafs.FileInfo(name, pafs.FileType.File, mtime=blob.updated.astimezone(UTC), size=blob.size)


def _missing(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

"""Fetches the JAR that Spark needs for `gs://`: Google's Cloud Storage connector. All Spark sessions use the same
version, unless `spark.config` sets `spark.jars`."""

import hashlib
import os
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlparse

from tidemark.pipeline.clock import Clock
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.lake.store.address import spark_storage_config
from tidemark.pipeline.machine import replacing
from tidemark.pipeline.settings import Settings

JARS = "spark.jars"
"""Spark's setting for a session's JARs. If the user sets it, tidemark does not add its connector."""

CONNECTOR_CLASS = "GoogleHadoopFileSystem"
"""The class that Spark loads from the JAR. Spark's error about a missing connector names it."""

ANSWERS_WITHIN_SECONDS = 30.0
"""Timeout for each network operation of a download."""

FETCHED_WITHIN_SECONDS = 900.0
"""Maximum total time for a download. It is enough for 40 MB at half a megabit per second."""

CHUNK = 1 << 20
"""Maximum number of bytes per read of a download."""

Progress = Callable[[int, int], None]
"""A callback. Its arguments are the number of bytes fetched so far, and the total number of bytes."""

JAR_URL = (
    "https://repo1.maven.org/maven2/com/google/cloud/bigdataoss/gcs-connector/4.0.4/gcs-connector-4.0.4-shaded.jar"
)
JAR_SHA256 = "dfb5832738686436e597026a8e4bab01aa22e75ebfb15d37d096981f6599d73c"
JAR_SIZE = 40_521_713
"""The JAR of the connector for Spark 4: its address, its checksum, and its size in bytes. Later 4.0.x versions have no
shaded JAR, and 3.1.x fails on Parquet's column reads."""


def storage_config(settings: Settings) -> dict[str, str]:
    """Return the Spark settings for access to the lake. If the lake is in a bucket, they include the connector's JAR.
    The user's `spark.config` overrides them."""
    jar = {JARS: str(connector_file())} if wants_connector(settings) else {}
    return {**spark_storage_config(settings.lake), **jar}


def wants_connector(settings: Settings) -> bool:
    """Return True if Spark needs tidemark's connector: the lake is in a bucket, and the user has not set
    `spark.jars`."""
    return settings.lake.folder is None and JARS not in settings.spark.config


def connector_file() -> Path:
    """Return the path of the connector's JAR in the cache: `$XDG_CACHE_HOME/tidemark` or, if that variable is not set,
    `~/.cache/tidemark`. Raises ToolMissing if the user has no home folder, as in some containers."""
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError as error:
        raise ToolMissing(
            f"there is no folder for Spark's Cloud Storage connector ({error}): set $XDG_CACHE_HOME to a "
            f"writable folder, or set {JARS} in [spark.config]"
        ) from error
    return cache / "tidemark" / JAR_URL.rpartition("/")[2]


def check_connector(config: Mapping[str, str]) -> None:
    """Raise ToolMissing if a session's configuration names the connector's JAR in the cache, but the JAR is missing or
    has a different size. The checksum is not verified, because `fetch` has done that."""
    file = connector_file()
    if config.get(JARS) == str(file) and not (file.is_file() and file.stat().st_size == JAR_SIZE):
        raise ToolMissing(
            f"Spark cannot use gs:// without Google's connector, and {file} is missing or damaged: run `tidemark "
            "provision --connector`, which fetches it. Nothing was written"
        )


@contextmanager
def explaining_missing_connector() -> Iterator[None]:
    """Within this block, turn Spark's error about a missing connector into ToolMissing, which says what to do."""
    try:
        yield
    except Exception as error:
        if f"{CONNECTOR_CLASS} not found" not in str(error):
            raise
        raise ToolMissing(
            "this Spark cannot use gs://, because it has no Google connector: start it with the JAR that `tidemark "
            f"provision --connector` fetches ({JARS}={connector_file()}); see docs/how-to/storage-and-spark.md. "
            "Nothing was committed"
        ) from error


def is_fetched(file: Path) -> bool:
    """Return True if the file exists and has the connector's checksum."""
    if not file.is_file() or file.stat().st_size != JAR_SIZE:
        return False
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest() == JAR_SHA256


def fetch(
    clock: Clock, file: Path | None = None, source: str | None = None, progress: Progress = lambda _done, _of: None
) -> bool:
    """Fetch the connector's JAR to `file` (by default, in the cache). Returns False if `file` is this JAR already.

    `source` replaces JAR_URL: a URL, or the path of a file. The checksum is always verified. The file appears whole or
    not at all, and several processes may fetch it concurrently. Raises ToolMissing if the JAR cannot be fetched; the
    message says how to install it without a network.
    """
    file = file or connector_file()
    if is_fetched(file):
        return False
    address = source or JAR_URL
    if not urlparse(address).scheme:
        address = Path(address).expanduser().resolve().as_uri()
    try:
        with replacing(file) as part, part.open("wb") as target:
            _copy(address, target, clock, progress)
    except (OSError, HTTPException, ValueError) as error:
        raise ToolMissing(
            f"the Cloud Storage connector for Spark cannot be fetched from {address}: {error}. Without a network, "
            f"copy the file {JAR_URL} (SHA-256 {JAR_SHA256}) to this machine, and run `tidemark provision --connector "
            f"--source {file.name}`, which puts it at {file}. To use another cache, set $XDG_CACHE_HOME"
        ) from error
    return True


def _copy(address: str, target: BinaryIO, clock: Clock, progress: Progress) -> None:
    """Download the JAR. Raises OSError or HTTPException if that fails, and ValueError if the content is not the JAR."""
    until = clock.monotonic() + FETCHED_WITHIN_SECONDS
    digest, done = hashlib.sha256(), 0
    with closing(urllib.request.urlopen(address, timeout=ANSWERS_WITHIN_SECONDS)) as answer:  # noqa: S310 (the checksum decides, whatever the scheme)
        while chunk := answer.read1(CHUNK):
            done += len(chunk)
            if done > JAR_SIZE:
                raise ValueError(f"it is longer than the expected {JAR_SIZE:,} bytes")
            if clock.monotonic() > until:
                raise TimeoutError(f"only {done:,} of {JAR_SIZE:,} bytes arrived within {FETCHED_WITHIN_SECONDS:g} s")
            digest.update(chunk)
            target.write(chunk)
            progress(done, JAR_SIZE)
    if digest.hexdigest() != JAR_SHA256:
        raise ValueError(f"its SHA-256 is {digest.hexdigest()} ({done:,} bytes), but {JAR_SHA256} is expected")

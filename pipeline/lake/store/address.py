"""The address and the storage options of a lake, in the form that each library needs."""

import json
from collections.abc import Mapping

import pyarrow.fs as pafs

from tidemark.pipeline.lake.store.disk import DiskObjects, check_folder
from tidemark.pipeline.lake.store.objects import LOCAL_PROJECT, RETRY_FOR, Before, ObjectStore, allow
from tidemark.pipeline.settings_sections import LakeSettings


def open_objects(lake: LakeSettings, name: str = "", before: Before = allow) -> ObjectStore:
    """Return the store of the lake's objects, which calls `before` before each operation. With a `name`, return the
    store of the objects in that folder of the lake. Makes no request. Raises LakeUnwritable if there are no credentials
    for the bucket."""
    if lake.folder is not None:
        return DiskObjects(lake.folder / name, before)
    from tidemark.pipeline.lake.store.gcs import CloudStorageObjects  # only for a bucket: importing takes half a second

    return CloudStorageObjects(f"{lake.uri}/{name}".rstrip("/"), lake.endpoint, before)


def table_uri(lake: LakeSettings, name: str) -> str:
    """Return the address of the table or folder `name` in the lake: an absolute path or a `gs://` address."""
    return f"{lake.uri}/{name}" if lake.folder is None else str(lake.folder.absolute() / name)


BOUNDS = {
    "connect_timeout": "5s",
    "timeout": "20s",
    "max_retries": "8",
    "retry_timeout": f"{RETRY_FOR.total_seconds():.0f}s",
}
"""Timeouts and retry limits of each request that `deltalake` makes to a bucket. By default, the library retries for
three minutes."""


def storage_options(lake: LakeSettings) -> dict[str, str]:
    """Return the options that `deltalake` needs to open a table: none for a folder, BOUNDS for a bucket.

    The library finds default credentials itself. For a server on loopback, the options contain a dummy key, so that the
    library does not request a token. (The option `google_skip_signature` does not help: writes would still query a
    metadata server.)
    """
    endpoint = lake.endpoint
    if lake.folder is not None:
        return {}
    if endpoint is None:
        return dict(BOUNDS)
    dummy = dict.fromkeys(("client_email", "private_key", "private_key_id"), "")
    key = {"gcs_base_url": endpoint.rstrip("/"), "disable_oauth": True, **dummy}
    return {"google_service_account_key": json.dumps(key), "allow_http": "true"} | BOUNDS


def scan_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the `storage_options` for Polars: all `options` except BOUNDS, because Polars has its own limits."""
    return {key: value for key, value in options.items() if key not in BOUNDS}


def spark_storage_config(lake: LakeSettings) -> dict[str, str]:
    """Return the Spark settings for access to the lake.

    For a folder, they include a umask, so that only the owner can access what other code writes through the same Spark.
    Hadoop ignores the umask of the process. For a bucket, Google's `gcs-connector` must be among the JARs.
    """
    if lake.folder is not None:
        return {"spark.hadoop.fs.permissions.umask-mode": "077"}
    hadoop = {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",  # Hadoop 3.5 has another one built in
        "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "fs.gs.block.size": str(64 << 20),  # Hadoop 3.5 sets "64m", which the connector cannot read
        # Without these two, the connector makes two more requests per file that it opens.
        "fs.gs.status.parallel.enable": "false",
        "fs.gs.inputstream.fast.fail.on.not.found.enable": "false",
    }
    if lake.endpoint is None:
        hadoop |= {"fs.gs.auth.type": "APPLICATION_DEFAULT"}  # as in the other libraries
    else:
        hadoop |= {
            "fs.gs.storage.root.url": f"{lake.endpoint.rstrip('/')}/",
            "fs.gs.auth.type": "UNAUTHENTICATED",
            "fs.gs.project.id": LOCAL_PROJECT,
            "fs.gs.operation.move.enable": "false",  # the server on loopback lacks it
        }
    return {f"spark.hadoop.{key}": value for key, value in hadoop.items()}


def arrow_files(lake: LakeSettings, name: str, kept_bytes: int = 0) -> pafs.FileSystem:
    """Return a file system whose root is the folder `name` of the lake. Creates nothing. Caches up to `kept_bytes` of
    small files if the lake is in a bucket (see BucketFiles). Raises LakeError if the folder's path is unusable, or if
    there are no credentials for the bucket."""
    if lake.folder is not None:
        folder = lake.folder.absolute() / name
        check_folder(folder)
        return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    from tidemark.pipeline.lake.store.gcs import BucketFiles

    return pafs.PyFileSystem(BucketFiles(f"{lake.uri}/{name}".rstrip("/"), lake.endpoint, kept_bytes))

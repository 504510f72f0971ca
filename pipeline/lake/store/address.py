"""The lake's address in the form that each library takes."""

import json

import pyarrow.fs as pafs

from tidemark.pipeline.lake.store.disk import DiskObjects, check_folder
from tidemark.pipeline.lake.store.gcs import LOCAL_PROJECT, CloudStorageObjects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.settings_sections import LakeSettings


def open_objects(lake: LakeSettings) -> ObjectStore:
    """Open the lake's objects in its folder or bucket, without a request. Raises LakeUnwritable without credentials."""
    if lake.folder is not None:
        return DiskObjects(lake.folder)
    return CloudStorageObjects(lake.uri, lake.endpoint)


def table_uri(lake: LakeSettings, name: str) -> str:
    """The address of the Delta table or folder `name`: an absolute path, or `gs://…`."""
    if lake.folder is not None:
        return str(lake.folder.absolute() / name)
    return f"{lake.uri}/{name}"


def storage_options(lake: LakeSettings) -> dict[str, str]:
    """The options that `deltalake` takes beside a table's address. A folder needs none, and neither does the service,
    whose default credentials it finds itself. A key that asks for no token names a server on loopback; with
    `google_skip_signature`, writes would still look for a metadata server."""
    endpoint = lake.endpoint
    if endpoint is None or lake.folder is not None:
        return {}
    key = {
        "gcs_base_url": endpoint.rstrip("/"),
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    return {"google_service_account_key": json.dumps(key), "allow_http": "true"}


def spark_storage_config(lake: LakeSettings) -> dict[str, str]:
    """Spark's settings for the lake. A folder's files are for their user alone, whatever the umask: Hadoop has one of
    its own. A bucket needs Google's `gcs-connector` among the JARs."""
    if lake.folder is not None:
        return {"spark.hadoop.fs.permissions.umask-mode": "077"}
    hadoop = {
        "fs.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFileSystem",  # Hadoop 3.5 has another one built in
        "fs.AbstractFileSystem.gs.impl": "com.google.cloud.hadoop.fs.gcs.GoogleHadoopFS",
        "fs.gs.block.size": str(64 << 20),  # Hadoop 3.5 writes "64m" there, which the connector cannot read
    }
    if lake.endpoint is None:
        hadoop |= {"fs.gs.auth.type": "APPLICATION_DEFAULT"}  # as the other libraries do
    else:
        hadoop |= {
            "fs.gs.storage.root.url": f"{lake.endpoint.rstrip('/')}/",
            "fs.gs.auth.type": "UNAUTHENTICATED",
            "fs.gs.project.id": LOCAL_PROJECT,
            "fs.gs.operation.move.enable": "false",  # the server on loopback lacks it
        }
    return {f"spark.hadoop.{key}": value for key, value in hadoop.items()}


def arrow_files(lake: LakeSettings, name: str) -> pafs.FileSystem:
    """A file system rooted at the folder `name` of the lake, for footers and small files. It creates nothing by itself.
    Raises LakeUnwritable where a file stands in the folder's place."""
    if lake.folder is not None:
        folder = lake.folder.absolute() / name
        check_folder(folder)
        return pafs.SubTreeFileSystem(str(folder), pafs.LocalFileSystem())
    bucket_and_prefix = lake.uri.removeprefix("gs://")
    if lake.endpoint is None:
        files = pafs.GcsFileSystem()
    else:
        scheme, _, host = lake.endpoint.rstrip("/").partition("://")
        files = pafs.GcsFileSystem(anonymous=True, endpoint_override=host, scheme=scheme)
    return pafs.SubTreeFileSystem(f"{bucket_and_prefix}/{name}", files)

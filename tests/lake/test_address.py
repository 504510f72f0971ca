"""One address, and what each library is told about it."""

import json

from tidemark.pipeline.lake.store.address import (
    BOUNDS,
    scan_options,
    spark_storage_config,
    storage_options,
)
from tidemark.pipeline.settings_sections import LakeSettings

ENDPOINT = "http://127.0.0.1:4443"
LOOPBACK_ONLY = {"fs.gs.storage.root.url", "fs.gs.project.id", "fs.gs.operation.move.enable"}

folder = LakeSettings(uri="file:/somewhere/lake")
bucket = LakeSettings(uri="gs://bucket/lake")
loopback = LakeSettings(uri="gs://bucket/lake/", endpoint=ENDPOINT)


def test_delta_gets_no_options_for_a_folder_and_bounds_alone_for_the_service() -> None:
    assert storage_options(folder) == {}
    assert storage_options(bucket) == BOUNDS


def test_polars_gets_the_address_without_bounds_that_it_cannot_read() -> None:
    assert scan_options(storage_options(bucket)) == {}
    assert set(scan_options(storage_options(loopback))) == {"google_service_account_key", "allow_http"}


def test_delta_gets_the_address_of_a_loopback_server_that_asks_for_no_token() -> None:
    options = storage_options(loopback)
    key = json.loads(options["google_service_account_key"])
    assert (key["gcs_base_url"], key["disable_oauth"], options["allow_http"]) == (ENDPOINT, True, "true")


def test_sparks_files_in_a_folder_are_for_their_user_alone() -> None:
    assert spark_storage_config(folder) == {"spark.hadoop.fs.permissions.umask-mode": "077"}


def test_spark_logs_in_to_the_service_and_never_to_loopback() -> None:
    service, local = spark_storage_config(bucket), spark_storage_config(loopback)
    assert service["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    assert local["spark.hadoop.fs.gs.auth.type"] == "UNAUTHENTICATED"
    assert local["spark.hadoop.fs.gs.storage.root.url"] == f"{ENDPOINT}/"
    assert set(local) - set(service) == {f"spark.hadoop.{key}" for key in LOOPBACK_ONLY}

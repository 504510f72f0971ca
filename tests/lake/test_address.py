"""One address, and what each library is told about it. The tests in `tests/gcs/` use a server on loopback by it."""

from tidemark.pipeline.lake.store.address import BOUNDS, scan_options, spark_storage_config, storage_options
from tidemark.pipeline.settings_sections import LakeSettings

LOOPBACK_ONLY = {"fs.gs.storage.root.url", "fs.gs.project.id", "fs.gs.operation.move.enable"}

folder = LakeSettings(uri="file:/somewhere/lake")
bucket = LakeSettings(uri="gs://bucket/lake")
loopback = LakeSettings(uri="gs://bucket/lake/", endpoint="http://127.0.0.1:4443")


def test_a_folder_is_for_its_user_alone_and_the_service_is_logged_in_to_within_bounds() -> None:
    assert storage_options(folder) == {}
    assert spark_storage_config(folder) == {"spark.hadoop.fs.permissions.umask-mode": "077"}
    assert (storage_options(bucket), scan_options(storage_options(bucket))) == (BOUNDS, {})
    service, local = spark_storage_config(bucket), spark_storage_config(loopback)
    assert service["spark.hadoop.fs.gs.auth.type"] == "APPLICATION_DEFAULT"
    assert local["spark.hadoop.fs.gs.auth.type"] == "UNAUTHENTICATED"
    assert set(local) - set(service) == {f"spark.hadoop.{key}" for key in LOOPBACK_ONLY}

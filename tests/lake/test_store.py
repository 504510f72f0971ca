"""The place of a lake: what each library is told of it, its mark, and what a failed call becomes."""

from pathlib import Path

import pytest

from tidemark.pipeline.errors import LakeError, LakeUnreachable, LakeUnwritable, NewerFormat
from tidemark.pipeline.lake.store.address import BOUNDS, scan_options, spark_storage_config, storage_options
from tidemark.pipeline.lake.store.admission import FORMATS, Admission
from tidemark.pipeline.lake.store.disk import DiskObjects, storage_error
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import FORMAT

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


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b'{"tidemark.format": "1"}'])
def test_a_later_mark_that_is_damaged_is_refused_by_its_name(content: bytes, tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(f"{FORMATS.prefix}{FORMAT + 3:06d}.json", content)
    for refuses in (Admission(lambda: objects).admit, Admission(lambda: objects).claim):
        with pytest.raises(NewerFormat, match=f"is {FORMAT + 3}, and this version reads formats up to {FORMAT}"):
            refuses()


TABLE = "gs://bucket/lake/heartbeats"
DENIED = (
    "Kernel error -> The operation lacked the necessary privileges to complete for path lake/heartbeats/_delta_log\n"
    "          \x1b[31m↳\x1b[0m Error performing GET http://127.0.0.1:4443/bucket/lake%2Fheartbeats%2F%5Fdelta%5Flog%2F"
    "%5Flast%5Fcheckpoint in 1.3ms - Server returned non-2xx status code\n           \x1b[31m↳\x1b[0m 403 Forbidden\n"
)
UNLISTED = (
    "Generic GCS error: Error performing GET http://127.0.0.1:4443/bucket?list-type=2&prefix=lake in 3ms - Server "
    "returned non-2xx status code: 403 Forbidden"
)
HUNG = (
    "Generic GCS error\n          \x1b[31m↳\x1b[0m Error performing PUT https://storage.googleapis.com/bucket/lake%2F"
    "heartbeats%2F%5Fdelta%5Flog%2F00000000000000000001%2Ejson in 20.0s - HTTP error\n           \x1b[31m↳\x1b[0m "
    "error sending request\n            \x1b[31m↳\x1b[0m operation timed out\n"
)
THROTTLED = "Generic GCS error: Error performing PUT http://h/bucket/a in 10s, after 8 retries: 429 Too Many Requests"


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        (DENIED, LakeUnwritable, "storage.objects.get of lake/heartbeats/_delta_log/_last_checkpoint is needed"),
        (DENIED, LakeUnwritable, "grant these credentials roles/storage.objectUser on gs://bucket"),
        (UNLISTED, LakeUnwritable, "storage.objects.list is needed"),
        (HUNG, LakeUnreachable, "storage.objects.create of lake/heartbeats/_delta_log/00000000000000000001.json"),
        (HUNG, LakeUnreachable, "HTTP error error sending request operation timed out; the next tick retries"),
        (THROTTLED, LakeUnreachable, "storage.objects.create of a: "),
        ("", LakeError, f"the lake failed at {TABLE}: no reason given"),
    ],
)
def test_an_error_names_the_call_and_what_to_do(text: str, expected: type[LakeError], told: str) -> None:
    error = storage_error(TABLE, text)
    assert type(error) is expected
    assert told in str(error)
    assert str(error).isprintable()

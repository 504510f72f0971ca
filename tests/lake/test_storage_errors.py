"""What the Delta library says of a failed call becomes an error that names the call and says what to do."""

import pytest

from tidemark.pipeline.errors import LakeError, LakeUnreachable, LakeUnwritable
from tidemark.pipeline.lake.store.disk import storage_error

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

"""Calls to Cloud Storage are counted as what they are, and for whom."""

import pytest

from tests.gcs.counting import ELSE, LANDING, LOOKS, RUNS, TRACKING, Call, Class, by_part, kind_of, place_of

A, B, FREE = Class.A, Class.B, Class.FREE
ENTRY = "lake/tracking/log/1.parquet"


@pytest.mark.parametrize(
    ("method", "path", "body", "kind"),
    [
        (
            "POST",
            "/upload/storage/v1/b/x/o?uploadType=multipart",
            f'--=\r\n{{"name": "{ENTRY}"}}',
            ("create", A, ENTRY),
        ),
        ("POST", "/upload/storage/v1/b/x/o?uploadType=resumable", f'{{"name":"{ENTRY}"}}', ("create", A, ENTRY)),
        ("PUT", "/upload/storage/v1/b/x/o?upload_id=1&name=n", "", ("part of an upload", FREE, "n")),
        ("PUT", f"/x/{ENTRY}", "", ("create", A, ENTRY)),
        ("POST", f"/x/{ENTRY}?uploads", "", ("create", A, ENTRY)),
        ("GET", "/storage/v1/b/x/o?prefix=lake%2Fa", "", ("list", A, "lake/a")),
        ("GET", "/x?list-type=2&prefix=lake/a", "", ("list", A, "lake/a")),
        ("GET", "/download/storage/v1/b/x/o/lake%2Fa?alt=media", "", ("read", B, "lake/a")),
        ("GET", "/storage/v1/b/x/o/lake%2Fa?alt=json", "", ("look up", B, "lake/a")),
        ("GET", f"/x/{ENTRY}", "", ("read", B, ENTRY)),
        ("HEAD", f"/x/{ENTRY}", "", ("look up", B, ENTRY)),
        ("GET", "/storage/v1/b/x?projection=full", "", ("look the bucket up", B, "")),
        ("DELETE", "/storage/v1/b/x/o/lake%2Fa", "", ("delete", FREE, "lake/a")),
        ("DELETE", f"/x/{ENTRY}", "", ("delete", FREE, ENTRY)),
        ("POST", "/storage/v1/b/x/o/a/rewriteTo/b/x/o/c", "", ("copy or change", A, "a/rewriteTo/b/x/o/c")),
    ],
)
def test_a_call_has_a_kind_a_class_and_a_name(method: str, path: str, body: str, kind: tuple[str, Class, str]) -> None:
    assert kind_of(method, path, body.encode()) == kind


def test_calls_are_told_apart_by_their_process_and_by_what_their_connection_writes() -> None:
    server, fork = "python -m tidemark.resources.code_server", "python -c from multiprocessing.forkserver import main"

    def call(connection: str, process: str, kind: str, name: str) -> Call:
        return Call(0.0, connection, process, kind, A, name, 200)

    tracking = [call("1", server, "list", "lake/tracking/log/"), call("1", server, "create", ENTRY)]
    landing = [call("2", server, "create", "lake/heartbeats/x"), call("2", server, "list", "lake/heartbeats/")]
    looks, runs = (
        [call("3", server, "list", "lake/tracking/log/")],
        [call("4", fork, "create", "lake/heartbeat_diffs/x")],
    )
    other = [call("5", "tidemark status", "list", "lake/tracking/log/")]
    found = by_part([*tracking, *landing, *looks, *runs, *other])
    assert found == {TRACKING: tracking, LANDING: landing, LOOKS: looks, RUNS: runs, ELSE: other}
    assert [place_of(one.name) for one in (*tracking, *runs)] == ["tracking", "tracking", "heartbeat_diffs"]

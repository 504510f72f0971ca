"""One contract for every place that objects live in, on disk and in Cloud Storage; what each library is told of the
place, its mark, and what a failed call becomes."""

import errno
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import pytest

from tests.gcs.server import CloudStorageServer
from tests.gcs.xml_proxy import Answer, XmlHandler, XmlProxy
from tests.http_server import Quiet, serving
from tests.pubsub.builders import raising
from tidemark.pipeline import errors
from tidemark.pipeline.lake.store.address import (
    BOUNDS,
    open_objects,
    scan_options,
    spark_storage_config,
    storage_options,
)
from tidemark.pipeline.lake.store.admission import FORMATS, admit, claim
from tidemark.pipeline.lake.store.disk import TEMPORARY, DiskObjects, check_folder, storage_error
from tidemark.pipeline.lake.store.gcs import CloudStorageObjects
from tidemark.pipeline.lake.store.objects import ObjectStore, counted_calls
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import FORMAT

CREATORS = 16
ROUNDS = 5


@pytest.mark.parametrize("size", [0, 1, 8 << 20, (8 << 20) + 1], ids=["empty", "a byte", "8 MiB", "more than 8 MiB"])
def test_content_of_any_size_comes_back_whole(objects: ObjectStore, size: int) -> None:
    """Cloud Storage's client sends up to 8 MiB in one request, and more in several."""
    content = os.urandom(size)
    objects.create("folder/name", content)
    assert objects.read("folder/name") == content
    assert list(objects.names("")) == ["folder/name"]


@pytest.mark.parametrize("same", [False, True], ids=["each its own content", "the same content"])
def test_exactly_one_of_many_creators_of_a_name_wins(objects: ObjectStore, same: bool) -> None:
    contents = [b"same" if same else f"creator {number}".encode() for number in range(CREATORS)]
    together = threading.Barrier(CREATORS)

    def compete(name: str, content: bytes) -> bool:
        together.wait()
        try:
            objects.create(name, content)
        except errors.ObjectExists:
            return False
        return True

    with ThreadPoolExecutor(CREATORS) as threads:
        for number in range(ROUNDS):
            name = f"folder/{number}"
            won = list(threads.map(compete, [name] * CREATORS, contents))
            assert won.count(True) == 1
            assert objects.read(name) == contents[won.index(True)]


def test_names_come_in_order_and_only_those_of_the_prefix_and_a_deleted_one_is_free(objects: ObjectStore) -> None:
    for name in ("log/000010", "log/000002", "log/000001", "logs/000001", "other", "log/deeper/000003"):
        objects.create(name, b"")
    assert list(objects.names("log/")) == ["log/000001", "log/000002", "log/000010", "log/deeper/000003"]
    assert list(objects.names("log/00000")) == ["log/000001", "log/000002"]
    assert list(objects.names("log")) == ["log/000001", "log/000002", "log/000010", "log/deeper/000003", "logs/000001"]
    assert len(list(objects.names(""))) == 6
    objects.delete("other")
    assert len(list(objects.names(""))) == 5
    with pytest.raises(errors.ObjectMissing):
        objects.read("other")
    objects.create("other", b"second")
    assert objects.read("other") == b"second"


def test_at_most_one_of_many_writers_over_one_generation_succeeds(objects: ObjectStore) -> None:
    together = threading.Barrier(CREATORS)

    def compete(number: int, generation: int) -> int:
        together.wait()
        try:
            return objects.replace("name.json", f"writer {number} over {generation}".encode(), generation)
        except errors.ObjectReplaced:
            return 0

    generation = 0
    with ThreadPoolExecutor(CREATORS) as threads:
        for _ in range(ROUNDS):
            written = list(threads.map(compete, range(CREATORS), [generation] * CREATORS))
            (winner,) = [number for number, new in enumerate(written) if new]
            content = f"writer {winner} over {generation}".encode()
            generation = written[winner]
            assert objects.read_generation("name.json") == (content, generation)


# On disk


@pytest.mark.parametrize("place", ["lake", "lake/folder"])
def test_a_file_in_the_place_of_a_folder_makes_the_lake_unwritable(tmp_path: Path, place: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_bytes(b"not a folder")
    with pytest.raises(errors.LakeUnwritable, match=r"set lake\.uri"):
        DiskObjects(tmp_path / "lake").create("folder/name", b"content")
    with pytest.raises(errors.LakeError, match="not UTF-8"):
        check_folder(tmp_path / "\udce4")
    for name in ("a%20b", "a\\b"):
        with pytest.raises(errors.LakeError, match="choose another"):
            check_folder(tmp_path / name)


def test_no_half_is_listed_and_no_unreadable_folder_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = DiskObjects(tmp_path)
    objects.create("folder/name", b"content")
    (tmp_path / "folder" / f"{TEMPORARY}0123").write_bytes(b"cont")
    assert [*objects.names(""), *objects.names("none/")] == ["folder/name"]

    def refuse(folder: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(errors.LakeUnwritable, match="folder"):
        list(objects.names("folder/"))


def test_a_failed_write_leaves_neither_object_nor_leftover(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(errors.LakeFull, match="no space"):
            DiskObjects(tmp_path).create("name", b"content")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    DiskObjects(tmp_path).create("name", b"content")


# Cloud Storage's client, without a server


def test_a_service_that_does_not_serve_is_unreachable_after_bounded_attempts() -> None:
    with socket.socket() as bound:  # and never listening
        bound.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{bound.getsockname()[1]}"
        objects = CloudStorageObjects("gs://bucket/lake", endpoint, retry_for=timedelta(seconds=0.1))
        with pytest.raises(errors.LakeUnreachable, match="check the network"):
            objects.create("name", b"content")
        for use in (lambda: objects.read("name"), lambda: list(objects.names("")), lambda: objects.delete("name")):
            with pytest.raises(errors.LakeUnreachable):
                use()


@pytest.mark.parametrize("body", [b"", b"null"])
def test_an_answer_without_content_is_no_answer(body: bytes) -> None:
    class Empty(Quiet):
        def do_GET(self) -> None:  # noqa: N802 (the name that the server calls)
            self.reply(body)

    with serving(Empty) as endpoint:
        objects = CloudStorageObjects("gs://bucket/lake", endpoint)
        for use in (lambda: objects.find("name"), lambda: list(objects.names(""))):
            with pytest.raises(errors.LakeUnreachable, match="check the network"):
                use()


def test_without_credentials_a_bucket_is_unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "no-such-key.json"))
    with pytest.raises(errors.LakeUnwritable, match=r"application-default login.*; then start tidemark again"):
        open_objects(LakeSettings(uri="gs://bucket/lake"))


# Cloud Storage's client, with a server that fails in its own ways


class AnswerLost(XmlHandler):
    """Does what an upload asks for, and answers something else the first time."""

    said = 503
    uploads = 0

    def answer(self, body: bytes) -> Answer:
        true_answer = super().answer(body)
        if self.command != "POST":
            return true_answer
        type(self).uploads += 1
        return (self.said, {}, b"") if type(self).uploads == 1 else true_answer


@pytest.fixture(params=[503, 412])
def losing_answers(
    request: pytest.FixtureRequest, gcs_server: CloudStorageServer, gcs_lake_settings: LakeSettings
) -> Iterator[CloudStorageObjects]:
    """A store whose first upload succeeds and is said to have failed, or to be refused because of itself."""
    handler = type("Handler", (AnswerLost,), {"said": request.param})
    proxy = XmlProxy(gcs_server.upstream_port, handler=handler).start()
    yield CloudStorageObjects(gcs_lake_settings.uri, proxy.endpoint)
    proxy.stop()


@pytest.mark.gcs
@pytest.mark.parametrize("is_taken", [False, True])
def test_an_upload_that_is_refused_has_succeeded_if_because_of_itself_and_failed_if_of_another(
    losing_answers: CloudStorageObjects, gcs_lake_settings: LakeSettings, *, is_taken: bool
) -> None:
    if is_taken:
        open_objects(gcs_lake_settings).create("folder/name", b"content")
    with pytest.raises(errors.ObjectExists) if is_taken else nullcontext():
        losing_answers.create("folder/name", b"content")
    assert losing_answers.read("folder/name") == b"content"


@pytest.mark.gcs
def test_a_replacement_is_tried_once_and_may_have_been_written(losing_answers: CloudStorageObjects) -> None:
    with pytest.raises((errors.LakeError, errors.ObjectReplaced)):
        losing_answers.replace("name.json", b"content", 0)
    content, generation = losing_answers.read_generation("name.json")
    assert content == b"content"
    losing_answers.replace("name.json", b"next", generation)


class Garbling(XmlHandler):
    """Delivers another last byte than was stored, under the stored checksum."""

    def answer(self, body: bytes) -> Answer:
        status, headers, content = super().answer(body)
        return (status, headers, content[:-1] + b"?") if "/download/" in self.path else (status, headers, content)


@pytest.mark.gcs
def test_changed_content_is_never_returned(gcs_server: CloudStorageServer, gcs_lake_settings: LakeSettings) -> None:
    proxy = XmlProxy(gcs_server.upstream_port, handler=Garbling).start()
    objects = CloudStorageObjects(gcs_lake_settings.uri, proxy.endpoint)
    objects.create("folder/name", b"content")
    with pytest.raises(errors.CorruptObject, match="checksum"):
        objects.read("folder/name")
    proxy.stop()


@pytest.mark.gcs
def test_a_missing_bucket_is_distinguished_from_a_missing_object(gcs_server: CloudStorageServer) -> None:
    objects = CloudStorageObjects("gs://tidemark-no-such-bucket/lake", gcs_server.endpoint)
    for use in (lambda: objects.create("name", b""), lambda: objects.read("name"), lambda: list(objects.names(""))):
        with pytest.raises(errors.LakeError, match="gcloud storage buckets create gs://tidemark-no-such-bucket"):
            use()


@pytest.mark.gcs
def test_a_process_looks_once_for_a_bucket(gcs_lake_settings: LakeSettings) -> None:
    for _ in range(2):
        listed_before = counted_calls().get("list", 0)
        with pytest.raises(errors.ObjectMissing):
            open_objects(gcs_lake_settings).read("name")
    assert counted_calls().get("list", 0) == listed_before


@pytest.mark.gcs
def test_a_folder_placeholder_that_another_tool_left_is_not_a_name(gcs_lake_settings: LakeSettings) -> None:
    objects = open_objects(gcs_lake_settings)
    objects.create("folder/", b"")
    objects.create("folder/name", b"content")
    assert list(objects.names("")) == ["folder/name"]


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
    DiskObjects(tmp_path).create(f"{FORMATS.prefix}{FORMAT + 3:06d}.json", content)
    for refuses in (admit, claim):
        with pytest.raises(errors.NewerFormat, match=f"is {FORMAT + 3}, and this version reads formats up to {FORMAT}"):
            refuses(LakeSettings(uri=f"file:{tmp_path}"))


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
TRACED = "Kernel error: Json error: unexpected 'b'\n   0: <unknown>\n  12: clone3\n             at ./clone3.S:81:0\n"
FEDERATED = "Generic GCS error: Unable to decode service account file: unknown variant `external_account`"
CUT_OFF = "Kernel error: Arrow error: External: Generic GCS error: HTTP error: request or response body error"
THROTTLED = "Generic GCS error: Error performing PUT http://h/bucket/a in 10s, after 8 retries: 429 Too Many Requests"


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        (DENIED, errors.LakeUnwritable, "storage.objects.get of lake/heartbeats/_delta_log/_last_checkpoint is needed"),
        (DENIED, errors.LakeUnwritable, "grant these credentials roles/storage.objectUser on gs://bucket"),
        (UNLISTED, errors.LakeUnwritable, "storage.objects.list is needed"),
        (
            HUNG,
            errors.LakeUnreachable,
            "storage.objects.create of lake/heartbeats/_delta_log/00000000000000000001.json",
        ),
        (HUNG, errors.LakeUnreachable, "HTTP error error sending request operation timed out; ticks retry"),
        (TRACED, errors.CorruptObject, "Json error: unexpected 'b'; restore its earlier version"),
        (FEDERATED, errors.LakeUnwritable, "not federated or impersonated accounts"),
        (THROTTLED, errors.LakeUnreachable, "storage.objects.create of a: "),
        (CUT_OFF, errors.LakeUnreachable, "ticks retry"),
        ("", errors.LakeError, f"the lake failed at {TABLE}: no reason given"),
    ],
)
def test_an_error_names_the_call_and_what_to_do(text: str, expected: type[errors.LakeError], told: str) -> None:
    error = storage_error(TABLE, text)
    assert type(error) is expected
    assert told in str(error)
    assert str(error).isprintable()

"""The proxy's listings are those of Cloud Storage: the tests that go through it rest on that."""

import http.client
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree

import pytest

from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

NAMES = ["lake/a", "lake/b/1", "lake/b/2", "lake/c/1", "lake/d"]


@pytest.fixture
def filled(gcs_lake_settings: LakeSettings) -> LakeSettings:
    objects = open_objects(gcs_lake_settings)
    for name in NAMES:
        objects.create(name.removeprefix("lake/"), b"content")
    return gcs_lake_settings


def ask(lake: LakeSettings, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
    assert lake.endpoint is not None
    connection = http.client.HTTPConnection(urlsplit(lake.endpoint).netloc, timeout=10)
    connection.request(method, f"/{urlsplit(lake.uri).netloc}{path}", body, headers)
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def pages(lake: LakeSettings, **query: str) -> list[list[str]]:
    """Every page's names and common prefixes."""
    listed = []
    while True:
        _, content = ask(lake, "GET", "?" + urlencode({"list-type": "2", **query}))
        root = ElementTree.fromstring(content)  # noqa: S314 - our own proxy wrote it
        listed.append(
            [found.text or "" for path in ("Contents/Key", "CommonPrefixes/Prefix") for found in root.findall(path)]
        )
        token = root.findtext("NextContinuationToken")
        assert (token is not None) == (root.findtext("IsTruncated") == "true")
        if token is None:
            return listed
        query["continuation-token"] = token


def test_a_listing_is_in_order_and_goes_on_where_its_page_ended(filled: LakeSettings) -> None:
    assert pages(filled, **{"prefix": "lake/", "max-keys": "2"}) == [NAMES[:2], NAMES[2:4], NAMES[4:]]


def test_a_delimiter_folds_what_lies_deeper_into_one_entry(filled: LakeSettings) -> None:
    assert pages(filled, **{"prefix": "lake/", "delimiter": "/", "max-keys": "2"}) == [
        ["lake/a", "lake/b/"],
        ["lake/d", "lake/c/"],
    ]


def test_a_listing_starts_after_the_name_that_is_given(filled: LakeSettings) -> None:
    assert pages(filled, **{"prefix": "lake/", "start-after": "lake/b/1"}) == [["lake/b/2", "lake/c/1", "lake/d"]]


def test_a_put_under_a_precondition_is_refused_where_there_is_an_object(filled: LakeSettings) -> None:
    precondition = {"x-goog-if-generation-match": "0"}
    assert ask(filled, "PUT", "/lake%2Fnew", b"first", **precondition)[0] == 200
    assert ask(filled, "PUT", "/lake%2Fnew", b"second", **precondition)[0] == 412
    assert ask(filled, "GET", "/lake%2Fnew") == (200, b"first")

"""`tidemark_watermark`, the small distribution: the answers of the whole product, from one object."""

import json
from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import RefreshError, TransportError

import tidemark_watermark as small
from tests.http_server import Quiet, serving
from tests.ingest.fakes import World
from tests.lake.test_notes import Memory, state, writer
from tests.quality.test_gate import live, looks
from tests.watermark.builders import at
from tidemark.pipeline import version
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import DamagedNote, NewerFormat
from tidemark.pipeline.lake.log.notes import NAME, WATERMARK
from tidemark.pipeline.quality.gate import Watermark
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark_watermark.__main__ import main

FIRST, SECOND = "2026-11-21T05-20Z", "2026-11-21T05-21Z"


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between looks, which take no time."""
    slept, now = list[float](), [0.0]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    # Its own clock alone: threads of other tests may be asleep.
    monkeypatch.setattr(small, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: now[0]))
    return slept


def said_by(whole: Watermark | small.Watermark) -> list[object]:
    """What both distributions say of the same lake."""
    asked = (FIRST, SECOND, at(0), at(60), at(90), at(1000))
    return [whole.event_time, whole.reason, *(whole.is_closed(window) for window in asked)]


def content(seconds: float | None = 30) -> dict[str, object]:
    memory = Memory()
    writer(memory).tell(state(7, seconds, 40))
    return memory.said()


@pytest.fixture(params=["disk", pytest.param("gcs", marks=pytest.mark.gcs)])
def lake(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LakeSettings | None:
    """A lake in a bucket; None stands for a folder."""
    if request.param == "disk":
        return None
    settings: LakeSettings = request.getfixturevalue("gcs_lake_settings")
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", settings.endpoint or "")
    return settings


def test_it_gives_the_answers_of_the_whole_product(tmp_path: Path, lake: LakeSettings | None) -> None:
    world = World(tmp_path, lake=lake)
    look, place = looks(world), world.lake_settings.uri
    assert said_by(small.read_watermark(place)) == said_by(look())
    answers = list[list[object]]()
    for _ in range(4):
        live(world, 30)
        answers.append(said_by(look()))
        assert (
            said_by(small.read_watermark(f"{place}/"))
            == said_by(small.read_watermark(f"{place}/{NAME}"))
            == answers[-1]
        )
    assert answers[0][2:] != answers[-1][2:], "a window has closed in between"
    for wrong in ("2026-11-21T05-20", "2026-11-21", "x", "2026-11-21T5-20Z"):
        for one in (look(), small.read_watermark(place)):
            with pytest.raises(ValueError, match=r"2026-11-21"):
                one.is_closed(wrong)


WRONG = (("watermark", "soon"), ("decided_at", None), ("decided_at", "2026-11-21T05:20:00"), ("window_seconds", "5m"))


def damaged_objects() -> Iterator[bytes]:
    facts = content()
    whole = [facts | {key: value} for key, value in WRONG]
    whole.append({key: value for key, value in facts.items() if key != "watermark"})
    yield from (b"", b"[]", b"\xff\xfe", json.dumps(facts).encode()[:-9], *(json.dumps(one).encode() for one in whole))


@pytest.mark.parametrize("damaged", list(damaged_objects()))
def test_both_refuse_an_object_that_is_damaged(damaged: bytes) -> None:
    with pytest.raises(DamagedNote):
        WATERMARK.decode(damaged, NAME)
    with pytest.raises(small.NotReadable, match="is damaged"):
        small.parsed(damaged, NAME)


def test_both_refuse_an_object_in_a_newer_format_and_name_the_version() -> None:
    newer = json.dumps(content() | {version.WRITTEN_IN: "2", version.WRITTEN_BY: "9.1"}).encode()
    with pytest.raises(NewerFormat, match=r"tidemark 9\.1"):
        WATERMARK.decode(newer, NAME)
    with pytest.raises(small.NotReadable, match=r"tidemark 9\.1 in format 2"):
        small.parsed(newer, NAME)
    assert small.FORMAT == version.FORMAT


def test_a_window_can_be_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str], no_pauses: list[float]) -> None:
    lake, there = tmp_path / "lake", tmp_path / "lake" / NAME
    assert main([str(lake)]) == 0
    assert main([str(lake), "--wait-for", FIRST, "--timeout", "11.5s500ms"]) == 1
    assert f"there is no {there}" in capsys.readouterr().err
    assert no_pauses == [5, 5, 2]
    lake.mkdir()
    there.write_text(json.dumps(content(299)))
    assert main([f"file:{lake}", "--wait-for", FIRST, "--timeout", "0"]) == 1
    assert "has not reached 2026-11-21T05-20Z within 0s: ADVANCED" in capsys.readouterr().err
    there.write_text(json.dumps(content(300)))
    assert main([str(lake), "--wait-for", FIRST, "--json", "--timeout=3600000ms1d1d1d1d1d"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["watermark"], facts["reason"], facts["lake"]) == (iso(at(300)), "ADVANCED", str(lake))


@pytest.mark.parametrize(
    "option",
    [
        "--wait-for=9999-12-31T23:59:59-14:00",
        "--wait-for=0001-01-01T00:00+14:00",
        f"--timeout={'999999d' * 1001}",
        "--timeout=36501d",
    ],
)
def test_the_command_refuses_what_python_lacks(option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([str(tmp_path), f"--wait-for={FIRST}", "--timeout=0s", option])
    assert f"argument {option.partition('=')[0]}: " in capsys.readouterr().err


@pytest.mark.parametrize("address", ["s3://bucket/lake", Path("gs://bucket/lake"), "gs://"], ids=str)
def test_an_address_in_another_storage_is_refused(address: str | Path) -> None:
    with pytest.raises(ValueError, match="names no lake; write gs://"):
        small.place_of(address)


def no_tokens() -> None:
    raise TransportError("no token")


class Faulty(Quiet):
    """Answers with the statuses that are left, then with an object."""

    statuses: ClassVar[list[int]] = []

    def do_GET(self) -> None:  # noqa: N802 (the name that the server calls)
        self.reply(json.dumps(content(300)).encode(), status=self.statuses.pop(0) if self.statuses else 200)


class Expired(AnonymousCredentials):
    def before_request(self, *_: object) -> None:
        raise RefreshError("invalid_grant")


def test_a_process_that_met_an_expired_login_finds_the_new_one(monkeypatch: pytest.MonkeyPatch) -> None:
    logins = iter([Expired(), AnonymousCredentials()])
    monkeypatch.setattr("google.auth.default", lambda scopes: (next(logins), scopes))
    monkeypatch.setattr(small, "_credentials", cache(small._credentials.__wrapped__))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    with serving(Faulty) as address:
        monkeypatch.setattr(small, "SERVICE", address)
        with pytest.raises(small.NotReadable, match="run `gcloud auth application-default login`"):
            small.read_watermark("gs://bucket/lake")
        assert small.read_watermark("gs://bucket/lake").is_closed(FIRST)


def test_failures_are_asked_again_and_refusals_not(monkeypatch: pytest.MonkeyPatch, no_pauses: list[float]) -> None:
    with serving(Faulty) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address.removeprefix("http://"))
        Faulty.statuses = [503, 429, 404]
        assert small.wait_for("gs://bucket/lake", FIRST, timedelta(minutes=1)).is_closed(FIRST)
        assert no_pauses == [5, 5, 5]
        for status, words in ((403, r"roles/storage\.objectViewer on gs://bucket"), (400, "answered 400")):
            Faulty.statuses = [status]
            with pytest.raises(small.NotReadable, match=words):
                small.wait_for("gs://bucket/lake", FIRST, timedelta(minutes=1))
    with pytest.raises(small.Unreachable, match="no answer"):
        small.wait_for("gs://bucket/lake", FIRST, timedelta(seconds=7))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST")
    monkeypatch.setattr(small, "_authorized", no_tokens)
    with pytest.raises(small.Unreachable, match="no token; check the network"):
        small.read_watermark("gs://bucket/lake")

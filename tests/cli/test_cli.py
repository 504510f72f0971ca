"""The `tidemark` command as a person and a script use it: the emulator, and a lake that ticks have built."""

import json
import os
import sys
import uuid
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from tests.cli.command import Said, said_by_the_program, said_here
from tests.dagster.house import Ticking
from tests.lake.builders import put, version_of
from tests.quick import with_policy
from tidemark.local.services.ownership import Ownership
from tidemark.local.services.processes import Noted, noted_file
from tidemark.pipeline.cli.app import run_command
from tidemark.pipeline.cli.output import columns, grid, print_rows
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.owner import NAME
from tidemark.pipeline.machine import process_of
from tidemark.pipeline.settings import Settings, load_settings

ROOT = Path(__file__).resolve().parent.parent.parent
CLOCK = SystemClock()

CONFIG = """\
pubsub.project = "{project}"
pubsub.emulator_host = "{emulator}"
message.fields.temperature = "number"
message.fields.status = "text"
windows.length = "1m"
watermark.band = "1s"
watermark.idle_timeout = "1s"
lake.uri = "file:lake"
dagster.storage = "state/dagster"
"""


@dataclass(frozen=True, slots=True)
class Place:
    """A folder with settings in it, and the command run with them."""

    folder: Path

    @property
    def settings(self) -> Settings:
        return load_settings(self.folder / "tidemark.toml")

    def tidemark(self, *arguments: str, **variables: str) -> Said:
        """What the command says, run in this process."""
        return said_here(ROOT, self._arguments(arguments), self._variables(variables))

    def program(self, *arguments: str, **variables: str) -> Said:
        """What the program says that a person starts."""
        return said_by_the_program(ROOT, self._arguments(arguments), self._variables(variables))

    def _arguments(self, arguments: tuple[str, ...]) -> tuple[str, ...]:
        return ("--config", str(self.folder / "tidemark.toml"), *arguments)

    @staticmethod
    def _variables(chosen: dict[str, str]) -> dict[str, str]:
        known = {name: value for name, value in os.environ.items() if not name.startswith("TIDEMARK_")}
        known.pop("PUBSUB_EMULATOR_HOST", None)
        return {**known, "COLUMNS": "200", "NO_COLOR": "1", **chosen}

    def lake(self) -> Lake:
        return Lake(self.settings.lake, self.settings.message.kinds, CLOCK)


def place_in(folder: Path, emulator: str) -> Place:
    (folder / "tidemark.toml").write_text(CONFIG.format(project=f"cli-{uuid.uuid4().hex[:8]}", emulator=emulator))
    return Place(folder)


@pytest.fixture
def empty(tmp_path: Path, emulator_host: str) -> Place:
    """Settings, and nothing else."""
    return place_in(tmp_path, emulator_host)


@dataclass(frozen=True, slots=True)
class Built:
    """A lake after some ticks: what was published, and the first window, which is computed."""

    place: Place
    published: dict[str, Any]
    truth: list[dict[str, Any]]
    first: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, emulator_host: str) -> Built:
    place = place_in(tmp_path_factory.mktemp("built"), emulator_host)
    assert place.tidemark("provision").code == 0
    options = ["--streams", "5", "--since", "3m", "--for", "0s", "--jitter", "1s", "--duplicates", "0"]
    truth = place.folder / "truth.parquet"
    said = place.tidemark("publish", *options, "--broken", "0.1", "--truth", str(truth), "--json")
    assert said.code == 0, said.err
    with dg.DagsterInstance.ephemeral() as instance:
        Ticking(with_policy(place.settings, max_idle_lag=timedelta(0)), instance).land_and_close()
    rows = pq.read_table(truth).to_pylist()
    windowing = place.settings.windowing
    beats = [row for row in rows if row["kind"] == "heartbeat"]
    window = windowing.containing(min(row["event_time"] for row in beats))
    columns = ("stream_id", "event_time", "temperature", "status", "message_id")
    inside = [{name: row[name] for name in columns} for row in beats if row["event_time"] < window.end]
    put(place.lake().diffs(), "by-hand", {window.key: inside}, version_of(place.lake().heartbeats()) or 0)
    return Built(place, json.loads(said.out), rows, window.key)


def test_housekeeping_tells_each_chore_and_a_dry_run_changes_nothing(built: Built) -> None:
    before = {path: path.stat().st_mtime_ns for path in built.place.folder.rglob("*") if path.is_file()}
    would = json.loads(built.place.tidemark("housekeep", "--dry-run", "--json").out)
    assert before == {path: path.stat().st_mtime_ns for path in built.place.folder.rglob("*") if path.is_file()}
    assert would["dry_run"] is True
    assert {chore["name"] for chore in would["chores"]} >= {"retention", "packing", "compaction", "orphans"}
    said = built.place.tidemark("housekeep")
    assert said.code == 0, said.out + said.err
    assert len(said.out.splitlines()) == len(would["chores"])


def test_provisioning_creates_tracking_before_base_and_finds_it_all_the_second_time(empty: Place) -> None:
    first = json.loads(empty.tidemark("provision", "--json").out)
    pubsub = empty.settings.pubsub
    assert first["created"] == [pubsub.topic_path, pubsub.tracking_path, pubsub.base_path]
    assert (first["found"], first["differences"]) == ([], [])
    again = empty.tidemark("provision", "--json")
    assert again.code == 0
    second = json.loads(again.out)
    assert (second["created"], second["differences"]) == ([], [])
    assert second["found"] == first["created"]
    assert pubsub.base_path in empty.tidemark("provision").out


def test_status_tells_where_everything_stands_and_on_one_screen_what_a_person_asks_first(built: Built) -> None:
    facts = json.loads(built.place.tidemark("status", "--json").out)
    windowing = built.place.settings.windowing
    watermark = datetime.fromisoformat(facts["watermark"])
    times = [row["event_time"] for row in built.truth if row["kind"] == "heartbeat"]
    assert facts["reason"] == "IDLE_ADVANCED"
    assert facts["landed_rows"] == built.published["heartbeats"]
    assert datetime.fromisoformat(facts["landed_through"]) == max(times)
    assert facts["quarantined"] == built.published["broken"]
    assert (facts["windows_computed"], facts["first_window"], facts["last_window"]) == (1, built.first, built.first)
    closed = list(windowing.between(windowing.containing(min(times)).start, watermark))
    assert facts["windows_waiting"] == len(closed) - 1
    assert facts["rows_computed"] == sum(time < windowing.named(built.first).end for time in times)
    assert (facts["late"], facts["missed"], facts["windows_stale"], facts["lost_at_least"]) == (0, 0, 0, 0)
    assert facts["stale_windows"] == []

    said = built.place.tidemark("status", COLUMNS="80").out.splitlines()
    assert len(said) <= 24
    groups = ["watermark", "lost", "late", "failing", "waiting", "stored", "to do"]
    assert [line[:10].strip() for line in said[1:] if line[:10].strip()] == groups
    (waiting,) = [line for line in said if line.startswith("waiting")]
    assert waiting.split()[1:4] == [str(facts["windows_waiting"]), "closed", "windows"]
    assert "`tidemark quarantine`" in "".join(said)


def test_commands_neither_heed_nor_touch_the_lakes_owner(built: Built) -> None:
    Ownership(built.place.settings, CLOCK, say=print).state()
    note = built.place.folder / "lake" / NAME
    stated = note.read_bytes()
    for command in ("status", "explain", "watermark", "tune", "housekeep", "streams"):
        assert built.place.tidemark(command, TIDEMARK_PUBSUB__TOPIC="another").code == 0
    assert note.read_bytes() == stated


def test_diffs_are_those_of_a_window_by_its_key_or_a_time_in_it_or_the_newest_of_a_stream(built: Built) -> None:
    def rows(*options: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in built.place.tidemark("diffs", *options, "--json").out.splitlines()]

    found = rows("--window", built.first, "--limit", "1000")
    window = built.place.settings.windowing.named(built.first)
    wanted = [row for row in built.truth if row["kind"] == "heartbeat" and row["event_time"] < window.end]
    assert Counter(row["message_id"] for row in found) == Counter(row["message_id"] for row in wanted)
    assert [row["event_time"] for row in found] == sorted(row["event_time"] for row in found)
    assert rows("--window", iso(window.start + timedelta(seconds=17)), "--limit", "1000") == found
    stream = wanted[0]["stream_id"]
    of_stream = rows("--stream", stream)
    assert {row["stream_id"] for row in of_stream} == {stream}
    assert rows("--stream", stream, "--limit", "1") == of_stream[-1:]
    assert "newest window" not in built.place.tidemark("diffs", "--stream", "").out
    table = built.place.tidemark("diffs", "--stream", stream, "--limit", "1")
    assert f"1 of {counted(len(of_stream), 'row')};" in table.out
    assert of_stream[-1]["window"] in table.out, "its key is never cut"


def test_a_deleted_current_folder_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert (run_command(["status"]), "the current folder was deleted" in capsys.readouterr().err) == (1, True)


def test_the_help_of_a_command_fills_its_lines(empty: Place) -> None:
    said = empty.tidemark("watermark", "--help", COLUMNS="200").out
    assert "--wait-for also takes a window's key, and then waits for the window's end. --computed also waits" in said


def test_ctrl_c_during_the_imports_ends_the_command_without_a_word(empty: Place) -> None:
    (empty.folder / "typer.py").write_text("import os; os.kill(os.getpid(), 2); raise SystemExit(1)")
    said = empty.program("status", PYTHONPATH=os.pathsep.join([str(empty.folder), *sys.path]))
    assert said == Said("", "", 130)


def test_a_table_too_wide_leaves_out_columns_and_cuts_no_time_or_count(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**{f"column_{number}": f"{number:024}" for number in range(100)}, "window": "key"}]
    print_rows(rows, "1 row", whole="window", as_json=False)
    header, row, said = capsys.readouterr().out.splitlines()
    assert (len(header.split()), row.split()) == (6, [*(f"{number:024}" for number in range(5)), "key"])
    assert said == "1 row; left out for lack of width: 95 columns from column_5 on"
    Console(width=32).print(columns("window", right=["streams", "missing beats"], rows=[["2026-12-01T00-10Z", 30, 1]]))
    assert capsys.readouterr().out.splitlines()[-1].split() == ["2026-12-01T00-10Z", "30", "1"]
    named = columns("stream", right=["messages", "at the pin"], rows=[["x" * 90, 1234567, 12]], gap=2, folds=True)
    Console(width=80).print(named)
    assert capsys.readouterr().out.splitlines()[1].split()[1:] == ["1,234,567", "12"]
    Console(width=80).print(grid(3, [("note", "was " * 30, "→ is")]))
    assert Counter(capsys.readouterr().out.split()) == {"note": 1, "was": 30, "→": 1, "is": 1}
    monkeypatch.setattr("tidemark.pipeline.cli.output.FILE_WIDTH", 40)
    print_rows([{"stream_id": "x" * 30, "gap": 1, "window": "2026-12-01T00-10Z"}], "", whole="window")
    assert capsys.readouterr().out.splitlines()[1].split()[1:] == ["2026-12-01T00-10Z"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--since", "1h"], "it only works with --corrections"),
        (["--since", "99999d"], "longer than 36500d"),
        (["--window", "2026-13-21T05-22Z"], "is not a window key"),
        (["--window", "noon"], "noon is neither a window's key nor a time"),
        (["--window", "2026-11-21T05:22:10"], "has no time zone"),
    ],
)
def test_diffs_of_an_unknown_window_or_stream_are_refused(built: Built, arguments: list[str], said: str) -> None:
    refused = built.place.tidemark("diffs", *arguments)
    assert refused.code == 2
    assert said in " ".join(refused.err.replace("│", " ").split())


def test_on_an_empty_lake_each_command_says_what_is_not_there_yet(empty: Place) -> None:
    facts = json.loads(empty.tidemark("status", "--json").out)
    assert (facts["watermark"], facts["reason"], facts["landed_rows"], facts["windows_computed"]) == (None, None, 0, 0)
    assert facts["pipeline"] == "tidemark", "Terraform's alert looks for it"
    assert "start the pipeline (`tidemark up`); if it runs" in empty.tidemark("status").out
    (state := empty.settings.dagster.state_folder).mkdir()
    noted_file(state).write(Noted(process_of(os.getppid())))
    assert "to do      `tidemark up --status` names" in empty.tidemark("status").out
    for arguments, wanted in (
        (["explain"], "no decision has been made"),
        (["diffs", "--stream", "stream-00001"], "no window has been computed"),
    ):
        said = empty.tidemark(*arguments)
        assert said.code == 1
        (line,) = said.err.splitlines()
        assert line.startswith("tidemark: ")
        assert wanted in line


def init(folder: Path, *arguments: str) -> Place:
    said = said_here(ROOT, ("init", str(folder), *arguments), {})
    assert (said.code, said.err) == (0, "")
    return Place(folder)


def test_init_writes_the_ports_the_beginning_of_event_time_and_the_topic_that_are_named(tmp_path: Path) -> None:
    settings = init(tmp_path / "a", "--ports", "34000", "--first", "2026-11-01T07:35+02:00").settings
    assert (settings.pubsub.emulator_host, settings.spark.remote) == ("127.0.0.1:34000", "sc://localhost:34001")
    assert (settings.dagster.web_port, settings.dagster.code_port) == (34002, 34003)
    assert settings.metrics.address == ("127.0.0.1", 34004)
    assert settings.windows.first == datetime(2026, 11, 1, 5, 35, tzinfo=UTC)
    served = init(tmp_path / "b", "--topic", "projects/acme-prod/topics/beats").settings.pubsub
    assert (served.emulator_host, served.topic_path) == (None, "projects/acme-prod/topics/beats")
    assert served.base_path == "projects/acme-prod/subscriptions/beats-base"
    assert served.tracking_path == "projects/acme-prod/subscriptions/beats-tracking"
    emulated = init(tmp_path / "c", "--topic", "beats").settings.pubsub
    assert (emulated.emulator_host, emulated.topic_path) == ("127.0.0.1:8085", "projects/tidemark-local/topics/beats")
    (tmp_path / "file").touch()
    assert "cannot be written" in said_here(ROOT, ("init", str(tmp_path / "file")), {}).err


@pytest.mark.parametrize(
    "wrong",
    [
        ("--ports", "65500"),
        ("--topic", "1st"),
        ("--topic", "projects/p/subscriptions/s"),
        ("--topic", 'a"\nb = "c'),
        ("--first", "tomorrow"),
        ("--first", "2026-11-01T00:01Z"),
        ("--first", "2026-11-01T00:00"),
    ],
)
def test_init_refuses_what_would_be_no_setting_and_writes_nothing(tmp_path: Path, wrong: tuple[str, str]) -> None:
    assert said_here(ROOT, ("init", str(tmp_path / "a"), *wrong), {}).code == 2
    assert not (tmp_path / "a").exists()


def test_publishing_warns_of_a_compared_field_that_no_message_has_and_of_nothing_that_is_due(empty: Place) -> None:
    assert empty.tidemark("provision", http_proxy="http://127.0.0.1:9", NO_PROXY="example.com").code == 0
    options = ("--streams", "1", "--for", "1ms", "--broken", "0", "--truth", str(empty.folder / "truth.parquet"))
    said = empty.tidemark("publish", *options, TIDEMARK_MESSAGE__FIELDS='{"pressure": "number"}')
    assert (said.code, "warning no message of the shape json has a value for pressure" in said.err) == (0, True)
    assert "warning no message was due in 0.001s: each stream publishes every 30s; name a longer --for" in said.err

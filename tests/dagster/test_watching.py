"""What surrounds a tick: the note of its failure, runs that count once; and runs that fail, as status and explain tell
them."""

import json
import os
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.cli.command import said_here
from tests.dagster.house import PUBSUB, SOMEBODY_ELSES, ModelWorld, Ticking, settings_of
from tests.dagster.test_diffs_asset import WINDOWS, Materializing
from tests.dagster.test_sensors import checks
from tests.official_emulator import free_port
from tests.pubsub.builders import raising
from tidemark.assets.definitions import build_definitions
from tidemark.assets.sensors import by_runs
from tidemark.assets.sensors.by_runs import EndedRuns
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.contract.payloads.schemas import SCHEMA_ENCODING, SCHEMA_NAME, SCHEMA_REVISION
from tidemark.pipeline.errors import PubSubUnreachable
from tidemark.pipeline.observe.recorder import EndedRun, Recorder
from tidemark.pipeline.orchestrator.names import WINDOWS as WINDOWS_TAG
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import SparkSettings


@pytest.fixture
def said(tmp_path: Path) -> Callable[..., str]:
    """What a command says in the folder."""

    def say(*arguments: str) -> str:
        done = said_here(tmp_path, arguments, {"PATH": os.environ["PATH"]})
        assert done.code == 0, done.err
        return " ".join(done.out.split())

    return say


def with_settings(ticking: Ticking, folder: Path) -> None:
    """What a command reads there of the lake."""
    (folder / "tidemark.toml").write_text(f'[lake]\nuri = "{ticking.settings.lake.uri}"\n[windows]\nlength = "1m"\n')


def test_a_sensor_whose_ticks_fail_has_a_note_until_one_succeeds(
    ticking: Ticking, world: ModelWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: Callable[..., str]
) -> None:
    moments = []
    with_settings(ticking, tmp_path)
    gone = PubSubUnreachable("no answer; password=hunter2\nand more")
    ticking.land()
    with monkeypatch.context() as broken:
        broken.setattr("tidemark.assets.sensors.ticks.land", raising(gone))
        for _ in range(3):
            with pytest.raises(Exception, match="no answer"):
                ticking.land()
            moments.append(world.clock.now())
            world.clock.advance(timedelta(seconds=10))
        (note,) = ticking.lake().failed_ticks().newest()
        assert (note.sensor, note.failures, note.since) == ("landing", 3, moments[0])
        assert note.last == moments[2]
        assert note.reason == "PubSubUnreachable: no answer; password=…"
        ticking.track()
        facts = json.loads(said("status", "--json"))
        assert (facts["ticks_failed"], facts["ticks_failed_reason"]) == ({"landing": 3}, note.reason)
        assert json.loads(said("explain", "--json"))["ticks_failing"] == [note.sentence()]
        for command in ("explain", "status"):
            assert "ticks of the sensor landing failed 3 times" in said(command)
    ticking.restart()  # a new process does not know of the note
    ticking.land()
    assert ticking.lake().failed_ticks().newest() == []
    assert "ticks_failed" not in json.loads(said("status", "--json"))


def test_a_wait_for_a_schema_is_shown(instance: dg.DagsterInstance, tmp_path: Path, said: Callable[..., str]) -> None:
    """Its messages name a schema that does not exist: base waits for half a minute, and tracking for twice as long."""
    world = ModelWorld(PUBSUB)
    with served(world.model) as address:
        asked = PUBSUB.model_copy(update={"emulator_host": address})
        message = MessageSettings(payload="avro", event_time="payload:at", stream_id="payload:device")
        settings = settings_of(asked, tmp_path).model_copy(update={"message": message})
        ticking = Ticking(settings, instance, world.clock, world)
        named = {SCHEMA_NAME: "projects/p/schemas/beats", SCHEMA_REVISION: "1a2b3c4d", SCHEMA_ENCODING: "BINARY"}
        world.publish(asked.topic_path, [{"data": b"beat", "attributes": named}])
        began = world.clock.now()
        for _ in range(2):
            world.clock.advance(timedelta(seconds=10))
            assert ticking.land().asset_events == []
            ticking.track()
        why = (
            "1 message cannot be judged yet, and will be redelivered: its schema "
            "'projects/p/schemas/beats@1a2b3c4d' does not exist"
        )
        since = iso(began + timedelta(seconds=10))
        notes = ticking.lake().failed_ticks().newest()
        assert [note.sentence() for note in notes] == [
            f"the sensor {sensor} has been waiting since {since}: {why}" for sensor in ("landing", "tracking")
        ]
        with_settings(ticking, tmp_path)
        facts = json.loads(said("status", "--json"))
        assert (facts["ticks_waiting"], "ticks_failed" in facts) == ({"landing": why, "tracking": why}, False)
        assert json.loads(said("explain", "--json"))["ticks_failing"] == [note.sentence() for note in notes]
        for command in ("explain", "status"):
            assert f"the sensor landing has been waiting since {since}" in said(command)
        assert why in (checks(ticking.tick("staleness"))["quarantine_share"].description or "")
        world.clock.advance(timedelta(seconds=10))
        ticking.track()
        assert [note.sensor for note in ticking.lake().failed_ticks().newest()] == ["landing", "tracking"]
        world.clock.advance(timedelta(seconds=10))
        assert [event.asset_key.to_user_string() for event in ticking.land().asset_events] == ["quarantine"]
        ticking.track()
        assert [note.sensor for note in ticking.lake().failed_ticks().newest()] == ["tracking"]
        world.clock.advance(timedelta(seconds=30))
        ticking.track()
    assert ticking.lake().failed_ticks().newest() == []
    assert ticking.lake().quarantine().reasons().waiting == {"UNREADABLE_PAYLOAD": 1}


class Told(Recorder):
    """Keeps what it is told of runs."""

    def __init__(self) -> None:
        self.ended: list[EndedRun] = []
        self.under_way: Mapping[str, datetime] = {}

    def runs(self, look) -> None:  # type: ignore[no-untyped-def]
        ended, self.under_way = look()
        self.ended += ended


def test_ended_runs_count_once_and_those_of_others_never(ticking: Ticking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_runs, "RUNS_AT_ONCE", 1)
    ticking.run("compute_windows", dg.DagsterRunStatus.FAILURE)  # before the process began
    looked, told = EndedRuns(), Told()
    looked.tell(ticking.runs, told, SystemClock().now())
    assert told.ended == []
    for tags in SOMEBODY_ELSES:
        ticking.run("compute_windows", dg.DagsterRunStatus.FAILURE, tags)
    ticking.run("compute_windows", dg.DagsterRunStatus.FAILURE)
    ticking.run("ingest", dg.DagsterRunStatus.CANCELED)
    going_on = ticking.run("repair", dg.DagsterRunStatus.STARTED)
    for _ in range(3):
        looked.tell(ticking.runs, told, SystemClock().now())
    assert sorted((run.job, run.result) for run in told.ended) == [
        ("compute_windows", "failure"),
        ("ingest", "canceled"),
    ]
    assert list(told.under_way) == ["repair"]
    looked.since += timedelta(hours=1)  # the clock was set back since
    ticking.instance.report_run_failed(going_on)
    looked.tell(ticking.runs, told, SystemClock().now())
    assert [(run.job, run.result) for run in told.ended[2:]] == [("repair", "failure")]
    assert told.under_way == {}


SETTINGS = """\
[windows]
length = "1m"

[message.fields]
temperature = "number"
status = "text"

[lake]
uri = "file:{lake}"
"""


def test_commands_tell_failing_runs(tmp_path: Path, said: Callable[..., str], instance: dg.DagsterInstance) -> None:
    remote = f"sc://localhost:{free_port()}"
    lake = Materializing(tmp_path, SparkSettings(remote=remote), instance)
    (tmp_path / "tidemark.toml").write_text(SETTINGS.format(lake=lake.folder))

    assert json.loads(said("status", "--json"))["runs_failed"] == 0
    assert json.loads(said("explain", "--json"))["runs_failing"] is None
    for _ in range(2):
        assert not lake.run(WINDOWS[0], WINDOWS[-1]).success
    facts = json.loads(said("status", "--json"))
    assert facts["runs_failed"] == 2
    assert (facts["runs_failed_first_window"], facts["runs_failed_last_window"]) == (WINDOWS[0], WINDOWS[-1])
    assert facts["runs_failed_reason"].startswith(f"SparkUnreachable: no Spark Connect server answers at {remote}")
    sentence = f"runs over windows from {WINDOWS[0]} on failed 2 times since {facts['runs_failed_since']}"
    assert sentence in said("status")
    assert sentence in said("explain")
    assert sentence in json.loads(said("explain", "--json"))["runs_failing"]


def test_status_tells_failing_tables(tmp_path: Path, said: Callable[..., str], instance: dg.DagsterInstance) -> None:
    lake = Materializing(tmp_path, SparkSettings(remote=f"sc://localhost:{free_port()}"), instance)
    sections = '\n[tables.fine]\nfile = "fine.sql"\n\n[tables.gone]\nfile = "gone.sql"\n'
    (tmp_path / "tidemark.toml").write_text(SETTINGS.format(lake=lake.folder) + sections)
    for name in ("fine", "gone"):
        (tmp_path / f"{name}.sql").write_text("SELECT window, count(*) AS n FROM {heartbeats} GROUP BY window")
    of_files = load_settings(tmp_path / "tidemark.toml").tables

    def told() -> dict[str, dict[str, object]]:
        return {table["name"]: table for table in json.loads(said("status", "--all", "--json"))["tables"]}

    assert json.loads(said("status", "--json"))["tables_failing"] == {}
    for table in told().values():
        assert (table["failed_runs"], table["wrong"]) == (0, None)
    (tmp_path / "gone.sql").unlink()
    loaded = build_definitions(lake.settings.model_copy(update={"tables": {"fine": of_files["fine"]}}))
    for _ in range(2):
        tags = {WINDOWS_TAG: f"{WINDOWS[0]}..{WINDOWS[-1]}"}
        job = loaded.resolve_job_def("compute_fine")
        assert not job.execute_in_process(instance=instance, tags=tags, raise_on_error=False).success
    facts = json.loads(said("status", "--json"))
    assert (facts["runs_failed"], facts["tables_failing"]) == (0, {"fine": 2})
    (failure,) = facts["table_failures"]
    assert (failure["table"], failure["failures"]) == ("fine", 2)
    assert failure["reason"].startswith("SparkUnreachable: no Spark Connect server answers at ")
    sentence = f"runs of the table fine failed 2 times since {failure['since']}, last at {failure['last']}: Spark"
    assert sentence in said("status")
    found = told()
    assert (found["fine"]["failed_runs"], found["fine"]["failed_last"]) == (2, failure["last"])
    assert (found["fine"]["failed_reason"], found["fine"]["wrong"]) == (failure["reason"], None)
    assert f"tables.gone: {of_files['gone'].file} cannot be read" in str(found["gone"]["wrong"])
    assert (found["gone"]["version"], found["gone"]["due"]) == (None, None)
    assert "warning tables.gone: " in said("status", "--all")

"""What ticks asked of Pub/Sub in the last day, as `tidemark status` says it from the log."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tidemark.pipeline.cli.app import app
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord
from tidemark.pipeline.watermark.usage import Usage

OLD = Usage(seconds=10, snapshots=1000, snapshot_bytes=10**9, pulls=1000, ticks=1)
USED = Usage(10.0, 4, 250_000, 30, tracked=3333, tracked_bytes=600_000, landed=3300, landed_bytes=590_000, ticks=1)


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A lake whose log notes two ticks of now and one of two days ago."""
    clock = SystemClock()
    log = Lake(LakeSettings(uri=f"file:{tmp_path / 'lake'}"), {}, clock).tracking_log()
    now = clock.now()
    log.begin(Beginning(now))
    for at, usage in ((now - timedelta(days=2), OLD), (now, USED), (now, USED)):
        decision = Decision(at=at, watermark=None, reason=Reason.HELD_NO_DATA)
        log.append(DecisionRecord(decision, None, None, Policy(), usage))
    settings = tmp_path / "tidemark.toml"
    settings.write_text('[lake]\nuri = "file:lake"\n[pubsub]\nsnapshot_budget = 5000000\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(settings))
    return settings


@pytest.mark.usefixtures("configured")
def test_status_shows_the_snapshots_and_pulls_of_the_last_day_and_the_budget() -> None:
    facts = json.loads(CliRunner().invoke(app, ["status", "--json"]).output)
    assert (facts["snapshots_last_day"], facts["snapshot_bytes_last_day"]) == (8, 500_000)
    assert (facts["pulls_last_day"], facts["ticks_last_day"]) == (60, 2)
    assert (facts["tracked_last_day"], facts["landed_bytes_last_day"]) == (6666, 1_180_000)
    assert facts["snapshot_budget"] == 5_000_000
    said = " ".join(CliRunner().invoke(app, ["status", "--all"]).output.split())
    assert "snapshots last day 8 snapshot bytes last day 500,000 pulls last day 60" in said


@pytest.mark.parametrize(("written", "budget"), [("", 10 << 30), ('emulator_host = "127.0.0.1:1"', None)])
def test_without_a_setting_the_service_has_a_budget_and_an_emulator_none(
    configured: Path, written: str, budget: int | None
) -> None:
    configured.write_text(f'[lake]\nuri = "file:lake"\n[pubsub]\n{written}\n')
    facts = json.loads(CliRunner().invoke(app, ["status", "--json"]).output)
    assert facts["snapshot_budget"] == budget

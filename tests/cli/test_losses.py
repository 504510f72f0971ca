"""What is late, missed and lost, as `tidemark status` says it: on a lake where something of each has happened."""

import io
import json
import shutil
from dataclasses import replace
from datetime import timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from tests.clock import ManualClock
from tests.lake.builders import Beat, append_beats, append_rejected, columns_of, lake_in
from tests.quality.staleness_history import LOOKBACK, WINDOWING, WINDOWS, History, new_history
from tests.watermark.builders import at, effective, published, seconds
from tidemark.pipeline.cli.app import app
from tidemark.pipeline.cli.look.status import show_screen
from tidemark.pipeline.clock import SystemClock, iso
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.log.tracking_log import entry_name
from tidemark.pipeline.lake.tables.delta_log import metadata_of_round
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_rows
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.observe.facts import (
    ingest_facts,
    late_facts,
    log_facts,
    loss_details,
    lost_facts,
    passed_over_facts,
    read_losses,
    read_report,
    read_status,
    window_facts,
)
from tidemark.pipeline.quality import staleness
from tidemark.pipeline.quality.failing import TicksNow
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import IngestSettings, PubSubSettings, WindowSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord, Snapshot
from tidemark.pipeline.watermark.usage import Usage

SETTINGS = Settings(windows=WindowSettings(length=WINDOWING.length, lookback=LOOKBACK))


@pytest.fixture
def history(tmp_path: Path) -> History:
    """Two heartbeats landed in time, one late and missed; one more was tracked and never landed."""
    history = new_history(tmp_path)
    history.land([Beat("a", 10), Beat("a", 70)])
    history.compute(0, 1)
    history.land([Beat("b", 75, late=True)])
    log = history.lake.tracking_log()
    log.begin(Beginning(at(0)))
    log.append(Snapshot(published([(11, 10), (71, 70), (76, 75), (80, 79)])))
    base = effective(600)
    decision = Decision(at=at(600), watermark=at(590), reason=Reason.ADVANCED, base=base, tracking=effective(600))
    log.append(DecisionRecord(decision, base.newest, base.newest, Policy()))
    return history


def status(history: History, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `tidemark status --json` prints."""
    settings = history.folder / "tidemark.toml"
    settings.write_text('[lake]\nuri = "file:lake"\n[windows]\nlength = "1m"\nlookback = "90s"\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(settings))
    done = CliRunner().invoke(app, ["status", "--json"])
    assert done.exit_code == 0, done.output
    return json.loads(done.output)


def test_status_counts_what_is_late_missed_and_lost_and_names_where(history: History) -> None:
    losses = read_losses(history.lake, SETTINGS, at(601))
    facts, details = {**lost_facts(losses), **late_facts(losses.late)}, loss_details(losses)
    assert (facts["late"], facts["late_copies"]) == (1, 0)
    assert (facts["missed"], facts["windows_stale"], facts["first_stale_window"]) == (1, 1, WINDOWS[1].key)
    assert (facts["lost_at_least"], facts["lost_at_most"]) == (1, 1)
    assert details["late_by_window"] == details["missed_by_window"] == {WINDOWS[1].key: 1}
    assert details["late_by_stream"] == details["missed_by_stream"] == {"b": 1}
    assert details["stale_windows"] == [{"window": WINDOWS[1].key, "missed": 1, "missed_before": 0, "computed_from": 1}]
    assert details["lost_by_minute"] == [{"minute": at(60), "tracked": 3, "landed": 2, "at_least": 1, "at_most": 1}]


def test_a_loss_that_redeliveries_may_explain_is_said_to_be_uncertain_and_asks_for_no_search(history: History) -> None:
    found = read_status(history.lake, SETTINGS, at(601))
    for least, said in ((1, "lost       1 message since "), (0, ": none for certain, because")):
        found.groups["lost"]["lost_at_least"] = least
        show_screen(found, SETTINGS, Console(file=(told := io.StringIO()), width=200), is_up=lambda: True)
        assert said in told.getvalue()
        for advice in ("find out who else", "whether an emulator restarted empty"):
            assert (advice in told.getvalue()) == (least == 1)
    found.groups["lost"] |= {"untracked": 6, "lost_at_most": 0}
    found.groups["late"] |= {"passed_over": 2, "max_lag": seconds(60)}
    show_screen(found, SETTINGS, Console(file=(told := io.StringIO()), width=200), is_up=lambda: True)
    assert "lost       tracking never received 6" in told.getvalue()
    assert "who else reads tracking" in told.getvalue()
    assert "2 published in the last hour lag more than max_lag (1m)" in told.getvalue()


WHICH = [("automatic", False), ("within 1h", False), ("within 1m", True), ("never", True)]


@pytest.mark.parametrize(("recomputed", "is_told"), WHICH)
def test_repair_is_advised_for_stale_windows_that_are_not_recomputed_automatically(
    history: History, recomputed: str, *, is_told: bool
) -> None:
    windows = WindowSettings(length=WINDOWING.length, lookback=LOOKBACK, recompute_missed=recomputed)
    settings = Settings(windows=windows)
    found = read_status(history.lake, settings, at(601))
    show_screen(found, settings, Console(file=(told := io.StringIO()), width=200), is_up=lambda: True)
    assert "1 missed by 1 computed window" in told.getvalue()
    assert ("`tidemark repair` recomputes the stale windows" in told.getvalue()) == is_told


def test_a_decision_that_was_made_while_status_read_counts_from_its_own_time(history: History) -> None:
    state, ticks = history.lake.tracking_log().catch_up(), TicksNow(())
    assert log_facts(state, ticks, Settings(), at(595))["watermark"]["behind_now"] == seconds(10)


def test_what_max_lag_passes_over_is_counted_among_the_landed_rows(history: History) -> None:
    state = history.lake.tracking_log().catch_up()
    record = replace(state.record, policy=Policy(max_lag=seconds(0.5)))
    facts = passed_over_facts(replace(state, record=record), history.lake, at(601))
    assert (facts["passed_over"], facts["passed_over_by_stream"]) == (3, {"a": 2, "b": 1})


def test_a_window_has_a_figure_at_the_very_moment_of_its_end(history: History) -> None:
    losses, report = read_losses(history.lake, SETTINGS, at(601)), read_report(history.lake)
    windows = window_facts(report, [], losses, WINDOWING, at(660))
    assert [one["seconds_after_end"] for one in islice(windows, 2)] == [-60.0, 0.0]


def test_status_tells_the_newest_round_where_readers_on_spark_pull_all_the_time(history: History) -> None:
    continuous, heartbeats = IngestSettings(mode="continuous"), history.lake.heartbeats()
    number = history.lake.tracking_log().catch_up().number
    assert ingest_facts(history.lake, IngestSettings(), number, at(600)) == {}
    assert ingest_facts(history.lake, continuous, number, at(600)) == {"last_round": None}
    new = NewFiles(heartbeats, ManualClock(at(600)))
    new.add(new.write(heartbeat_rows(columns_of([Beat("a", 1.0)]), {})), metadata_of_round("run", 7))
    facts = ingest_facts(history.lake, continuous, number, SystemClock().now())
    assert (facts["last_round"], facts["last_round_run"]) == (7, "run")
    assert abs(facts["last_round_ago"].total_seconds()) < 300


def test_status_tells_how_reading_goes_where_it_is_behind(history: History) -> None:
    log = history.lake.tracking_log()
    for second, base, tracking in ((700, 100, 640), (800, 300, 600)):
        sides = effective(base, observed=second), effective(tracking, observed=second)
        decision = Decision(at=at(second), watermark=at(590), reason=Reason.ADVANCED, base=sides[0], tracking=sides[1])
        log.append(DecisionRecord(decision, *(one.newest for one in sides), Policy(), usage=Usage(landed=5_000)))
    facts = ingest_facts(history.lake, IngestSettings(), log.catch_up().number, at(801))
    assert facts["reading"] == (
        "catching up: 50 messages/s, about 8m20s left; the oldest message of base is 8m20s old; "
        "falling behind: 0 messages/s are read, and the oldest message of tracking is 3m20s old"
    )


def test_a_long_check_is_given_up_and_says_what_is_left(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(ManualClock):
        def monotonic(self) -> float:
            self.advance(seconds(1))
            return super().monotonic()

    monkeypatch.setattr(staleness, "COMMITS_AT_ONCE", 1)
    for number in range(9):
        history.land([Beat("a", 200 + number)])
    facts = lost_facts(read_losses(history.lake, SETTINGS, at(601), Slow(at(0))))
    assert facts["missed_not_checked"] == "7 commits, manifests or hours are unchecked"
    assert "missed_not_checked" not in lost_facts(read_losses(history.lake, SETTINGS, at(601)))


def test_status_names_fields_that_are_null_in_recent_rows(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    now = SystemClock().now()
    monkeypatch.setenv("TIDEMARK_MESSAGE__FIELDS", '{"temperature": "number", "status": "text"}')
    assert "null_fields" not in status(history, monkeypatch), "nothing landed within an hour"
    lake = lake_in(history.folder, {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT})
    columns = columns_of([Beat("a", 300, values={"status": "ok"})], ["temperature", "status"])
    append_beats(lake.heartbeats(), {**columns, "landed_at": [now]})
    facts = status(history, monkeypatch)
    assert (facts["null_fields"], facts["null_fields_since"]) == ({"temperature": 1}, iso(now))
    assert "null in the last hour: temperature" in CliRunner().invoke(app, ["status"]).output


def test_a_lost_end_of_the_log_is_why_no_decision_is_made(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "no running process" in status(history, monkeypatch)["standing_still"]
    lost = history.lake.tracking_log().append(Snapshot(published([(90, 89)]))).number
    (history.folder / "lake" / entry_name(lost)).unlink()
    assert f"run `tidemark repair --forget {lost}`" in status(history, monkeypatch)["standing_still"]


@pytest.mark.parametrize("attach", [False, True])
def test_a_lost_log_is_not_said_to_be_a_pipeline_without_a_decision_yet(history: History, *, attach: bool) -> None:
    pubsub = PubSubSettings(attach=attach, base_subscription="theirs")
    shutil.rmtree(history.folder / "lake" / "tracking")
    lake = lake_in(history.folder)
    with pytest.raises(CorruptObject, match="the tracking log is empty, but it once had entry 2"):
        read_status(lake, Settings(pubsub=pubsub, windows=WindowSettings(length=seconds(60))), at(601))


def test_a_damaged_file_is_named_with_its_hour_and_the_rest(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    now, log = SystemClock().now(), history.lake.tracking_log()
    since = (now - at(0)).total_seconds()
    log.append(Snapshot(published([(since - 60, 7200)])))
    policy = Policy(max_lag=seconds(60))
    for second in (since - 3600, since):  # the first keeps `status` from reading every day since `at(0)`
        base = effective(second)
        decision = Decision(at=at(second), watermark=at(590), reason=Reason.ADVANCED, base=base, tracking=base)
        log.append(DecisionRecord(decision, base.newest, base.newest, policy))
    append_beats(
        history.lake.heartbeats(), {**columns_of([Beat("c", 7200, late=True)]), "publish_time": [now - seconds(60)]}
    )
    (file,) = (history.folder / "lake/heartbeats/event_hour=2026-11-21T07Z").glob("*.parquet")
    file.write_bytes(file.read_bytes()[:-40])
    facts = status(history, monkeypatch)
    for what in ("lost", "passed_over"):
        assert f"messages of 2026-11-21T07Z are {what.replace('_', ' ')}:" in facts[f"{what}_unknown"]
        assert f"event_hour=2026-11-21T07Z/{file.name}" in facts[f"{what}_unknown"]
    assert (facts["landed_rows"], facts["missed"], facts["lost_at_least"]) == (4, 1, 0)
    append_rejected(history.lake.quarantine(), {})
    (rejected,) = (history.folder / "lake/quarantine").rglob("part-*.parquet")
    rejected.write_bytes(rejected.read_bytes()[:-40])
    facts = status(history, monkeypatch)
    assert (facts["landed_rows"], facts["quarantined"]) == (4, {})
    assert f"{rejected.name} is damaged" in facts["quarantined_unknown"]
    told = CliRunner().invoke(app, ["status"]).output
    assert "rejected messages are not counted" in told
    assert "`tidemark repair` names the damaged files" in told
    file.unlink()
    assert "messages of 2026-11-21T07Z are late: 1 damaged file," in status(history, monkeypatch)["late_unknown"]
    said = CliRunner().invoke(app, ["status"]).output
    assert "nothing" not in said[said.index("lost  ") : said.index("failing  ")], "what is unknown is not nothing"


def test_status_shows_a_days_snapshots_and_pulls_and_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, now = lake_in(tmp_path).tracking_log(), SystemClock().now()
    log.begin(Beginning(now))
    old = Usage(seconds=10, snapshots=1000, snapshot_bytes=10**9, pulls=1000, ticks=1)
    used = Usage(10.0, 4, 250_000, 30, tracked=3333, tracked_bytes=600_000, landed=3300, landed_bytes=590_000, ticks=1)
    for moment, usage in ((now - timedelta(days=2), old), (now, used), (now, used)):
        decision = Decision(at=moment, watermark=None, reason=Reason.HELD_NO_DATA)
        log.append(DecisionRecord(decision, None, None, Policy(), usage))
    (tmp_path / "tidemark.toml").write_text('[lake]\nuri = "file:lake"\n[pubsub]\nsnapshot_budget = 5000000\n')
    monkeypatch.setenv("TIDEMARK_CONFIG", str(tmp_path / "tidemark.toml"))
    facts = json.loads(CliRunner().invoke(app, ["status", "--json"]).output)
    assert (facts["snapshots_last_day"], facts["snapshot_bytes_last_day"]) == (8, 500_000)
    assert (facts["pulls_last_day"], facts["ticks_last_day"]) == (60, 2)
    assert (facts["tracked_last_day"], facts["landed_bytes_last_day"]) == (6666, 1_180_000)
    assert facts["snapshot_budget"] == 5_000_000
    said = " ".join(CliRunner().invoke(app, ["status", "--all"]).output.split())
    assert "snapshots last day 8 snapshot bytes last day 500,000 pulls last day 60" in said

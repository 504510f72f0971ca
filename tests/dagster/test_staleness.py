"""The sensor that looks after late, missed and lost: what it reports, and exactly which windows it asks for again; and
what somebody changes in the subscriptions after provisioning, once."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus, InstigatorType, SensorInstigatorData
from google.pubsub_v1 import SubscriberClient, types

from tests.clock import ManualClock
from tests.dagster.house import Ticking, keys, settings_of
from tests.dagster.test_sensors import checks
from tests.doctor.world import World, served_world
from tests.lake.builders import Beat
from tests.pubsub.builders import raising
from tests.quality.staleness_history import LENGTH, LOOKBACK, WINDOWS, History, new_history
from tests.watermark.builders import at, published, seconds
from tidemark.assets.partitions import stretch_texts
from tidemark.assets.scheduler.requests import OLDER, OlderWindows, next_request
from tidemark.assets.sensors.staleness import AUDIT_EVERY, STEPS_AT_ONCE
from tidemark.pipeline import settings_sections as sections
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import CorruptObject, LakeFull, PermissionMissing, PubSubUnreachable
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.quality import staleness as quality_staleness
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord, Snapshot
from tidemark.pipeline.windows import Spans


@pytest.fixture
def history(tmp_path: Path) -> History:
    """A lake with ten computed windows of a minute, and a watermark that has passed them."""
    history = new_history(tmp_path)
    history.land([Beat("a", number * 60.0) for number in range(10)])
    for number in range(10):
        history.compute(number, number)
    log = history.lake.tracking_log()
    log.begin(Beginning(at(0)))
    log.append(DecisionRecord(Decision(at=at(980), watermark=at(630), reason=Reason.ADVANCED), None, None, Policy()))
    return history


def ticking_on(
    history: History,
    instance: dg.DagsterInstance,
    recompute_missed: str = "automatic",
    clock: ManualClock | None = None,
    max_lag: timedelta | None = None,
    length: timedelta = LENGTH,
    first: datetime = WINDOWS[0].start,
    **checks: Any,
) -> Ticking:
    settings = Settings(
        pubsub=sections.PubSubSettings(emulator_host="127.0.0.1:1"),  # nobody answers, at once
        windows=sections.WindowSettings(
            length=length, first=first, lookback=LOOKBACK, recompute_missed=recompute_missed
        ),
        watermark=sections.WatermarkSettings(tick=seconds(10), max_lag=max_lag),
        lake=sections.LakeSettings(uri=f"file:{history.folder / 'lake'}"),
        checks=sections.CheckSettings(**checks),
    )
    return Ticking(settings, instance, clock or ManualClock(at(1000)))


def asked(ticking: Ticking) -> list[str] | None:
    """The stretches of windows that the scheduler asks for after a tick."""
    ticking.tick("staleness")
    request = next_request(ticking.runs, ticking.lake_resource, ticking.lake_resource.watermark(), ticking.clock.now())
    return stretch_texts(request.windows) or None


def stretch(first: int, last: int) -> str:
    return f"{WINDOWS[first].key}..{WINDOWS[last].key}"


def evaluations(ticking: Ticking) -> dict[str, dg.AssetCheckEvaluation]:
    """Return the evaluations that a tick reports, by the name of the check."""
    return checks(ticking.tick("staleness"))


def test_while_nothing_is_missed_it_says_so_once_and_what_dagster_never_got_is_told_again(
    history: History, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking = ticking_on(history, instance)
    first = ticking.tick("staleness")
    assert keys(first) == ["heartbeats", "heartbeats", "heartbeats", "quarantine", "watermark"]
    assert all(isinstance(event, dg.AssetCheckEvaluation) and event.passed for event in first.asset_events)
    assert "0 heartbeats missed in 0 windows" in (first.skip_message or "")
    history.land([Beat("a", 640)])
    second = ticking.tick("staleness")
    assert (second.asset_events, second.run_requests) == ([], [])
    history.land([Beat("b", 45)])
    with monkeypatch.context() as patched:
        patched.setattr(instance, "report_runless_asset_event", None)  # its storage does not answer
        with pytest.raises(TypeError):
            ticking.tick("staleness")
    assert evaluations(ticking)["missed"].metadata["missed"].value == 1


def test_pipelines_of_one_name_in_two_code_locations_are_told(history: History, tmp_path: Path) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as instance:
        ticking, said = ticking_on(history, instance), list[bool]()
        for location in ("one", "two", "three"):  # each has ticked, and the last one long ago
            said.append("its own dagster.name" in (ticking.tick("staleness").skip_message or ""))
            origin = RemoteRepositoryOrigin(
                GrpcServerCodeLocationOrigin("127.0.0.1", 1, None, location), "__repository__"
            )
            ticked = SensorInstigatorData(last_tick_start_timestamp=at(0 if location == "three" else 990).timestamp())
            name, running = RemoteInstigatorOrigin(origin, "staleness"), InstigatorStatus.RUNNING
            instance.add_instigator_state(InstigatorState(name, InstigatorType.SENSOR, running, ticked))
        assert said == [False, False, True]
        assert "the sensor staleness ticks in the code locations one, two: give" in (
            ticking.tick("staleness").skip_message or ""
        )


def test_exactly_the_stale_windows_are_requested_together(history: History, instance: dg.DagsterInstance) -> None:
    clock = ManualClock(at(1000))
    history.land([Beat("b", 45), Beat("b", 350, late=True)])
    ticking = ticking_on(history, instance, clock=clock)
    assert asked(ticking) == [stretch(0, 2), stretch(5, 7)]
    assert ticking.lake_resource.kept.get(OLDER, OlderWindows).counted[1] == clock.now()
    assert "stale windows to recompute: 6" in (ticking.tick("staleness").skip_message or "")
    run = ticking.run(COMPUTE_WINDOWS, dg.DagsterRunStatus.STARTED)
    assert asked(ticking) is None
    history.compute(5, 7)
    instance.report_run_canceled(run)
    assert asked(ticking) == [stretch(0, 2)]
    history.compute(0, 2)
    for _ in range(3):
        clock.advance(seconds(120))
        assert asked(ticking) is None


@pytest.mark.parametrize(
    ("policy", "first", "request_of"),
    [
        ("never", 0, None),
        ("within 4m", 0, [stretch(7, 9)]),
        ("automatic", 0, [stretch(0, 1), stretch(7, 9)]),
        ("automatic", 2, [stretch(7, 9)]),
    ],
)
def test_the_policy_and_windows_first_say_which_stale_windows_are_computed_again(
    history: History, instance: dg.DagsterInstance, policy: str, first: int, request_of: list[str] | None
) -> None:
    history.land([Beat("b", 1), Beat("b", 479)])
    assert asked(ticking_on(history, instance, policy, first=WINDOWS[first].start)) == request_of


def test_old_watermarks_fail(history: History, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock(at(1000))
    ticking = ticking_on(history, instance, clock=clock)
    assert evaluations(ticking)["watermark_age"].passed
    clock.advance(seconds(61))
    with monkeypatch.context() as patched:  # as it is when nobody can decide
        patched.setattr(quality_staleness.Staleness, "keep", raising(LakeFull("no space is left")))
        said = evaluations(ticking)["watermark_age"]
    assert (said.passed, said.metadata["age_seconds"].value) == (False, 431)
    assert (said.description or "").startswith("no decision for 1m21s, since 2026-11-21T05:36:20Z")
    with monkeypatch.context() as patched:  # as if one of heartbeat_diffs were
        patched.setattr(quality_staleness.Staleness, "check", raising(CorruptObject("a file is damaged")))
        older = ticking.lake_resource.kept.get(OLDER, OlderWindows)
        older.counted = Spans(range(5)), clock.now()
        assert evaluations(ticking)["missed"].description == "missed heartbeats cannot be counted: a file is damaged"
        assert not older.counted[0], "an earlier count is not trusted"
    clock.advance(seconds(539))
    checked = evaluations(ticking_on(history, instance, clock=clock, length=2 * LENGTH))
    assert "the settings ask for windows of 2m" in (checked["missed"].description or "")
    said = checked["watermark_age"]
    assert (said.passed, said.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert said.metadata["age_seconds"].value > said.metadata["max_age_seconds"].value == 600


def test_the_checks_fail_beyond_what_the_settings_put_up_with(history: History, instance: dg.DagsterInstance) -> None:
    history.land([Beat("b", 45), Beat("b", 350, late=True)])
    strict = evaluations(ticking_on(history, instance, "never"))
    assert {name for name, event in strict.items() if not event.passed} == {"missed", "late"}
    assert {"lost_outside", "quarantine_share", "watermark_age"} <= strict.keys()
    assert strict["missed"].severity is dg.AssetCheckSeverity.ERROR
    assert strict["missed"].metadata["missed"].value == 2
    assert strict["missed"].metadata["by_stream"].value == {"b": 2}
    assert strict["missed"].metadata["by_window"].value == {WINDOWS[0].key: 1, WINDOWS[5].key: 1}
    assert strict["late"].metadata["by_stream"].value == {"b": 1}
    patient = evaluations(ticking_on(history, instance, max_late_share=0.1))
    assert {name for name, event in patient.items() if not event.passed} == {"missed"}


def test_what_max_lag_passes_over_is_counted_with_its_streams(history: History, instance: dg.DagsterInstance) -> None:
    history.land([Beat("slow", 100, publish_time=161), Beat("slow", 200, publish_time=261), Beat("in time", 640)])
    history.lake.tracking_log().append(Snapshot(published([(161, 100), (261, 200), (641, 640)])))
    said = evaluations(ticking_on(history, instance, max_lag=seconds(50)))["passed_over"]
    assert (said.passed, said.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (said.metadata["passed_over"].value, said.metadata["rows"].value) == (2, 13)
    assert (said.metadata["tracked"].value, said.metadata["by_stream"].value) == (2, {"slow": 2})
    assert "lag more than 50s (max_lag)" in (said.description or "")
    assert evaluations(ticking_on(history, instance, max_lag=seconds(50), max_late_share=0.2))["passed_over"].passed
    assert "passed_over" not in evaluations(ticking_on(history, instance))


def test_a_damaged_file_is_named_and_the_other_checks_go_on(history: History, instance: dg.DagsterInstance) -> None:
    ticking = ticking_on(history, instance)
    ticking.tick("staleness")
    history.land([Beat("late", 350, late=True)])
    hour = history.folder / "lake/heartbeats/event_hour=2026-11-21T05Z"
    newest = max(hour.glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:-40])
    said = evaluations(ticking)
    for check in ("missed", "late"):
        assert not said[check].passed
        assert f"messages of 2026-11-21T05Z are {check}:" in (said[check].description or "")
        assert f"event_hour=2026-11-21T05Z/{newest.name}" in (said[check].description or "")


def test_long_logs_take_ticks(history: History, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quality_staleness, "COMMITS_AT_ONCE", 2)
    history.land([Beat("b", 45)])
    for number in range(3 + 2 * STEPS_AT_ONCE * 2):
        history.land([Beat("a", 640 + number)])
    ticking = ticking_on(history, instance)
    first, second = ticking.tick("staleness"), ticking.tick("staleness")
    assert keys(first) == ["heartbeats", "heartbeats", "quarantine", "watermark"], "what is missed is not known yet"
    assert f"{4 + STEPS_AT_ONCE * 2} commits, manifests or hours of the tables are left" in (first.skip_message or "")
    assert "4 commits, manifests" in (second.skip_message or "")
    assert (second.asset_events, second.run_requests) == ([], [])
    assert asked(ticking) == [stretch(0, 2)]
    for number in range(3 + STEPS_AT_ONCE * 2):
        history.land([Beat("a", 700 + number)])
    assert asked(ticking) is None, "a long count is under way again"


def test_the_checks_can_be_run_by_hand(history: History, instance: dg.DagsterInstance) -> None:
    history.land([Beat("b", 45)])
    found = ticking_on(history, instance).definitions
    of_heartbeats, others = ("missed", "late", "lost_outside"), {"quarantine_share": "quarantine"}
    assets = {**dict.fromkeys(of_heartbeats, "heartbeats"), **others, "watermark_age": "watermark"}
    wanted = [dg.AssetCheckKey(dg.AssetKey(asset), name) for name, asset in assets.items()]
    job = dg.define_asset_job("by_hand", selection=dg.AssetSelection.checks(*wanted))
    definitions = dg.Definitions(asset_checks=found.asset_checks, resources=found.resources, jobs=[job])
    result = definitions.resolve_job_def("by_hand").execute_in_process(instance=instance)
    said = {one.check_name: one.passed for one in result.get_asset_check_evaluations()}
    assert said == {name: name != "missed" for name in assets}


ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@pytest.fixture
def world() -> Iterator[World]:
    with served_world() as world:
        world.provision()
        yield world


@pytest.fixture
def ticking(world: World, tmp_path: Path) -> Iterator[Ticking]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ticking(settings_of(world.pubsub, tmp_path), instance, ManualClock(SystemClock().now()))


@pytest.fixture
def subscriber(world: World) -> Iterator[SubscriberClient]:
    with subscriber_client(*world.pubsub.server) as client:
        yield client


def said(ticking: Ticking) -> list[tuple[bool, dg.AssetCheckSeverity, str]]:
    """Return what a tick reports of the check `subscriptions`. Then advance the clock to the next audit."""
    event = evaluations(ticking).get("subscriptions")
    ticking.clock.advance(AUDIT_EVERY)
    return [] if event is None else [(event.passed, event.severity, event.description or "")]


def test_each_change_is_news_and_so_is_its_end(ticking: Ticking, world: World, subscriber: SubscriberClient) -> None:
    said(ticking)
    ticking.clock.advance(-timedelta(hours=6))  # type: ignore[attr-defined]
    expiring = types.Subscription(
        name=world.pubsub.base_path, expiration_policy={"ttl": timedelta(days=2)}, push_config={}
    )
    subscriber.update_subscription(subscription=expiring, update_mask={"paths": ["expiration_policy"]})
    ((passed, severity, sentence),) = said(ticking)
    assert (passed, severity) == (False, WARN)
    assert "Pub/Sub will DELETE the base subscription" in sentence
    pushing = types.Subscription(name=world.pubsub.base_path, push_config={"push_endpoint": "https://push.example"})
    subscriber.update_subscription(subscription=pushing, update_mask={"paths": ["push_config"]})
    ((passed, severity, sentence),) = said(ticking)
    assert (passed, severity) == (False, ERROR)
    assert "pushes to https://push.example" in sentence
    assert said(ticking) == []
    repaired = types.Subscription(name=world.pubsub.base_path, push_config={}, expiration_policy={})
    subscriber.update_subscription(subscription=repaired, update_mask={"paths": ["push_config", "expiration_policy"]})
    assert [passed for passed, _, _ in said(ticking)] == [True]


def test_a_missing_permission_warns_and_no_answer_is_silence(ticking: Ticking, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Subscriptions, "drift", raising(PubSubUnreachable("nobody answers")))
    assert said(ticking) == []
    monkeypatch.setattr(Subscriptions, "drift", raising(PermissionMissing("grant pubsub.subscriptions.get on it")))
    ((passed, severity, sentence),) = said(ticking)
    assert (passed, severity) == (False, WARN)
    assert sentence == "changes to the subscriptions would go unnoticed: grant pubsub.subscriptions.get on it"

"""Each alert fires on the fault that is planted for it, and none fires in clean minutes: the real sensors on simulated
time, scraped at the real port, and judged by Prometheus' own promtool; and the dashboard's queries get an answer."""

import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.dagster.house import publish
from tests.observe.hour import MINUTE, SECOND, Hour, an_hour
from tests.observe.promtool import answers, check
from tidemark.assets.scheduler import runs as lost_runs
from tidemark.assets.sensors import staleness
from tidemark.pipeline.lake.store.objects import count_call
from tidemark.pipeline.orchestrator.names import INGEST, READS
from tidemark.pipeline.settings_sections import PubSubSettings
from tidemark.pipeline.watermark.usage import Usage

CLEAN_ALONE = 5
"""Minutes before a fault that is planted alone."""

QUIET: dict[int, dict[str, int]] = {minute: {} for minute in range(CLEAN_ALONE)}
"""No alert in the clean minutes before a fault that is planted alone."""

AUDIT_EVERY = 40 * MINUTE

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


def the_ingest_sensor_is_off(hour: Hour) -> None:
    hour.sensors.remove(INGEST)


def spark_is_gone(hour: Hour) -> None:
    hour.result = dg.DagsterRunStatus.FAILURE
    also(hour, lambda hour: hour.ticking.run("compute_windows", hour.result))


def also(hour: Hour, happens: Callable[[Hour], object]) -> None:
    """Let something more happen in each minute."""
    before = hour.each_minute

    def each_minute(hour: Hour) -> None:
        before(hour)
        happens(hour)

    hour.each_minute = each_minute


def garbage_is_published(hour: Hour) -> None:
    hour.broken = 2


def some_are_late(hour: Hour) -> None:
    also(hour, lambda hour: publish(hour.world, hour.ticking.settings, [("slow", hour.now - 3 * MINUTE)]))


def some_are_missed(hour: Hour) -> None:
    hour.computes_again = False
    publish(hour.world, hour.ticking.settings, [("slow", hour.now - 10 * MINUTE - 3 * SECOND)])


def somebody_else_acknowledges(hour: Hour) -> None:
    def each_minute(hour: Hour) -> None:
        model, base = hour.world.model, hour.ticking.settings.pubsub.base_path
        taken = model.pull(base, 1, hour.now)
        model.acknowledge(base, [one.ack_id for one in taken], hour.now)

    also(hour, each_minute)


def tracking_gets_slow(hour: Hour) -> None:
    """A pull brings one message, and a tick has a few small pulls: less than what is published."""
    hour.world.at_most[hour.ticking.settings.pubsub.tracking_path] = 1


def a_run_gets_nowhere(hour: Hour) -> None:
    run = hour.ticking.run(INGEST, dg.DagsterRunStatus.STARTED)
    hour.ticking.instance.add_run_tags(run.run_id, {READS: run.run_id})


def readings_get_dear(hour: Hour) -> None:
    pubsub = hour.ticking.resources["pubsub"]
    also(hour, lambda _: pubsub.spending().count(Usage(snapshots=1, snapshot_bytes=6000)))


def somebody_lists_the_bucket(hour: Hour) -> None:
    def each_minute(_: Hour) -> None:
        for _ in range(200):
            count_call("list")

    also(hour, each_minute)


Plant = Callable[[Hour], None]

IN_TURN: dict[str, tuple[Plant, int, int]] = {
    "TidemarkBucketCallsOverBudget": (somebody_lists_the_bucket, 20, 32),
    "TidemarkSnapshotsOverBudget": (readings_get_dear, 20, 30),
    "TidemarkMissed": (some_are_missed, 20, 35),
    "TidemarkLost": (somebody_else_acknowledges, 25, 40),
    "TidemarkQuarantineJumps": (garbage_is_published, 36, 39),
    "TidemarkLate": (some_are_late, 36, 41),
    "TidemarkRunsFail": (spark_is_gone, 36, 37),
    "TidemarkSensorSilent": (the_ingest_sensor_is_off, 46, 49),
}
"""For each alert its fault, the minute in which it is planted, and the one from which the alert fires. Each fault
stays. The clean minutes before the first are more than any rule waits. The sensor that reports runs is stopped last."""

ALONE: dict[str, tuple[Plant, int, dict[str, int]]] = {
    "TidemarkTrackingBacklogGrows": (tracking_gets_slow, 20, {"TidemarkWatermarkOld": 1}),
    "TidemarkBacklogOfBaseGrows": (
        a_run_gets_nowhere,
        20,
        {"TidemarkWatermarkOld": 1, "TidemarkTrackingBacklogGrows": 1},
    ),
}
"""The same for faults that hold the others up, with what else fires then."""

SAYS_NOTHING = "TidemarkSaysNothing"


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dagster notes what a run says by the machine's clock, which does not move here. Audits read the whole log, and
    are rarer."""
    monkeypatch.setattr(lost_runs, "SILENT_FOR", timedelta(days=1))
    monkeypatch.setattr(staleness, "AUDIT_EVERY", AUDIT_EVERY)


def test_no_alert_fires_on_a_clean_pipeline_and_then_each_on_its_fault_and_not_before(tmp_path: Path) -> None:
    expected = {
        minute: {alert: 1 for alert, (_, _, fires) in IN_TURN.items() if fires <= minute} for minute in range(50)
    }
    with an_hour(tmp_path, pubsub=PubSubSettings(snapshot_budget=5000)) as hour:
        for minute in expected:
            for plant, planted, _ in IN_TURN.values():
                if planted == minute:
                    plant(hour)
            hour.play(1)
        assert hour.value("tidemark_runs_total", job_name="compute_windows", result="success")
    check(tmp_path, hour.series, expected)


def test_a_pipeline_that_is_no_longer_scraped_is_told(tmp_path: Path) -> None:
    with an_hour(tmp_path) as hour:
        hour.play(CLEAN_ALONE)
    check(tmp_path, hour.series, {**QUIET, CLEAN_ALONE + 9: {SAYS_NOTHING: 1}})


@pytest.mark.parametrize("alert", ALONE)
def test_an_alert_fires_on_its_fault_and_not_before(alert: str, tmp_path: Path) -> None:
    plant, minutes, others = ALONE[alert]
    with an_hour(tmp_path) as hour:
        hour.play(CLEAN_ALONE)
        plant(hour)
        hour.play(minutes)
    check(tmp_path, hour.series, {**QUIET, CLEAN_ALONE + minutes - 1: {alert: 1, **others}})


DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tidemark.json"


def dashboard() -> Any:
    return json.loads(DASHBOARD.read_text())


def queries() -> Iterator[tuple[str, Any]]:
    """Each query with the name of its panel and its letter."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield f"{panel['title']} {target['refId']}", target


def asked(query: str) -> str:
    """The query as Grafana sends it for all pipelines, with an answer a minute."""
    return query.replace("$pipeline", ".*").replace("$__rate_interval", "5m")


def test_each_query_has_an_answer_where_nothing_fails(tmp_path: Path) -> None:
    pubsub = PubSubSettings(snapshot_budget=5000)
    with an_hour(tmp_path, pubsub=pubsub) as hour:
        hour.broken = 1
        hour.each_minute = lambda _: count_call("list")
        hour.play(11)
        hour.ticking.run(INGEST, dg.DagsterRunStatus.STARTED)
        hour.play(1)
    answers(tmp_path, hour.series, {name: asked(target["expr"]) for name, target in queries()}, minute=11)

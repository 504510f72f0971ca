"""The dashboard for Grafana asks for what tidemark tells, and gets an answer."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.observe.hour import an_hour
from tests.observe.promtool import answers
from tidemark.assets.scheduler import runs as lost_runs
from tidemark.pipeline.lake.store.objects import count_call
from tidemark.pipeline.orchestrator.names import INGEST
from tidemark.pipeline.settings_sections import PubSubSettings

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "tidemark.json"

pytestmark = pytest.mark.filterwarnings("ignore::dagster.BetaWarning")


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


def test_each_query_has_an_answer_where_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Dagster notes what a run says by the machine's clock, which does not move here.
    monkeypatch.setattr(lost_runs, "SILENT_FOR", timedelta(days=1))
    pubsub = PubSubSettings(snapshot_budget=5000)
    with an_hour(tmp_path, pubsub=pubsub) as hour:
        hour.broken = 1
        hour.each_minute = lambda _: count_call("list")
        hour.play(11)
        hour.ticking.run(INGEST, dg.DagsterRunStatus.STARTED)
        hour.play(1)
    answers(tmp_path, hour.series, {name: asked(target["expr"]) for name, target in queries()}, minute=11)

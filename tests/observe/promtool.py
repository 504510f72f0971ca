"""Prometheus' own evaluation of the alert rules, and of queries, over recorded series."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.observe import tools
from tests.observe.hour import Series
from tests.programs import ended

ALERTS = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
FIRING = 'ALERTS{alertstate="firing"}'


def promtool() -> str:
    """The program; the test is skipped without it."""
    found = tools.promtool()
    if found is None:
        pytest.skip("there is no promtool on this machine: `make promtool`, or install Prometheus")
    return str(found)


def rules() -> Mapping[str, Any]:
    """The alerts by name."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule for rule in group["rules"]}


def check(folder: Path, series: Series, expected: Mapping[int, Mapping[str, int]]) -> None:
    """Assert what `count by (alertname)` of the alerts that fire is after so many minutes, by Prometheus' own word."""
    query = f"count by (alertname) ({FIRING})"
    _run(folder, series, [_test(query, minute, "alertname", firing) for minute, firing in expected.items()])


def answers(folder: Path, series: Series, queries: Mapping[str, str], minute: int) -> None:
    """Assert that each query, by its name, has an answer at that minute, and not a NaN alone."""
    named = 'label_replace(count(({}) >= 0) > bool 0, "query", "{}", "", "")'
    tests = [_test(named.format(query, name), minute, "query", {name: 1}) for name, query in queries.items()]
    _run(folder, series, tests)


def _test(query: str, minute: int, label: str, values: Mapping[str, int]) -> dict[str, Any]:
    samples = [{"labels": f'{{{label}="{name}"}}', "value": value} for name, value in sorted(values.items())]
    return {"expr": query, "eval_time": f"{minute}m", "exp_samples": samples}


def _run(folder: Path, series: Series, tests: list[dict[str, Any]]) -> None:
    written = {
        "rule_files": [str(ALERTS)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": list(_written(series)), "promql_expr_test": tests}],
    }
    file = folder / "promtool_test.yaml"
    file.write_text(json.dumps(written))
    done = ended([promtool(), "test", "rules", file])
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


def _written(series: Series) -> Any:
    for (name, labels), values in series.items():
        text = ",".join(f'{label}="{value}"' for label, value in labels)
        yield {
            "series": f"{name}{{{text}}}",
            "values": " ".join("_" if value is None else repr(value) for value in values),
        }

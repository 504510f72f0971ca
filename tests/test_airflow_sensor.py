"""The example of a sensor for Airflow, without Airflow and beside a base class like Airflow's."""

import sys
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.ingest.fakes import World
from tests.quality.test_gate import live
from tests.watermark.builders import at

EXAMPLE = Path(__file__).parent.parent / "examples" / "airflow_sensor.py"


class Base:
    """As much of Airflow's BaseSensorOperator as the sensor relies on."""

    def __init__(self, *, task_id: str, mode: str = "poke") -> None:
        self.task_id, self.mode = task_id, mode


def example() -> ModuleType:
    spec = util.spec_from_file_location("airflow_sensor", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def as_airflow(monkeypatch: pytest.MonkeyPatch, *places: str) -> None:
    """Let these modules have a BaseSensorOperator, and no other of Airflow's."""
    for name in ("airflow", "airflow.sdk", "airflow.sensors", "airflow.sensors.base"):
        monkeypatch.setitem(sys.modules, name, None)
    for place in places:
        parts = place.split(".")
        for end in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:end]), ModuleType(".".join(parts[:end])))
        monkeypatch.setattr(sys.modules[place], "BaseSensorOperator", Base, raising=False)


@pytest.mark.parametrize("place", ["airflow.sdk", "airflow.sensors.base"], ids=["Airflow 3", "Airflow 2"])
def test_the_sensor_is_a_sensor_of_the_airflow_that_is_there(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    as_airflow(monkeypatch, place)
    sensor: Any = example().WatermarkSensor(task_id="complete", mode="reschedule", lake="gs://bucket/lake")
    assert isinstance(sensor, Base)
    assert (sensor.task_id, sensor.mode) == ("complete", "reschedule")
    assert {name: getattr(sensor, name) for name in sensor.template_fields} == {
        "lake": "gs://bucket/lake",
        "event_time": "{{ data_interval_end | ts }}",
    }


def test_a_poke_succeeds_once_the_watermark_reached_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_airflow(monkeypatch)
    world = World(tmp_path)
    sensor = example().WatermarkSensor(lake=world.lake_settings.uri, event_time=at(30).isoformat())
    assert not sensor.poke({})
    live(world)
    assert sensor.poke({})

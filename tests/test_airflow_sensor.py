"""The example of a sensor for Airflow, without Airflow."""

import sys
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest

from tests.ingest.fakes import World
from tests.quality.test_gate import live
from tests.watermark.builders import at

EXAMPLE = Path(__file__).parent.parent / "examples" / "airflow_sensor.py"


def example() -> ModuleType:
    spec = util.spec_from_file_location("airflow_sensor", EXAMPLE)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_poke_succeeds_once_the_watermark_reached_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("airflow", "airflow.sdk", "airflow.sensors", "airflow.sensors.base"):
        monkeypatch.setitem(sys.modules, name, None)
    world = World(tmp_path)
    sensor = example().WatermarkSensor(lake=world.lake_settings.uri, event_time=at(30).isoformat())
    assert not sensor.poke({})
    live(world)
    assert sensor.poke({})

"""The watermark as a function: what it refuses, and the lake that it reads. The command has tests of waiting."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.ingest.fakes import World
from tests.watermark.builders import START, at
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.quality.gate import Watermark, watermark_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import WindowSettings
from tidemark.pipeline.windows import Windowing
from tidemark.watermark import read_watermark

MINUTE = timedelta(minutes=1)
WINDOWING = Windowing(length=MINUTE, first=START)


def live(world: World, seconds: int = 60) -> None:
    """A heartbeat a second, a second old; then it lands and is tracked."""
    for _ in range(seconds):
        world.wait(1)
        world.topic.publish((world.clock.now() - at(0)).total_seconds() - 1)
    world.land()
    world.track()


def looks(world: World) -> Callable[[], Watermark]:
    """A process that looks at the watermark over and over."""
    settings = Settings(lake=world.lake_settings, windows=WindowSettings(length=MINUTE, first=START))
    return partial(watermark_of, OpenLake(settings.lake, {}, world.clock), settings)


@pytest.mark.parametrize("window", ["2026-11-21", "2026-11-21T05-20", "x", datetime(2026, 11, 21)])  # noqa: DTZ001
def test_what_is_no_window_of_the_pipeline_or_has_no_zone_is_refused(window: str | datetime) -> None:
    with pytest.raises(ValueError, match=r"^(?!time data).*2026-11-21"):
        Watermark("file:lake", at(60), None, WINDOWING).is_closed(window)


def test_the_public_function_reads_the_lake_that_a_settings_file_names(tmp_path: Path) -> None:
    world = World(tmp_path)
    live(world)
    (tmp_path / "tidemark.toml").write_text('[lake]\nuri = "file:lake"\n')
    found = read_watermark(tmp_path / "tidemark.toml")
    assert found.event_time == world.log.catch_up().watermark
    assert found.lake == f"file:{world.folder}"

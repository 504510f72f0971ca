"""The watermark as a function: what it says of a lake, and waiting for an event time with a clock that is moved."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.clock import ManualClock
from tests.ingest.fakes import World
from tests.watermark.builders import START, at
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.quality.gate import LOOK_EVERY_SECONDS, Watermark, wait_until, watermark_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import WindowSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
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


def looks(world: World, clock: ManualClock | None = None) -> Callable[[], Watermark]:
    """A process that looks at the watermark over and over."""
    settings = Settings(lake=world.lake_settings, windows=WindowSettings(length=MINUTE, first=START))
    return partial(watermark_of, OpenLake(settings.lake, {}, clock or world.clock), settings)


def standing(seconds: float | None) -> Watermark:
    event_time = None if seconds is None else at(seconds)
    return Watermark("file:lake", event_time, Decision(at(100), event_time, Reason.ADVANCED), WINDOWING)


def test_a_window_is_closed_once_the_watermark_has_reached_its_end() -> None:
    key = WINDOWING.containing(at(0)).key
    for seconds, is_closed in ((None, False), (59.999, False), (60, True), (61, True)):
        found = standing(seconds)
        assert found.is_closed(key) == found.is_closed(at(60)) == found.has_reached(at(60)) == is_closed


@pytest.mark.parametrize("window", ["2026-11-21", "2026-11-21T05-20", "x", datetime(2026, 11, 21)])  # noqa: DTZ001
def test_what_is_no_window_of_the_pipeline_or_has_no_zone_is_refused(window: str | datetime) -> None:
    with pytest.raises(ValueError, match=r"^(?!time data).*2026-11-21"):
        standing(60).is_closed(window)


def test_the_public_function_reads_the_lake_that_a_settings_file_names(tmp_path: Path) -> None:
    world = World(tmp_path)
    live(world)
    (tmp_path / "tidemark.toml").write_text('[lake]\nuri = "file:lake"\n')
    found = read_watermark(tmp_path / "tidemark.toml")
    assert found.event_time == world.log.catch_up().watermark
    assert found.lake == f"file:{world.folder}"


class Moved(ManualClock):
    """A clock by which sleeping lets something happen."""

    def __init__(self, start: datetime, happens: Callable[[], None] = lambda: None) -> None:
        super().__init__(start)
        self.slept = list[float]()
        self._happens = happens

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept.append(seconds)
        self._happens()


def test_waiting_returns_at_the_first_look_that_finds_the_event_time_reached(tmp_path: Path) -> None:
    world = World(tmp_path)
    clock = Moved(world.clock.now(), lambda: live(world))

    def waited(timeout: timedelta) -> Watermark:
        return wait_until(looks(world, clock), lambda now: now.has_reached(at(100)), timeout, clock)

    found = waited(10 * MINUTE)
    assert found.has_reached(at(100))
    assert clock.slept == [LOOK_EVERY_SECONDS] * 2
    assert waited(timedelta(0)) == found
    assert clock.slept == [LOOK_EVERY_SECONDS] * 2

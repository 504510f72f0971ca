"""The real sensors, tick by tick, on a real instance, a lake on disk, and the model or the emulator."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from tests.dagster.house import (
    PUBSUB,
    ModelWorld,
    Ticking,
    beats_between,
    keys,
    metadata_of,
    publish,
    settings_of,
    windows_of,
)
from tests.lake.builders import put
from tidemark.assets.scheduler import requests
from tidemark.pipeline.clock import EPOCH, Clock, SystemClock, iso
from tidemark.pipeline.errors import PubSubUnreachable
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Windowing

CLOCK = SystemClock()
MINUTE = timedelta(minutes=1)
WINDOWING = Windowing(MINUTE, EPOCH)
WINDOWS_OF_BACKLOG = 5


def backlog_start(clock: Clock) -> datetime:
    """The start of a window some minutes ago."""
    return clock.now().replace(second=0, microsecond=0, tzinfo=UTC) - (WINDOWS_OF_BACKLOG + 1) * MINUTE


def publish_backlog(world: ModelWorld, settings: Settings) -> list[str]:
    """Heartbeats in each of five windows that the clock has passed; the windows' keys."""
    start = backlog_start(world.clock)
    publish(world, settings, beats_between(start, start + WINDOWS_OF_BACKLOG * MINUTE))
    return [settings.windowing.containing(start + number * MINUTE).key for number in range(WINDOWS_OF_BACKLOG)]


def requested(data: SensorExecutionData) -> tuple[str, str]:
    """The first and the last window of a tick's only request."""
    windows = all_requested(data)
    return windows[0], windows[-1]


def all_requested(data: SensorExecutionData) -> list[str]:
    """The windows of a tick's only request."""
    (request,) = data.run_requests
    return windows_of(request, WINDOWING)


def note_as_computed(ticking: Ticking, window_keys: list[str]) -> None:
    """Have the lake hold the windows, with no rows."""
    put(ticking.lake().diffs(), f"by-hand-{window_keys[0]}", window_keys, now=CLOCK.now())


# What a tick reports


def test_each_tick_materializes_the_watermark_and_the_histogram_only_with_messages(
    ticking: Ticking, world: ModelWorld
) -> None:
    assert keys(ticking.track()) == ["watermark"]
    publish_backlog(world, ticking.settings)
    assert keys(ticking.track()) == ["tracking_histogram", "watermark"]
    ticking.land_and_close()
    evidence = metadata_of(ticking.track(), "watermark")
    watermark = ticking.watermark()
    assert watermark is not None
    assert evidence["watermark"] == evidence["watermark_epoch_seconds"] == watermark.timestamp()
    assert str(evidence["decision"]).startswith(f"IDLE_ADVANCED: watermark {iso(watermark)}")


def test_heartbeats_and_quarantine_are_materialized_only_when_something_landed_there(
    ticking: Ticking, world: ModelWorld
) -> None:
    assert keys(ticking.land()) == []
    start = backlog_start(ticking.clock)
    publish(world, ticking.settings, beats_between(start, start + MINUTE))
    landed = ticking.land()
    assert (keys(landed), metadata_of(landed, "heartbeats")["rows"]) == (["heartbeats"], 4)
    publish(world, ticking.settings, [], broken=[{"stream_id": "stream-0"}, {"event_time": iso(start)}])
    rejected = ticking.land()
    assert keys(rejected) == ["quarantine"]
    assert metadata_of(rejected, "quarantine") == {"rows": 2, "reason/NO_EVENT_TIME": 1, "reason/NO_STREAM_ID": 1}


def test_an_evaluation_waits_until_its_tick_is_due(ticking: Ticking, world: ModelWorld) -> None:
    began, tick = world.clock.now(), ticking.settings.watermark.tick
    ticking.track()
    assert world.clock.now() == began
    ticking.track()
    assert world.clock.now() == began + tick
    world.clock.advance(1.2 * tick)
    ticking.track()
    assert world.clock.now() == began + 2.2 * tick  # late, and the next one is not


# What a tick requests


def test_one_run_is_requested_over_exactly_the_closed_windows(ticking: Ticking, world: ModelWorld) -> None:
    windows = publish_backlog(world, ticking.settings)
    tick = ticking.land_and_close()
    first, last = requested(tick)
    watermark = ticking.watermark()
    assert watermark is not None
    assert first == windows[0]
    newest = ticking.settings.windowing.named(last)
    assert newest.end <= watermark < newest.end + MINUTE
    assert last >= windows[-1]
    assert tick.skip_message is None


def test_what_is_computed_is_not_requested_again_and_live_windows_with_a_gap_are_one_run(
    ticking: Ticking, world: ModelWorld
) -> None:
    windows = publish_backlog(world, ticking.settings)
    _, last = requested(ticking.land_and_close())
    note_as_computed(ticking, [windows[0]])
    note_as_computed(ticking, [windows[3]])
    assert all_requested(ticking.track())[:3] == [windows[1], windows[2], windows[4]]
    since = ticking.settings.windowing.named(windows[4])
    rest = ticking.settings.windowing.between(since.start, ticking.settings.windowing.named(last).end + 3 * MINUTE)
    note_as_computed(ticking, [window.key for window in rest])
    assert requested(ticking.track()) == (windows[1], windows[2])
    note_as_computed(ticking, windows[1:3])
    tick = ticking.track()
    assert not tick.run_requests
    assert "every closed window is computed" in (tick.skip_message or "")


def test_windows_whose_run_failed_rest_and_are_requested_again(ticking: Ticking, world: ModelWorld) -> None:
    publish_backlog(world, ticking.settings)
    tick = ticking.land_and_close()
    failed = all_requested(tick)
    ticking.instance.report_run_failed(ticking.launched(tick))
    again = [window for request in ticking.track().run_requests for window in windows_of(request, WINDOWING)]
    assert not {*again} & {*failed}, "they rest; a minute that has just ended is another window"
    world.clock.advance(timedelta(seconds=16))
    assert all_requested(ticking.track())[: len(failed)] == failed


# What is lost, missing or broken


def test_an_unreachable_pubsub_fails_the_tick_with_what_to_do(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    nobody = PUBSUB.model_copy(update={"emulator_host": "127.0.0.1:1"})
    ticking = Ticking(settings_of(nobody, tmp_path), instance)
    with pytest.raises(PubSubUnreachable, match=r"did not answer.*emulator.*ticks try again"):
        ticking.track()


def test_a_choice_that_fails_or_takes_long_is_said_and_fails_no_tick(
    ticking: Ticking, world: ModelWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_backlog(world, ticking.settings)
    assert ticking.land_and_close().run_requests
    table, away = tmp_path / "lake" / "heartbeats", tmp_path / "away"
    table.rename(away)
    table.write_text("a file where the table's folder should be")
    failed = ticking.track()
    assert keys(failed) == ["watermark"], "what was decided is reported"
    assert "no window is requested, because the choice failed: the lake" in (failed.skip_message or "")
    table.unlink()
    away.rename(table)

    may_end = Event()
    with monkeypatch.context() as patched:
        patched.setattr(requests, "CHOOSE_WITHIN_SECONDS", 0.01)
        patched.setattr(requests, "due_now", lambda *_: may_end.wait() and None)
        slow = ticking.track()
        assert keys(slow) == ["watermark"]
        assert "choosing takes longer than" in (slow.skip_message or "")
        assert "still under way" in (ticking.track().skip_message or "")
        may_end.set()
    world.clock.advance(MINUTE)
    assert ticking.track().run_requests

"""The real sensors, tick by tick, on a real instance, a lake on disk, and the model or the emulator."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from tests.dagster.house import (
    PUBSUB,
    SOMEBODY_ELSES,
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
from tidemark.assets.scheduler.requests import pause_of
from tidemark.pipeline.clock import EPOCH, Clock, SystemClock, iso
from tidemark.pipeline.errors import PubSubUnreachable
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, INGEST, REQUEUE, TICK
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
    nothing = ticking.land()
    assert (keys(nothing), nothing.skip_message) == ([], "nothing to land")
    start = backlog_start(ticking.clock)
    publish(world, ticking.settings, beats_between(start, start + MINUTE))
    landed = ticking.land()
    assert (keys(landed), landed.skip_message) == (["heartbeats"], "landed 4 heartbeats, 0 of them late")
    assert metadata_of(landed, "heartbeats")["rows"] == 4
    publish(world, ticking.settings, [], broken=[{"stream_id": "stream-0"}, {"event_time": iso(start)}])
    rejected = ticking.land()
    assert keys(rejected) == ["quarantine"]
    assert metadata_of(rejected, "quarantine") == {"rows": 2, "reason/NO_EVENT_TIME": 1, "reason/NO_STREAM_ID": 1}
    assert "quarantined 2 (1 NO_EVENT_TIME, 1 NO_STREAM_ID)" in (rejected.skip_message or "")


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
    world.clock.advance(timedelta(seconds=1))
    (again,) = ticking.track().run_requests
    assert tick.run_requests[0].tags[TICK] != again.tags[TICK] != "", "the id of the tick that requests it"


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


@pytest.mark.parametrize("tags", SOMEBODY_ELSES, ids=["another project's", "another pipeline's"])
def test_somebody_else_s_runs_of_jobs_with_our_names_stop_nothing(
    ticking: Ticking, world: ModelWorld, tags: Mapping[str, str]
) -> None:
    publish_backlog(world, ticking.settings)
    for status in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE):
        ticking.run(COMPUTE_WINDOWS, status, tags)
    ticking.run(INGEST, dg.DagsterRunStatus.STARTED, tags)
    assert ticking.land_and_close().run_requests
    assert pause_of(ticking.runs, INGEST, CLOCK.now()) is None


def test_after_failed_runs_the_pause_grows_and_a_success_ends_it(ticking: Ticking) -> None:
    def pauses(seconds: float) -> bool:
        return pause_of(ticking.runs, REQUEUE, CLOCK.now() + timedelta(seconds=seconds)) is not None

    for pause in (15, 30, 60):
        run = ticking.run(REQUEUE, dg.DagsterRunStatus.STARTED)
        ticking.instance.report_run_failed(run)
        assert pauses(pause - 5)
        assert not pauses(pause + 1)
    for _ in range(8):
        ticking.run(REQUEUE, dg.DagsterRunStatus.FAILURE)
    assert pauses(55)
    assert not pauses(61)
    ticking.run(REQUEUE, dg.DagsterRunStatus.SUCCESS)
    assert not pauses(0)


def test_a_window_of_the_sources_future_is_left_until_the_clock_has_passed_it(
    world: ModelWorld, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As in a log from before event times were clamped to their publish times.
    monkeypatch.setattr("tidemark.pipeline.watermark.histogram.clamped", lambda event_us, _publish_us: event_us)
    settings = settings_of(PUBSUB, tmp_path)
    never_idle = settings.watermark.model_copy(update={"idle_timeout": MINUTE})  # however slow a tick is
    ticking = Ticking(settings.model_copy(update={"watermark": never_idle}), instance, world.clock, world)
    ahead = world.clock.now() + 4 * MINUTE
    publish(world, ticking.settings, [("stream-0", ahead - 4 * MINUTE)])
    ticking.land()
    world.clock.sleep(2.2)
    publish(world, ticking.settings, [("stream-0", ahead)])
    ticking.land()
    world.clock.sleep(2.2)
    publish(world, ticking.settings, [("stream-0", ahead + timedelta(seconds=1))])
    ticking.land()
    tick = ticking.track()
    watermark = ticking.watermark()
    assert watermark is not None
    assert watermark > world.clock.now() + 2 * MINUTE
    asked = [ticking.settings.windowing.named(key) for one in tick.run_requests for key in windows_of(one, WINDOWING)]
    assert all(window.end <= world.clock.now() for window in asked)

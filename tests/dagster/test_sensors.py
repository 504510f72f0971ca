"""The real sensors, tick by tick, on a real instance, a lake on disk, and the model or the emulator; the owner of their
lake; and a requeue of what a wrong contract parked, once the settings are mended."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.sensor_definition import SensorExecutionData

from tests.dagster.house import (
    FIELDS,
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
from tests.pubsub.builders import raising
from tidemark.assets.jobs.housekeeping import housekeeping_job
from tidemark.assets.requeue import MOST_REQUESTS
from tidemark.assets.scheduler.requests import pause_of
from tidemark.assets.sensors.staleness import AUDIT_EVERY
from tidemark.assets.sensors.ticks import RECORDED_WITHIN
from tidemark.pipeline.clock import EPOCH, Clock, SystemClock, iso
from tidemark.pipeline.errors import LakeOwned, LakeUnwritable, PubSubUnreachable
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, CONTRACT, INGEST, REQUEUE, TICK
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import ON_CHANGE, QuarantineSettings
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


def test_a_tick_materializes_the_watermark_and_with_messages_the_histogram(ticking: Ticking, world: ModelWorld) -> None:
    assert keys(ticking.track()) == ["watermark"]
    publish_backlog(world, ticking.settings)
    assert keys(ticking.track()) == ["tracking_histogram", "watermark"]
    ticking.land_and_close()
    evidence = metadata_of(ticking.track(), "watermark")
    watermark = ticking.watermark()
    assert evidence["watermark"] == evidence["watermark_epoch_seconds"] == watermark.timestamp()
    assert str(evidence["decision"]).startswith(f"IDLE_ADVANCED: watermark {iso(watermark)}")


@pytest.mark.parametrize("sensor", ["tracking", "landing", "ingest", "staleness"])
def test_a_tick_with_nothing_to_say_has_no_log(ticking: Ticking, monkeypatch: pytest.MonkeyPatch, sensor: str) -> None:
    monkeypatch.setattr(dg.SensorEvaluationContext, "log", property(lambda _: pytest.fail("Dagster keeps its file")))
    ticking.tick(sensor)


def test_heartbeats_and_quarantine_are_materialized_if_something_landed(ticking: Ticking, world: ModelWorld) -> None:
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
    assert first == windows[0]
    newest = ticking.settings.windowing.named(last)
    assert newest.end <= watermark < newest.end + MINUTE
    assert last >= windows[-1]
    assert tick.skip_message is None
    world.clock.advance(timedelta(seconds=1))
    (again,) = ticking.track().run_requests
    assert tick.run_requests[0].tags[TICK] != again.tags[TICK] != "", "the id of the tick that requests it"


def test_live_windows_that_are_not_computed_are_one_run_despite_a_gap(ticking: Ticking, world: ModelWorld) -> None:
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
    world.clock.advance(CLOCK.now() - world.clock.now() + timedelta(seconds=16))  # Dagster has the machine's time
    assert all_requested(ticking.track())[: len(failed)] == failed


# What is lost, missing or broken


def test_an_unreachable_pubsub_fails_the_tick_with_what_to_do(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    nobody = PUBSUB.model_copy(update={"emulator_host": "127.0.0.1:1"})
    ticking = Ticking(settings_of(nobody, tmp_path), instance)
    with pytest.raises(PubSubUnreachable, match=r"did not answer.*emulator.*ticks try again"):
        ticking.track()


def test_a_choice_that_fails_is_said_and_fails_no_tick(ticking: Ticking, world: ModelWorld, tmp_path: Path) -> None:
    publish_backlog(world, ticking.settings)
    assert ticking.land_and_close().run_requests
    table, away = tmp_path / "lake" / "heartbeats", tmp_path / "away"
    table.rename(away)
    table.write_text("a file where the table's folder should be")
    failed = ticking.track()
    assert keys(failed) == ["watermark"], "what was decided is reported"
    assert "choosing failed, and the next tick tries again: the lake" in (failed.skip_message or "")
    table.unlink()
    away.rename(table)


@pytest.mark.parametrize("tags", SOMEBODY_ELSES, ids=["another project's", "another pipeline's"])
def test_runs_of_others_by_our_names_stop_nothing(ticking: Ticking, world: ModelWorld, tags: Mapping[str, str]) -> None:
    publish_backlog(world, ticking.settings)
    for status in (dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.FAILURE):
        ticking.run(COMPUTE_WINDOWS, status, tags)
    ticking.run(INGEST, dg.DagsterRunStatus.STARTED, tags)
    assert ticking.land_and_close().run_requests
    assert pause_of(ticking.runs, INGEST, CLOCK.now()) is None


def test_after_failed_runs_the_pause_grows_and_a_success_ends_it(ticking: Ticking) -> None:
    def pauses(since: datetime, seconds: float) -> bool:
        return pause_of(ticking.runs, REQUEUE, since + timedelta(seconds=seconds)) is not None

    for pause in (15, 30, 60):
        run, before = ticking.run(REQUEUE, dg.DagsterRunStatus.STARTED), CLOCK.now()
        ticking.instance.report_run_failed(run)
        assert pauses(before, pause - 1)
        assert not pauses(CLOCK.now(), pause + 1)
    before = CLOCK.now()
    for _ in range(8):
        ticking.run(REQUEUE, dg.DagsterRunStatus.FAILURE)
    assert pauses(before, 58)
    assert not pauses(CLOCK.now(), 61)
    ticking.run(REQUEUE, dg.DagsterRunStatus.SUCCESS)
    assert not pauses(CLOCK.now(), 0)


@dataclass
class Side(Ticking):
    """A pipeline with a topic of its own."""

    @classmethod
    def of(cls, name: str, folder: Path, instance: dg.DagsterInstance) -> "Side":
        names = {"topic": name, "base_subscription": f"{name}-base", "tracking_subscription": f"{name}-tracking"}
        pubsub = PUBSUB.model_copy(update=names)
        world = ModelWorld(pubsub)
        return cls(settings_of(pubsub, folder), instance, world.clock, world)

    def publish(self) -> int:
        now = self.clock.now()
        beats = beats_between(now - timedelta(minutes=3), now - timedelta(minutes=1))
        publish(self.world, self.settings, beats)
        return len(beats)

    def ticks(self) -> None:
        self.publish()
        self.land_and_close()


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_pipeline_pulls_and_writes_nothing_in_our_lake(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    owner, other = Side.of("heartbeats", tmp_path, instance), Side.of("orders", tmp_path, instance)
    owner.ticks()
    published = other.publish()
    before = files(tmp_path / "lake")
    for sensor in ("landing", "tracking", "ingest", "staleness"):
        with pytest.raises(LakeOwned, match=r"another pipeline writes file:.*topics/heartbeats"):
            other.tick(sensor)
    job = housekeeping_job(other.settings)
    with pytest.raises(dg.Failure, match="another pipeline writes"):
        job.execute_in_process(instance=instance)
    assert files(tmp_path / "lake") == before, "not even the note of a failed tick"
    assert len(list(other.world.model.unacknowledged(other.settings.pubsub.base_path))) == published
    owner.ticks()
    Side.of("orders", tmp_path / "its own", instance).ticks()


def test_what_only_reads_goes_on(instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = Side.of("heartbeats", tmp_path, instance)
    side.ticks()
    side.restart()
    with monkeypatch.context() as disk:
        for write in ("replace", "create"):
            disk.setattr(DiskObjects, write, raising(LakeUnwritable("a read-only file system")))
        side.tick("ingest")
        with pytest.raises(LakeUnwritable):
            side.tick("tracking")
    side.ticks()


def checks(data: object) -> dict[str, dg.AssetCheckEvaluation]:
    events = data.asset_events  # type: ignore[attr-defined]
    return {event.check_name: event for event in events if isinstance(event, dg.AssetCheckEvaluation)}


def test_a_missing_field_is_warned_of_and_no_check_stays_empty(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world, settings = ModelWorld(PUBSUB), settings_of(PUBSUB, tmp_path)
    fields = {"temperature": "number", "humidity": "number", "status": "boolean"}
    message = MessageSettings(fields=fields)  # type: ignore[arg-type]
    settings = settings.model_copy(update={"message": message})
    ticking = Ticking(settings, instance, world.clock, world)
    empty = checks(ticking.tick("staleness"))
    start = backlog_start(world.clock)
    publish(world, settings, beats_between(start, start + MINUTE))
    ticking.land_and_close()
    world.clock.advance(AUDIT_EVERY)
    told = checks(ticking.tick("staleness"))
    assert empty.keys() - told.keys() == {"missed", "subscriptions"}, "what these say is still true"
    found = told["fields_present"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.metadata["null_fields"].value == "humidity, status"
    assert found.metadata["null_rows"].value == {"humidity": 4, "status": 4}
    assert "humidity is null in every row that landed since" in (found.description or "")
    ticking = Ticking(settings_of(PUBSUB, tmp_path), instance, world.clock, world)
    assert checks(ticking.tick("staleness"))["fields_present"].passed is False, "status stays null until more lands"


RIGHT = MessageSettings(fields=FIELDS)  # type: ignore[arg-type]
WRONG = MessageSettings(stream_id="attribute:sensor", fields=FIELDS)  # type: ignore[arg-type]


def by_itself(folder: Path, message: MessageSettings) -> Settings:
    changed = {"message": message, "quarantine": QuarantineSettings(requeue=ON_CHANGE)}
    return settings_of(PUBSUB, folder).model_copy(update=changed)


def park(world: ModelWorld, ticking: Ticking) -> int:
    """Land some heartbeats that the contract rejects; how many."""
    beats = beats_between(start := backlog_start(world.clock), start + MINUTE)
    publish(world, ticking.settings, beats)
    ticking.land()
    return len(beats)


def requeues(ticking: Ticking) -> list[dg.RunRequest]:
    return list(ticking.tick(REQUEUE).run_requests or [])


def test_a_changed_contract_is_noticed_once_and_what_passes_lands(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world = ModelWorld(PUBSUB)
    wrong, right = by_itself(tmp_path, WRONG), by_itself(tmp_path, RIGHT)
    ticking = Ticking(wrong, instance, world.clock, world)
    assert requeues(ticking) == [], "the first look notes the contract"
    count = park(world, ticking)
    parked = checks(ticking.tick("staleness"))["quarantine_share"]
    assert (parked.passed, parked.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert parked.metadata["quarantined"].value == count
    ticking.restart()
    assert requeues(ticking) == [], "it is the same one"

    ticking.tick("tracking")
    mended = Ticking(right, instance, world.clock, world)
    said = [mended.tick("landing").skip_message or ""]
    world.clock.advance(RECORDED_WITHIN + right.watermark.tick)
    said += [mended.tick(sensor).skip_message or "" for sensor in ("landing", "tracking", "landing")]
    assert ["has yet to record it: this tick pulls nothing" in one for one in said] == [True, False, False, False]
    (request,) = requeues(mended)
    assert request.tags[CONTRACT] == right.judged_by[:12]
    assert requeues(Ticking(wrong, instance, world.clock, world)) != [], "going back before a run ends is a change too"
    at_work = mended.run(REQUEUE, dg.DagsterRunStatus.STARTED)
    assert "is judging quarantined messages" in (mended.tick(REQUEUE).skip_message or "")
    instance.report_run_canceled(at_work)

    result = mended.definitions.resolve_job_def(REQUEUE).execute_in_process(instance=instance)
    (landed,) = [event for event in result.all_events if event.is_step_materialization]
    assert landed.materialization.metadata["rows"].value == count
    assert mended.lake().heartbeats().extent().rows == count
    for _ in range(2):
        assert requeues(mended) == []
        mended.restart()
    assert requeues(Ticking(wrong, instance, world.clock, world)) != [], "going back is a change"


def test_a_manual_requeue_counts_and_an_empty_quarantine_rests(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world = ModelWorld(PUBSUB)
    for message in (WRONG, RIGHT, WRONG):
        ticking = Ticking(by_itself(tmp_path, message), instance, world.clock, world)
        assert requeues(ticking) == []
    park(world, ticking)
    ticking.lake().judged_by().note(by_itself(tmp_path, RIGHT).judged_by, world.clock.now())
    assert requeues(Ticking(by_itself(tmp_path, RIGHT), instance, world.clock, world)) == []


def test_runs_that_keep_failing_are_requested_a_few_times(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world = ModelWorld(PUBSUB)
    wrong = Ticking(by_itself(tmp_path, WRONG), instance, world.clock, world)
    park(world, wrong)
    ticking = Ticking(by_itself(tmp_path, RIGHT), instance, world.clock, world)
    for _ in range(MOST_REQUESTS):
        before = dict(ticking.cursors)
        assert len(requeues(ticking)) == 1
        ticking.cursors = before  # Dagster never got this one
        assert len(requeues(ticking)) == 1
        ticking.run(REQUEUE, dg.DagsterRunStatus.FAILURE)
        world.clock.advance(60 * MINUTE)  # longer than any pause after a failure
    assert "none succeeded" in (ticking.tick(REQUEUE).skip_message or "")

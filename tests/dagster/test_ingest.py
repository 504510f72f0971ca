"""The run whose readers on Spark pull: when the sensor asks for it, that ticks rest meanwhile, and what it reports."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.dagster.house import PUBSUB, ModelWorld, Ticking, beats_between, keys, metadata_of, publish, settings_of
from tests.pubsub.builders import raising
from tests.quick import classic
from tests.watermark.builders import ints
from tidemark.assets import ingest
from tidemark.assets.ingest import (
    AGAIN_WITHIN,
    OVERTIME,
    UNABLE_PAUSE,
    WHY_NOT,
    caught_up_lately,
    run_at_work,
    why_no_run,
    why_readers,
)
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.ingest import ticks
from tidemark.pipeline.ingest.progress import BacklogWatch
from tidemark.pipeline.ingest.rounds import PLAN, Ended, RunPlan
from tidemark.pipeline.orchestrator.names import ENDED, INGEST, READS, STAYS
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import IngestSettings, PubSubSettings
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading, follow
from tidemark.pipeline.watermark.state import DecisionRecord, Snapshot, WatermarkState

CLOCK = SystemClock()
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
STATUS = dg.DagsterRunStatus
CLASSIC = classic("local[3,4]", **{"spark.ui.enabled": "false"})
TWO = IngestSettings(readers=2)
SOON = RunPlan(round=2 * SECOND, run_for=MINUTE, start_after=3 * SECOND, stop_below=SECOND)
CONTINUOUS = IngestSettings(mode="continuous", readers=2)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


def ticking_with(
    world: ModelWorld, instance: dg.DagsterInstance, folder: Path, chosen: IngestSettings, plan: RunPlan = SOON
) -> Ticking:
    settings = settings_of(PUBSUB, folder).model_copy(update={"ingest": chosen})
    return Ticking(settings, instance, world.clock, world, plan)


@pytest.fixture
def ticking(world: ModelWorld, instance: dg.DagsterInstance, tmp_path: Path) -> Ticking:
    return ticking_with(world, instance, tmp_path, TWO)


def publish_backlog(publisher: PublisherClient | ModelWorld, settings: Settings, messages: int) -> None:
    """Heartbeats of some minutes, two broken ones beside them, and then so long nothing that a run is due."""
    clock = publisher.clock if isinstance(publisher, ModelWorld) else CLOCK
    end = clock.now() - MINUTE
    start = end - messages // 100 * timedelta(seconds=30)
    publish(publisher, settings, beats_between(start, end, streams=100), broken=[{"stream_id": "stream-0"}] * 2)
    clock.sleep(SOON.start_after.total_seconds() + 0.5)


def rows(ticking: Ticking) -> int:
    return ticking.lake().heartbeats().extent().rows


def requests(ticking: Ticking) -> Sequence[dg.RunRequest]:
    return ticking.tick(INGEST).run_requests or []


def skipped(ticking: Ticking) -> str:
    """Why the sensor requests no run."""
    data = ticking.tick(INGEST)
    assert not data.run_requests
    return data.skip_message or ""


# When a run is due


def standing_with(now: datetime, *, base: timedelta, tracking: timedelta = timedelta(0)) -> WatermarkState:
    """A decision a second ago, on readings of messages that were so old."""
    at = now - SECOND
    readings = [Reading(at, at - age, names_a_message=True) for age in (base, tracking)]
    followed = [follow(None, reading, timedelta(0)) for reading in readings]
    decision = Decision(at=at, watermark=None, reason=Reason.ADVANCED, base=followed[0], tracking=followed[1])
    return WatermarkState(record=DecisionRecord(decision, *readings, Policy()))


def why(state: WatermarkState, now: datetime, **chosen: Any) -> str | None:
    return why_readers(state, now, Settings(), BacklogWatch(), replace(PLAN, **chosen))


def test_a_run_is_due_when_either_subscription_holds_a_message_as_old_as_the_settings_say() -> None:
    now = CLOCK.now()
    assert why(WatermarkState(), now) is None
    assert why(standing_with(now, base=10 * MINUTE - SECOND), now, start_after=10 * MINUTE) is None
    due = why(standing_with(now, base=10 * MINUTE), now, start_after=10 * MINUTE)
    assert due == "base holds a message that is 10m old"
    due = why(standing_with(now, base=MINUTE, tracking=timedelta(days=2)), now)
    assert due == "tracking holds a message that is 2d old"
    assert why(standing_with(now, base=10 * MINUTE), now - 10 * MINUTE) is None, "the clock was set back"


def test_a_run_is_due_when_so_many_messages_were_published_since_the_oldest_that_base_holds() -> None:
    now = CLOCK.now()
    held_us = to_us(now - MINUTE - SECOND)
    published = [held_us - 5_000_000, *range(held_us, held_us + 30_000_000, 1_000_000)]
    histogram = Histogram.of(ints(published), ints(published))
    state = standing_with(now, base=MINUTE).after(0, Snapshot(histogram))
    assert why(state, now, start_size=30) == "30 messages were published since the oldest one that base holds"
    assert why(state, now, start_size=31) is None


# The sensor


def test_the_sensor_asks_for_one_run_and_says_why_it_asks_for_no_other(ticking: Ticking, world: ModelWorld) -> None:
    assert skipped(ticking) == "ticks can land the backlog"
    publish_backlog(world, ticking.settings, 200)
    ticking.track()
    (request,) = requests(ticking)
    assert "base holds a message that is" in request.tags["tidemark/why"]
    assert STAYS not in request.tags
    run = ticking.run(INGEST, STATUS.STARTING)
    assert f"run {run.run_id[:8]} lands and tracks" in skipped(ticking)
    ticking.instance.report_run_failed(run)
    world.clock.advance(max(CLOCK.now() - world.clock.now(), timedelta()))  # Dagster has the machine's time
    assert "failed" in skipped(ticking)
    world.clock.advance(MINUTE)
    ticking.track()
    assert len(requests(ticking)) == 1


def test_continuous_mode_keeps_one_run_at_work(world: ModelWorld, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    ticking = ticking_with(world, instance, tmp_path, CONTINUOUS)
    (request,) = requests(ticking)
    assert "tidemark/why" not in request.tags, "it needs no reason"
    run = ticking.run(INGEST, STATUS.STARTED)
    assert f"run {run.run_id[:8]} lands and tracks" in skipped(ticking)
    ticking.instance.report_run_canceled(run)
    assert len(requests(ticking)) == 1


def test_how_the_last_run_ended_says_whether_the_next_one_waits_or_stays(ticking: Ticking, world: ModelWorld) -> None:
    def ended(how: Ended, status: STATUS = STATUS.SUCCESS) -> None:
        tags = {ENDED: str(how), WHY_NOT: "of the run that it retries"}
        ticking.instance.add_run_tags(ticking.run(INGEST, status).run_id, tags)

    publish_backlog(world, ticking.settings, 200)
    ticking.track()
    ended(Ended.TIME_IS_UP)
    assert STAYS not in requests(ticking)[0].tags
    ended(Ended.CAUGHT_UP)
    assert STAYS in requests(ticking)[0].tags
    ended(Ended.CAUGHT_UP, STATUS.FAILURE)
    assert "of the run that it retries" in (why_no_run(ticking.runs, CLOCK.now(), ticking.settings) or "")
    assert caught_up_lately(ticking.runs, CLOCK.now()), "the last one that ended well counts"
    assert not caught_up_lately(ticking.runs, CLOCK.now() + AGAIN_WITHIN)
    ended(Ended.RAN_DRY)
    rests = why_no_run(ticking.runs, CLOCK.now(), ticking.settings, plan := replace(SOON, start_after=MINUTE))
    assert (
        "found hardly anything to pull, because another consumer holds the messages; the next run is requested 1m later"
        in (rests or "")
    )
    assert why_no_run(ticking.runs, CLOCK.now() + plan.start_after, ticking.settings, plan) is None
    continuous = ticking.settings.model_copy(update={"ingest": CONTINUOUS})
    assert why_no_run(ticking.runs, CLOCK.now(), continuous, SOON) is None, "from now on one is always at work"


def test_the_sensor_asks_for_a_run_when_ticks_do_not_catch_up(
    world: ModelWorld, instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticks, "TICK_MESSAGES", 40)
    ticking = ticking_with(world, instance, tmp_path, TWO, PLAN)
    for number in range(36):
        publish(world, ticking.settings, [(f"stream-{stream}", world.clock.now()) for stream in range(60)])
        world.clock.advance(10 * SECOND)
        ticking.land()
        ticking.track()
        if number % 6 == 5:
            asked = requests(ticking)
            assert not asked or number > 6, "what they leave is young"
    (request,) = asked
    assert request.tags["tidemark/why"].startswith("ticks do not catch up: falling behind: 4 messages/s are read, and ")
    ticking.run(INGEST, STATUS.STARTING)
    assert skipped(ticking).count("falling behind") == 1


# Ticks beside a run


def test_ticks_pull_until_a_run_has_settled_a_round_and_after_its_end(ticking: Ticking, world: ModelWorld) -> None:
    settings, now = ticking.settings, world.clock.now()
    publish(world, settings, beats_between(now - 2 * MINUTE, now - MINUTE))
    run = ticking.run(INGEST, STATUS.STARTED)
    ticking.instance.add_run_tags(run.run_id, {READS: "the run that it retries"})
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 4, "it has not settled a round"
    ticking.instance.add_run_tags(run.run_id, {READS: run.run_id})
    publish(world, settings, beats_between(now - MINUTE, now))
    assert f"run {run.run_id[:8]} lands and tracks, so this tick pulls nothing" in (ticking.land().skip_message or "")
    assert rows(ticking) == 4
    assert keys(ticking.track()) == ["watermark"], "the tick decides, and leaves the tracking subscription to the run"
    longest = SOON.run_for + OVERTIME
    assert run_at_work(ticking.runs, CLOCK.now() + longest - 2 * MINUTE, SOON) == run.run_id
    assert run_at_work(ticking.runs, CLOCK.now() + longest, SOON) is None, "a run that hangs does not stop the ticks"
    ticking.instance.report_run_failed(run)
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 4
    assert metadata_of(ticking.track(), "tracking_histogram")["messages"] == 8


# The run


@pytest.fixture
def on_spark_ticking(
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    fresh_pubsub: PubSubSettings,
    tmp_path: Path,
    instance: dg.DagsterInstance,
) -> Ticking:
    settings = settings_of(fresh_pubsub, tmp_path, spark=CLASSIC).model_copy(update={"ingest": TWO})
    provision(subscriber, publisher, fresh_pubsub, settings.contract, CLOCK)
    return Ticking(settings, instance, plan=replace(SOON, run_for=5 * MINUTE))


def run_of(ticking: Ticking, *, succeeds: bool = True, **tags: str) -> tuple[dg.DagsterRun, Any]:
    """A run of the job in this process, with what it reported."""
    job = ticking.definitions.resolve_job_def(INGEST)
    result = job.execute_in_process(instance=ticking.instance, raise_on_error=False, tags=tags)
    assert result.success is succeeds
    return ticking.instance.get_run_by_id(result.run_id), result


def totals_of(result: Any) -> dict[str, Any]:
    """What a run says at its end."""
    (output,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    return {name: value.value for name, value in output.step_output_data.metadata.items()}


def told_by(result: Any) -> dict[str, int]:
    """How many rows or messages a run's materializations say, by asset."""
    told: dict[str, int] = {}
    for event in result.get_asset_materialization_events():
        metadata = {name: value.value for name, value in event.materialization.metadata.items()}
        name = event.materialization.asset_key.to_user_string()
        told[name] = told.get(name, 0) + int(metadata.get("rows", metadata.get("messages", 0)))
    return told


def test_a_run_reads_both_sides_and_says_how_far_it_is(on_spark_ticking: Ticking, publisher: PublisherClient) -> None:
    ticking = on_spark_ticking
    publish_backlog(publisher, ticking.settings, 800)
    run, result = run_of(ticking)
    assert rows(ticking) == 800
    assert ticking.lake().quarantine().reasons().waiting == {"NO_EVENT_TIME": 2}
    assert run.tags[ENDED] == "caught up"
    assert READS in run.tags
    totals = totals_of(result)
    assert (totals["heartbeats"], totals["quarantined"], totals["tracked"]) == (800, 2, 802)
    assert told_by(result) == {"tracking_histogram": 802, "heartbeats": 800, "quarantine": 2}
    said = [entry.user_message for entry in ticking.instance.all_logs(run.run_id)]
    assert any(line.startswith("round 0: landed ") and "age of the backlog: " in line for line in said)

    CLOCK.sleep(1.1)
    ticking.track()
    assert skipped(ticking) == "ticks can land the backlog"
    assert ticking.land().skip_message == "nothing to land"


def test_a_run_that_stays_goes_on_until_its_time_is_up(on_spark_ticking: Ticking, publisher: PublisherClient) -> None:
    ticking, plan = on_spark_ticking, replace(SOON, run_for=4 * SECOND)
    ticking.plan = plan
    ticking.restart()
    publish(publisher, ticking.settings, beats_between(CLOCK.now() - MINUTE, CLOCK.now()))
    run, result = run_of(ticking, **{STAYS: "true"})
    assert (rows(ticking), run.tags[ENDED]) == (4, "time is up")
    assert totals_of(result)["seconds"] >= plan.run_for.total_seconds()


def test_after_a_run_whose_executors_lack_tidemark_the_sensor_says_so_and_ticks_land(
    on_spark_ticking: Ticking, publisher: PublisherClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticking = on_spark_ticking
    publish_backlog(publisher, ticking.settings, 200)
    ticking.track()
    (request,) = requests(ticking)
    assert request.tags

    unable = "Spark's executors cannot run tidemark (python3 on host: No module named 'tidemark')"
    monkeypatch.setattr(ingest, "require_able", raising(ExecutorsUnable(unable)))
    run, _ = run_of(ticking, succeeds=False)
    assert rows(ticking) == 0
    assert WHY_NOT in run.tags
    assert ENDED not in run.tags
    assert READS not in run.tags
    ticking.track()
    rests = skipped(ticking)
    assert "only ticks pull, because Spark's executors cannot run tidemark" in rests
    assert "The next run is requested 10m after the last one; to try at once, start a run by hand" in rests
    for later, is_asked in ((2 * MINUTE, False), (UNABLE_PAUSE + SECOND, True)):  # other failures rest for a minute
        assert (why_no_run(ticking.runs, CLOCK.now() + later, ticking.settings) is None) is is_asked
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 200

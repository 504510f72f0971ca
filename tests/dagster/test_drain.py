"""The run that drains a backlog: when the sensor asks for it, what it reports, and that landing rests meanwhile."""

from datetime import datetime, timedelta

import dagster as dg
import pytest
from google.pubsub_v1 import PublisherClient

from tests.dagster.house import Provisioned, Ticking, beats_between, metadata_of, publish
from tests.watermark.builders import ints
from tidemark.assets.drain import draining, why_drain, why_no_run
from tidemark.assets.reading_runs import OVERTIME, UNABLE_PAUSE, WHY_NOT
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.errors import ExecutorsUnable
from tidemark.pipeline.services.dagster_names import DRAIN, DRAINED
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DrainSettings, SparkSettings
from tidemark.pipeline.spark import drain as pipeline_drain
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading, follow
from tidemark.pipeline.watermark.state import DecisionRecord, Snapshot, WatermarkState

CLOCK = SystemClock()
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
CLASSIC = SparkSettings(master="local[2,4]", driver_memory="1g", config={"spark.ui.enabled": "false"})
DRAINING = DrainSettings.model_validate(
    {
        "start_after": "3s",
        "stop_below": "1s",
        "round_seconds": "5s",  # two without a message are longer than what a tick has pulled ahead is leased
        "max_seconds": "60s",
        "batch_messages": 500,
        "readers": 2,
    }
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


@pytest.fixture
def ticking(provisioned: Provisioned, instance: dg.DagsterInstance) -> Ticking:
    return Ticking(provisioned(spark=CLASSIC, drain=DRAINING), instance)


def publish_backlog(publisher: PublisherClient, settings: Settings, messages: int = 2000) -> None:
    """Heartbeats of some minutes, two broken ones beside them, and then so long nothing that a drain is due."""
    end = CLOCK.now() - MINUTE
    start = end - messages // 100 * timedelta(seconds=30)
    beats = beats_between(start, end, streams=100)
    for first in range(0, len(beats), 1000):
        publish(publisher, settings, beats[first : first + 1000])
    publish(publisher, settings, [], broken=[{"stream_id": "stream-0"}] * 2)
    CLOCK.sleep(DRAINING.start_after.total_seconds() + 0.5)


def rows(ticking: Ticking) -> int:
    return ticking.lake().heartbeats().extent().rows


# When a run is due


def standing_with(
    now: datetime, *, base: timedelta, tracking: timedelta = timedelta(0), ago: timedelta = SECOND
) -> WatermarkState:
    """A decision so long ago, on readings of messages that were so old."""
    at = now - ago
    readings = [Reading(at, at - age, names_a_message=True) for age in (base, tracking)]
    followed = [follow(None, reading, timedelta(0)) for reading in readings]
    decision = Decision(at=at, watermark=None, reason=Reason.ADVANCED, base=followed[0], tracking=followed[1])
    return WatermarkState(record=DecisionRecord(decision, *readings, Policy()))


def why(state: WatermarkState, now: datetime, **chosen: object) -> str | None:
    return why_drain(state, now, DrainSettings.model_validate(chosen), max_reading_age=5 * MINUTE)


def test_a_run_is_due_when_either_subscription_holds_a_message_as_old_as_the_settings_say() -> None:
    now = CLOCK.now()
    assert why(WatermarkState(), now) is None
    assert why(standing_with(now, base=10 * MINUTE - SECOND), now, start_after="10m") is None
    due = why(standing_with(now, base=10 * MINUTE), now, start_after="10m")
    assert due == "base holds a message that is 10m old"
    due = why(standing_with(now, base=MINUTE, tracking=timedelta(days=2)), now)
    assert due == "tracking holds a message that is 2d old"


def test_a_reading_that_is_too_old_is_no_reason_for_a_run() -> None:
    now = CLOCK.now()
    assert why(standing_with(now, base=timedelta(days=2), ago=6 * MINUTE), now) is None
    assert why(standing_with(now, base=timedelta(days=2), ago=5 * MINUTE), now) is not None


def test_a_run_is_due_when_so_many_messages_were_published_since_the_oldest_that_base_holds() -> None:
    now = CLOCK.now()
    held_us = to_us(now - MINUTE - SECOND)
    published = [held_us - 5_000_000, *range(held_us, held_us + 30_000_000, 1_000_000)]
    histogram = Histogram.of(ints(published), ints(published))
    state = standing_with(now, base=MINUTE).after(0, Snapshot(histogram))
    assert why(state, now, start_size=30) == "30 messages were published since the oldest that base holds"
    assert why(state, now, start_size=31) is None


# The sensor


def test_the_sensor_asks_for_one_run_and_says_why_it_asks_for_no_other(
    ticking: Ticking, publisher: PublisherClient
) -> None:
    assert ticking.tick("drain").skip_message == "ticks can land the backlog"
    publish_backlog(publisher, ticking.settings, 200)
    ticking.track()
    (request,) = ticking.tick("drain").run_requests
    assert "base holds a message that is" in request.tags["tidemark/why"]
    run = ticking.run(DRAIN, dg.DagsterRunStatus.STARTING)
    waiting = ticking.tick("drain")
    assert not waiting.run_requests
    assert f"run {run.run_id[:8]} drains it" in (waiting.skip_message or "")


def test_after_a_run_that_found_nothing_to_pull_the_sensor_rests(ticking: Ticking, publisher: PublisherClient) -> None:
    publish_backlog(publisher, ticking.settings, 200)
    ticking.track()
    for ended, asks in (("time is up", True), ("ran dry", False)):
        run = ticking.run(DRAIN, dg.DagsterRunStatus.SUCCESS)
        ticking.instance.add_run_tags(run.run_id, {DRAINED: ended})
        assert bool(ticking.tick("drain").run_requests) is asks, ended
    CLOCK.sleep(DRAINING.start_after.total_seconds())
    assert ticking.tick("drain").run_requests


def test_after_a_run_whose_executors_lack_tidemark_the_sensor_says_so_and_ticks_land(
    ticking: Ticking, publisher: PublisherClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_backlog(publisher, ticking.settings, 200)
    ticking.track()
    (request,) = ticking.tick("drain").run_requests
    assert request.tags

    def refuse(session: object) -> None:
        raise ExecutorsUnable("Spark's executors cannot run tidemark (python3 on host: No module named 'tidemark')")

    monkeypatch.setattr(pipeline_drain, "require_able", refuse)
    job = ticking.definitions.resolve_job_def(DRAIN)
    result = job.execute_in_process(instance=ticking.instance, raise_on_error=False)
    assert not result.success
    assert rows(ticking) == 0
    run = ticking.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert WHY_NOT in run.tags
    assert DRAINED not in run.tags
    ticking.track()
    rests = ticking.tick("drain")
    assert not rests.run_requests
    assert "ticks land, since Spark's executors cannot run tidemark" in (rests.skip_message or "")
    assert "another run looks 10m after the last; start one by hand to try at once" in (rests.skip_message or "")
    for later, is_asked in ((2 * MINUTE, False), (UNABLE_PAUSE + SECOND, True)):  # other failures rest for a minute
        assert (why_no_run(ticking.runs, CLOCK.now() + later, DRAINING) is None) is is_asked
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 200


def test_landing_rests_while_a_run_drains_and_goes_on_when_it_has_ended(
    ticking: Ticking, publisher: PublisherClient
) -> None:
    publish(publisher, ticking.settings, beats_between(CLOCK.now() - 2 * MINUTE, CLOCK.now() - MINUTE))
    waiting = ticking.run(DRAIN, dg.DagsterRunStatus.STARTING)
    assert draining(ticking.runs, CLOCK.now(), DRAINING) is None, "it has not started"
    ticking.instance.delete_run(waiting.run_id)
    run = ticking.run(DRAIN, dg.DagsterRunStatus.STARTED)
    rests = ticking.land()
    assert f"run {run.run_id[:8]} drains the backlog" in (rests.skip_message or "")
    assert rows(ticking) == 0
    assert metadata_of(ticking.track(), "tracking_histogram")["messages"] == 4, "tracking goes on"
    ticking.instance.report_run_failed(ticking.instance.get_run_by_id(run.run_id))
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 4


def test_a_run_that_hangs_does_not_keep_the_ticks_from_landing(ticking: Ticking) -> None:
    ticking.run(DRAIN, dg.DagsterRunStatus.STARTED)
    longest = DRAINING.max_seconds + OVERTIME
    assert draining(ticking.runs, CLOCK.now() + longest - 2 * MINUTE, DRAINING) is not None
    assert draining(ticking.runs, CLOCK.now() + longest, DRAINING) is None


# The run


def test_a_run_drains_both_subscriptions_tells_how_far_it_is_and_gives_back_to_the_ticks(
    ticking: Ticking, publisher: PublisherClient
) -> None:
    ticking.track()
    publish_backlog(publisher, ticking.settings)
    result = ticking.definitions.resolve_job_def(DRAIN).execute_in_process(instance=ticking.instance)
    assert result.success
    assert rows(ticking) == 2000
    assert ticking.lake().quarantine().reasons().waiting == {"NO_EVENT_TIME": 2}
    run = ticking.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.tags[DRAINED] == "caught up"

    (output,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    totals = {name: value.value for name, value in output.step_output_data.metadata.items()}
    assert (totals["ended"], totals["heartbeats"], totals["quarantined"], totals["tracked"]) == (
        "caught up",
        2000,
        2,
        2002,
    )
    reported: dict[str, list[dict[str, object]]] = {}
    for event in result.get_asset_materialization_events():
        metadata = {name: value.value for name, value in event.materialization.metadata.items()}
        reported.setdefault(event.materialization.asset_key.to_user_string(), []).append(metadata)
    assert set(reported) == {"tracking_histogram", "heartbeats", "quarantine"}
    assert sum(int(str(metadata["messages"])) for metadata in reported["tracking_histogram"]) == 2002
    assert sum(int(str(metadata["rows"])) for metadata in reported["heartbeats"]) == 2000
    assert all(metadata["readers"] == 2 for events in reported.values() for metadata in events)
    assert all(1 <= metadata["readers_at_once"] <= 2 for events in reported.values() for metadata in events)
    assert reported["heartbeats"][-1]["base_backlog_age_seconds"] < 1  # type: ignore[operator]

    CLOCK.sleep(1.1)
    ticking.track()
    assert ticking.tick("drain").skip_message == "ticks can land the backlog"
    assert ticking.land().skip_message == "nothing to land"


def test_the_sensor_is_switched_on_and_asks_for_this_job_alone(ticking: Ticking) -> None:
    sensor = ticking.definitions.resolve_sensor_def("drain")
    assert sensor.default_status is dg.DefaultSensorStatus.RUNNING
    assert [target.job_name for target in sensor.targets] == [DRAIN]
    assert sensor.minimum_interval_seconds == 1

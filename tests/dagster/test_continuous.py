"""The run that lands without an end: who keeps it at work, that ticks rest meanwhile, and what it lands."""

from datetime import timedelta

import dagster as dg
import pytest
from google.pubsub_v1 import PublisherClient

from tests.dagster.house import Provisioned, Ticking, beats_between, metadata_of, publish
from tests.dagster.test_drain import CLASSIC, rows
from tidemark.assets.continuous import Report, landing_run
from tidemark.assets.reading_runs import OVERTIME
from tidemark.pipeline.clock import ManualClock, SystemClock
from tidemark.pipeline.ingest.continuous import RoundDone
from tidemark.pipeline.ingest.landing import Landed
from tidemark.pipeline.ingest.rounds import Settled
from tidemark.pipeline.ingest.tracking import Persisted
from tidemark.pipeline.services.dagster_names import LAND_CONTINUOUSLY, READS
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LandingSettings

CLOCK = SystemClock()
MINUTE = timedelta(minutes=1)
CONTINUOUS = LandingSettings.model_validate({"mode": "continuous", "round": "2s"}).model_copy(
    update={"run_for": timedelta(seconds=8)}  # shorter than the settings allow
)

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


@pytest.fixture
def ticking(provisioned: Provisioned, instance: dg.DagsterInstance) -> Ticking:
    return Ticking(provisioned(spark=CLASSIC, landing=CONTINUOUS), instance)


def test_the_sensor_keeps_one_run_at_work(ticking: Ticking) -> None:
    assert len(ticking.tick(LAND_CONTINUOUSLY).run_requests) == 1
    run = ticking.run(LAND_CONTINUOUSLY, dg.DagsterRunStatus.STARTED)
    waiting = ticking.tick(LAND_CONTINUOUSLY)
    assert not waiting.run_requests
    assert f"run {run.run_id[:8]} lands and tracks" in (waiting.skip_message or "")
    ticking.instance.report_run_canceled(ticking.instance.get_run_by_id(run.run_id))
    assert len(ticking.tick(LAND_CONTINUOUSLY).run_requests) == 1


def test_a_line_of_the_log_tells_all_rounds_since_the_last_and_that_they_take_too_long() -> None:
    settings = Settings(landing=LandingSettings(mode="continuous", landers=2))
    report = Report(ManualClock(CLOCK.now()), settings)

    def done(number: int, seconds: float = 5.1) -> RoundDone:
        return RoundDone(number, Settled(Landed(heartbeats=10, late=1), Persisted(messages=11)), seconds, number / 10)

    assert report.add(done(0, 9.0))
    assert report.sentence().startswith("round 0: landed 10 heartbeats (1 late), quarantined 0, tracked 11 messages")
    assert "longer" not in report.sentence(), "Spark's workers had to start"
    report.events()
    assert not report.add(done(1))
    report.add(done(2))
    told = "rounds 1 to 2: landed 20 heartbeats (2 late), quarantined 0, tracked 22 messages; the readers of the last"
    assert report.sentence() == f"{told} took 5.1 s, settling 0.2 s at most"
    report.add(done(3, 10.2))
    assert report.sentence().endswith("Spark needs a place for each of the 3 readers, and for windows")
    assert report.total.landed.heartbeats == 40


def test_after_a_failure_the_next_run_waits(ticking: Ticking) -> None:
    ticking.run(LAND_CONTINUOUSLY, dg.DagsterRunStatus.FAILURE)
    waiting = ticking.tick(LAND_CONTINUOUSLY)
    assert not waiting.run_requests
    assert "failed" in (waiting.skip_message or "")


def test_without_the_mode_neither_sensor_nor_run_has_a_say(ticking: Ticking) -> None:
    ticks = ticking.settings.model_copy(update={"landing": LandingSettings()})
    other = Ticking(ticks, ticking.instance)
    names = {sensor.name for sensor in other.definitions.sensors or ()}
    assert "drain" in names
    assert LAND_CONTINUOUSLY not in names
    assert "drain" not in {sensor.name for sensor in ticking.definitions.sensors or ()}
    run = other.run(LAND_CONTINUOUSLY, dg.DagsterRunStatus.STARTED)
    other.instance.add_run_tags(run.run_id, {READS: "true"})
    assert other.land().skip_message == "nothing to land"


def test_ticks_pull_until_a_run_has_settled_a_round_and_again_when_it_has_ended(
    ticking: Ticking, publisher: PublisherClient
) -> None:
    publish(publisher, ticking.settings, beats_between(CLOCK.now() - 2 * MINUTE, CLOCK.now() - MINUTE))
    run = ticking.run(LAND_CONTINUOUSLY, dg.DagsterRunStatus.STARTED)
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 4, "it has not settled a round"
    ticking.instance.add_run_tags(run.run_id, {READS: "true"})
    assert f"run {run.run_id[:8]} lands continuously" in (ticking.land().skip_message or "")
    publish(publisher, ticking.settings, beats_between(CLOCK.now() - MINUTE, CLOCK.now()))
    ticking.land()
    assert rows(ticking) == 4
    CLOCK.sleep(1.5)  # what came to a pull that was under way is given back a second later
    tracked = {event.asset_key.to_user_string() for event in ticking.track().asset_events}
    assert tracked == {"watermark"}, "the tick decides, and leaves the tracking subscription to the run"
    ticking.instance.report_run_failed(ticking.instance.get_run_by_id(run.run_id))
    assert metadata_of(ticking.land(), "heartbeats")["rows"] == 4
    assert metadata_of(ticking.track(), "tracking_histogram")["messages"] == 8


def test_a_run_that_hangs_does_not_keep_the_ticks_from_landing(ticking: Ticking) -> None:
    run = ticking.run(LAND_CONTINUOUSLY, dg.DagsterRunStatus.STARTED)
    ticking.instance.add_run_tags(run.run_id, {READS: "true"})
    longest = CONTINUOUS.run_for + OVERTIME
    assert landing_run(ticking.runs, CLOCK.now() + longest - 2 * MINUTE, ticking.settings) is not None
    assert landing_run(ticking.runs, CLOCK.now() + longest, ticking.settings) is None


def test_a_run_lands_and_tracks_reports_and_ends_in_time(ticking: Ticking, publisher: PublisherClient) -> None:
    beats = beats_between(CLOCK.now() - 10 * MINUTE, CLOCK.now(), streams=100)
    for first in range(0, len(beats), 500):
        publish(publisher, ticking.settings, beats[first : first + 500])
    publish(publisher, ticking.settings, [], broken=[{"stream_id": "stream-0"}] * 2)
    result = ticking.definitions.resolve_job_def(LAND_CONTINUOUSLY).execute_in_process(instance=ticking.instance)
    assert result.success
    assert rows(ticking) == 2000
    assert ticking.lake().quarantine().reasons().waiting == {"NO_EVENT_TIME": 2}
    run = ticking.instance.get_run_by_id(result.run_id)
    assert run is not None
    assert READS in run.tags
    (output,) = [event for event in result.all_events if event.event_type is dg.DagsterEventType.STEP_OUTPUT]
    totals = {name: value.value for name, value in output.step_output_data.metadata.items()}
    assert (totals["heartbeats"], totals["quarantined"], totals["tracked"]) == (2000, 2, 2002)
    told: dict[str, int] = {}
    for event in result.get_asset_materialization_events():
        metadata = {name: value.value for name, value in event.materialization.metadata.items()}
        name = event.materialization.asset_key.to_user_string()
        told[name] = told.get(name, 0) + int(metadata.get("rows", metadata.get("messages", 0)))
    assert told == {"tracking_histogram": 2002, "heartbeats": 2000, "quarantine": 2}
    CLOCK.sleep(1.1)
    ticking.track()
    assert ticking.land().skip_message == "nothing to land"

"""A contract that is wrong parks a topic; once the settings are mended, a requeue lands it and its windows are computed
again."""

from pathlib import Path

import dagster as dg

from tests.dagster.house import FIELDS, PUBSUB, SECOND, ModelWorld, Ticking, beats_between, publish, settings_of
from tests.dagster.test_sensors import MINUTE, WINDOWS_OF_BACKLOG, backlog_start
from tests.lake.builders import put, version_of
from tidemark.assets.requeue import MOST_REQUESTS
from tidemark.assets.scheduler.turns import PATIENCE
from tidemark.pipeline.clock import iso
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.requeue import Requeue, Requeuer
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, CONTRACT, REQUEUE, op_of
from tidemark.pipeline.quality.recent import read_reasons
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import ON_CHANGE, QuarantineSettings


def requeue(ticking: Ticking) -> Requeue:
    return Requeuer.of(ticking.lake(), HeartbeatReader(ticking.settings.contract), ticking.clock).run()


def compute(ticking: Ticking, name: str) -> list[str]:
    """Note the windows that wait as computed from what has landed; their keys."""
    lake, keys = ticking.lake(), [window.key for window in ticking.waiting()]
    version = version_of(lake.heartbeats())
    assert version is not None
    put(lake.diffs(), name, keys, version, ticking.clock.now())
    return keys


def checks(data: object) -> dict[str, dg.AssetCheckEvaluation]:
    events = data.asset_events  # type: ignore[attr-defined]
    return {event.check_name: event for event in events if isinstance(event, dg.AssetCheckEvaluation)}


def test_what_a_wrong_contract_parked_lands_once_it_is_right_and_is_computed(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    world, right = ModelWorld(PUBSUB), settings_of(PUBSUB, tmp_path)
    wrong = right.model_copy(update={"message": MessageSettings(stream_id="attribute:sensor", fields=FIELDS)})
    start = backlog_start(world.clock)
    beats = beats_between(start, start + WINDOWS_OF_BACKLOG * MINUTE)
    publish(world, wrong, beats)
    both = [
        {"sensor": "known", "stream_id": "known", "event_time": iso(start + number * MINUTE)}
        for number in range(WINDOWS_OF_BACKLOG)
    ]
    publish(world, wrong, [], broken=both)

    ticking = Ticking(wrong, instance, world.clock, world)
    ticking.land_and_close()
    computed = compute(ticking, "under-the-wrong-contract")
    assert len(computed) >= WINDOWS_OF_BACKLOG, "and the silence that closed them"
    before = ticking.tick("staleness")
    parked = checks(before)["quarantine_share"]
    assert (parked.passed, parked.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert parked.metadata["quarantined"].value == len(beats)
    assert "NO_STREAM_ID: attribute:sensor is absent" in (parked.description or "")
    assert before.run_requests == []

    ticking = Ticking(right, instance, world.clock, world)
    done = requeue(ticking)
    assert (done.landed, done.late) == (len(beats), len(beats))
    assert [requeue(ticking).landed for _ in range(2)] == [0, 0]
    landed = ticking.lake().heartbeats().current()
    assert landed is not None
    rows = landed.to_pyarrow_table(columns=["stream_id", "event_time", "message_id"]).to_pylist()
    assert len({row["message_id"] for row in rows}) == len(rows) == len(beats) + len(both)
    assert {(row["stream_id"], row["event_time"]) for row in rows} >= set(beats)
    counts = read_reasons(ticking.lake())
    assert (counts.waiting, counts.requeued) == ({}, {"NO_STREAM_ID": len(beats)})

    after = ticking.tick("staleness")
    if not after.run_requests:  # a live window is about to close: older ones wait so long at most
        world.clock.advance(PATIENCE)
    (request,) = after.run_requests or ticking.tick("staleness").run_requests or []
    assert request.run_config["ops"][op_of(COMPUTE_WINDOWS)]["config"]["windows"] == [f"{computed[0]}..{computed[-1]}"]
    assert checks(after)["missed"].metadata["missed"].value == len(beats)
    assert checks(after)["lost_outside"].passed
    world.clock.advance(3600 * SECOND)
    assert checks(ticking.tick("staleness"))["quarantine_share"].passed


def test_a_field_that_no_payload_has_and_one_of_another_kind_are_warned_of(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    world, settings = ModelWorld(PUBSUB), settings_of(PUBSUB, tmp_path)
    fields = {"temperature": "number", "humidity": "number", "status": "boolean"}
    message = MessageSettings(fields=fields)  # type: ignore[arg-type]
    settings = settings.model_copy(update={"message": message})
    start = backlog_start(world.clock)
    publish(world, settings, beats_between(start, start + MINUTE))
    ticking = Ticking(settings, instance, world.clock, world)
    ticking.land_and_close()
    found = checks(ticking.tick("staleness"))["fields_present"]
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert found.metadata["null_fields"].value == "humidity, status"
    assert found.metadata["null_rows"].value == {"humidity": 4, "status": 4}
    assert "humidity is null in all 4 rows that landed since" in (found.description or "")
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


def requested(ticking: Ticking) -> list[dg.RunRequest]:
    return list(ticking.tick(REQUEUE).run_requests or [])


def test_a_contract_that_has_changed_is_noticed_once_and_a_run_lands_what_passes(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    world = ModelWorld(PUBSUB)
    wrong, right = by_itself(tmp_path, WRONG), by_itself(tmp_path, RIGHT)
    ticking = Ticking(wrong, instance, world.clock, world)
    assert requested(ticking) == [], "the first look notes the contract"
    count = park(world, ticking)
    ticking.restart()
    assert requested(ticking) == [], "it is the same one"

    mended = Ticking(right, instance, world.clock, world)
    (request,) = requested(mended)
    assert request.tags[CONTRACT] == right.contract_digest[:12]
    at_work = mended.run(REQUEUE, dg.DagsterRunStatus.STARTED)
    assert "judges quarantine again" in (mended.tick(REQUEUE).skip_message or "")
    instance.report_run_canceled(at_work)

    result = mended.definitions.resolve_job_def(REQUEUE).execute_in_process(instance=instance)
    (landed,) = [event for event in result.all_events if event.is_step_materialization]
    assert landed.materialization.metadata["rows"].value == count
    assert mended.lake().heartbeats().extent().rows == count
    for _ in range(2):
        assert requested(mended) == []
        mended.restart()
    assert requested(Ticking(wrong, instance, world.clock, world)) != [], "going back is a change"


def test_by_hand_there_is_no_sensor_and_a_requeue_by_hand_counts_as_the_look(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    world = ModelWorld(PUBSUB)
    by_hand = Ticking(settings_of(PUBSUB, tmp_path), instance, world.clock, world)
    assert {sensor.name for sensor in by_hand.definitions.sensors or ()} == {
        "tracking",
        "landing",
        "ingest",
        "staleness",
    }
    ticking = Ticking(by_itself(tmp_path, WRONG), instance, world.clock, world)
    requested(ticking)
    park(world, ticking)
    ticking.lake().judged_by().note(by_itself(tmp_path, RIGHT).contract_digest, world.clock.now())
    assert requested(Ticking(by_itself(tmp_path, RIGHT), instance, world.clock, world)) == []


def test_runs_that_keep_failing_are_requested_a_few_times(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world = ModelWorld(PUBSUB)
    wrong = Ticking(by_itself(tmp_path, WRONG), instance, world.clock, world)
    requested(wrong)
    park(world, wrong)
    ticking = Ticking(by_itself(tmp_path, RIGHT), instance, world.clock, world)
    for _ in range(MOST_REQUESTS):
        assert len(requested(ticking)) == 1
        ticking.run(REQUEUE, dg.DagsterRunStatus.FAILURE)
        world.clock.advance(60 * MINUTE)  # longer than any pause after a failure
    assert "none has ended well" in (ticking.tick(REQUEUE).skip_message or "")


def test_an_empty_quarantine_needs_no_run(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    world = ModelWorld(PUBSUB)
    for message in (WRONG, RIGHT):
        ticking = Ticking(by_itself(tmp_path, message), instance, world.clock, world)
        assert requested(ticking) == []
        assert ticking.lake().judged_by().digest() == ticking.settings.contract_digest

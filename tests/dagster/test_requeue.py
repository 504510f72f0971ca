"""A contract that is wrong parks a topic; once the settings are mended, a requeue lands it."""

from pathlib import Path

import dagster as dg

from tests.dagster.house import FIELDS, PUBSUB, ModelWorld, Ticking, beats_between, publish, settings_of
from tests.dagster.test_sensors import MINUTE, backlog_start
from tidemark.assets.requeue import MOST_REQUESTS
from tidemark.pipeline.orchestrator.names import CONTRACT, REQUEUE
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import ON_CHANGE, QuarantineSettings


def checks(data: object) -> dict[str, dg.AssetCheckEvaluation]:
    events = data.asset_events  # type: ignore[attr-defined]
    return {event.check_name: event for event in events if isinstance(event, dg.AssetCheckEvaluation)}


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
    parked = checks(ticking.tick("staleness"))["quarantine_share"]
    assert (parked.passed, parked.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert parked.metadata["quarantined"].value == count
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


def test_a_requeue_by_hand_counts_as_the_look_and_an_empty_quarantine_needs_no_run(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    world = ModelWorld(PUBSUB)
    for message in (WRONG, RIGHT, WRONG):
        ticking = Ticking(by_itself(tmp_path, message), instance, world.clock, world)
        assert requested(ticking) == []
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

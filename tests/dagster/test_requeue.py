"""A contract that is wrong parks a topic; once the settings are mended, a requeue lands it and its windows are computed
again."""

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.house import FIELDS, SECOND, ModelWorld, Ticking, beats_between, publish, settings_of
from tests.dagster.test_sensors import MINUTE, PUBSUB, WINDOWS_OF_BACKLOG, backlog_start
from tidemark.assets.requests import BACKLOG_OP
from tidemark.pipeline.clock import iso
from tidemark.pipeline.heartbeat import HeartbeatReader
from tidemark.pipeline.lake.tables.windowed import DiffRun
from tidemark.pipeline.settings_sections import MessageSettings
from tidemark.pipeline.ticks.requeue import Requeue, Requeuer


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def requeue(ticking: Ticking) -> Requeue:
    lake, reader = ticking.lake(), HeartbeatReader(ticking.settings.contract)
    parts = lake.quarantine(), lake.heartbeats(), lake.requeued(), lake.tracking_log()
    return Requeuer(*parts, reader, ticking.clock).run()


def compute(ticking: Ticking, name: str) -> list[str]:
    """Note the windows that wait as computed from what has landed; their keys."""
    lake = ticking.lake()
    landed, diffs = lake.heartbeats().pinned(), lake.diffs()
    keys = [window.key for window in ticking.report().waiting]
    assert landed is not None
    run = DiffRun(name, keys, landed.version(), ticking.clock.now(), ticking.clock.now())
    fence = diffs.fence(keys)
    diffs.leave_manifest(run)
    diffs.replace(run, fence)
    return keys


def checks(data: object) -> dict[str, dg.AssetCheckEvaluation]:
    events = data.asset_events  # type: ignore[attr-defined]
    return {event.check_name: event for event in events if isinstance(event, dg.AssetCheckEvaluation)}


def test_a_topic_that_a_wrong_contract_parked_is_in_heartbeats_once_it_is_mended_and_its_windows_are_computed_again(
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
    assert "NO_STREAM_ID: attribute:sensor is absent or empty" in (parked.description or "")
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
    counts = ticking.report().quarantined
    assert (counts.waiting, counts.requeued) == ({}, {"NO_STREAM_ID": len(beats)})

    after = ticking.tick("staleness")
    (request,) = after.run_requests or []
    assert request.run_config["ops"][BACKLOG_OP]["config"]["windows"] == [f"{computed[0]}..{computed[-1]}"]
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

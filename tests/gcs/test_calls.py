"""What a tick asks of Cloud Storage, and how the ticks bear its faults."""

from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from tests.gcs.fault_proxy import Fault, FaultProxy, table
from tests.gcs.ticking import TickingOnABucket
from tidemark.pipeline.errors import LakeUnreachable, LakeUnwritable
from tidemark.pipeline.lake.store import gcs
from tidemark.pipeline.lake.store.address import BOUNDS
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.upkeep import table_chores

pytestmark = pytest.mark.gcs

MOST_CLASS_A, MOST_CLASS_B = 9, 12
"""Calls of a tracking and a landing tick together that the operations page promises."""

COMMIT, DATA = "create lake/(heartbeats|quarantine)/_delta_log", r"create lake/(heartbeats|quarantine)/\w+="
ENTRY, NOTE = "create lake/tracking", "create lake/log_witness"
READING = r"storage\.objects\.get"
KINDS = [COMMIT, DATA, ENTRY, NOTE, READING]
"""Expressions for calls, by what they read or write."""


@pytest.fixture
def world(tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy) -> TickingOnABucket:
    """A lake with a few ticks behind it, without a permission on the bucket itself; all of its parts are open."""
    proxy.play(Fault(r"storage\.buckets\.", status=403))
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    world.compute("first")
    for _ in range(2):
        world.publish()
        world.tick()
    assert not [call for call in proxy.calls() if call.permission.startswith("storage.buckets")]
    proxy.play()
    return world


def test_a_tick_stays_within_its_budget_of_calls(world: TickingOnABucket, proxy: FaultProxy) -> None:
    for _ in range(3):
        world.publish()
        world.tick()
        calls = proxy.calls()
        found = Counter(call.price_class for call in calls)
        assert found["A"] <= MOST_CLASS_A, sorted(table(calls).items())
        assert found["B"] <= MOST_CLASS_B, sorted(table(calls).items())
        assert {call.permission for call in calls} == {
            f"storage.objects.{verb}" for verb in ("create", "delete", "get")
        }
    world.tick()  # which lands nothing, lists nothing and writes its decision
    assert {kind: count for kind, count in table(proxy.calls()).items() if kind[0] == "A"} == {
        ("A", "storage.objects.create", place): 1 for place in ("tracking/log", "log_witness", "watermark.json")
    }
    world.check_that_all_is_there_once()


def test_calls_that_are_refused_for_now_are_made_again(world: TickingOnABucket, proxy: FaultProxy) -> None:
    world.publish()
    proxy.play(*(Fault(calls, status=status, times=1) for calls in KINDS for status in (429, 503)))
    world.tick()
    refused = Counter(call.status for call in proxy.calls())
    assert (refused[429], refused[503]) == (len(KINDS), len(KINDS))
    world.check_that_all_is_there_once()


def test_a_lost_answer_neither_loses_nor_doubles_anything(world: TickingOnABucket, proxy: FaultProxy) -> None:
    for kinds in ([COMMIT, ENTRY], [DATA, NOTE], [READING]):
        world.publish()
        proxy.play(*(Fault(calls, loses_answer=True, times=1) for calls in kinds))
        world.tick()
        proxy.play()
        world.publish()
        world.tick()
        world.check_that_all_is_there_once()


def test_a_lost_answer_to_a_deletion_of_an_old_commit_is_not_damage(
    world: TickingOnABucket, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_chores, "SPARE", timedelta(0))
    table = world.behind_proxy.table("heartbeats")
    proxy.play(Fault("DELETE .*/_delta_log/", loses_answer=True, times=1))
    assert table_chores.trim(table, timedelta(0))["commits"]
    world.publish()
    world.tick()
    world.check_that_all_is_there_once()


def test_a_missing_permission_is_named_with_the_role_that_has_it(world: TickingOnABucket, proxy: FaultProxy) -> None:
    for calls, needed in (
        (COMMIT, r"/lake/quarantine/_delta_log/.*: storage.objects.create is needed"),
        (DATA, r"/lake/heartbeats/event_hour=.*: storage.objects.create is needed"),
    ):
        world.publish()
        proxy.play(Fault(calls, status=403))
        with pytest.raises(LakeUnwritable, match=needed) as raised:
            world.land()
        assert "roles/storage.objectUser on gs://tidemark-" in str(raised.value)
        proxy.play()
        world.wait(60)
        world.tick()
        world.check_that_all_is_there_once()


def test_a_server_that_does_not_answer_is_given_up_by_name_and_the_next_tick_goes_on(
    tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gcs.ONCE, "timeout", 0.5)
    monkeypatch.setattr(gcs.CloudStorageObjects.__init__, "__kwdefaults__", {"retry_for": timedelta(seconds=1)})
    for option, value in {"timeout": "500ms", "retry_timeout": "1s", "max_retries": "1"}.items():
        monkeypatch.setitem(BOUNDS, option, value)
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    world.publish()
    world.tick()
    for calls in (COMMIT, DATA, ENTRY):
        world.publish()
        proxy.play(Fault(calls, delay=3))
        with pytest.raises(LakeUnreachable, match=r"gs://tidemark-\w+/lake/"):
            world.tick()
        proxy.play()
        world.wait(120)
        world.tick()
        assert set(world.landed_ids()) == set(world.published)
        assert set(world.quarantined_ids()) == set(world.rejected)

"""What a tick asks of Cloud Storage, how the ticks bear its faults, and that nobody stands still for an answer."""

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.gcs.fault_proxy import Call, Fault, FaultProxy, table
from tests.gcs.ticking import TickingOnABucket
from tests.watermark.builders import START
from tidemark.pipeline.errors import LakeUnreachable, LakeUnwritable
from tidemark.pipeline.lake.store import gcs
from tidemark.pipeline.lake.store.address import BOUNDS
from tidemark.pipeline.lake.tables.delta_log import commits, logged
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

MOST_CLASS_A, MOST_CLASS_B = 15, 24
"""Calls of a tracking and a landing tick together that the operations page promises."""

LONGEST_PAUSE_SECONDS = 3.0
LOOKS_EVERY_SECONDS = 0.05

COMMIT, DATA = "create lake/(heartbeats|quarantine)/_delta_log", r"create lake/(heartbeats|quarantine)/\w+="
ENTRY, NOTE = "create lake/tracking", "create lake/log_witness"
READINGS = [r"storage\.objects\.get", r"storage\.objects\.list"]
KINDS = [COMMIT, DATA, ENTRY, NOTE, *READINGS]
"""Expressions for calls, by what they read or write."""


@pytest.fixture
def world(tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy) -> TickingOnABucket:
    """A lake with a few ticks behind it, and a process that has all of its parts open."""
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    world.compute("first")
    for _ in range(2):
        world.publish()
        world.tick()
    proxy.calls()
    return world


def by_class(calls: list[Call]) -> Counter[str]:
    return Counter(call.price_class for call in calls)


def test_a_tick_stays_within_its_budget_of_calls(world: TickingOnABucket, proxy: FaultProxy) -> None:
    for _ in range(3):
        world.publish()
        world.tick()
        calls = proxy.calls()
        found = by_class(calls)
        assert found["A"] <= MOST_CLASS_A, sorted(table(calls).items())
        assert found["B"] <= MOST_CLASS_B, sorted(table(calls).items())
        assert {call.permission for call in calls} == {
            f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")
        }
    world.check_that_all_is_there_once()


def test_a_tick_that_lands_nothing_lists_nothing_and_writes_its_decision(
    world: TickingOnABucket, proxy: FaultProxy
) -> None:
    world.tick()
    found = table(proxy.calls())
    assert {kind: count for kind, count in found.items() if kind[0] == "A"} == {
        ("A", "storage.objects.create", "tracking/log"): 1,
        ("A", "storage.objects.create", "log_witness"): 1,
        ("A", "storage.objects.create", "watermark.json"): 1,
    }


def test_a_lake_needs_no_permission_on_the_bucket_itself(
    tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy
) -> None:
    proxy.play(Fault(r"storage\.buckets\.", status=403))
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    for name in ("first", "second"):
        world.publish()
        world.tick()
        world.compute(name)  # the first write of a new range
    assert not [call for call in proxy.calls() if call.permission.startswith("storage.buckets")]
    world.check_that_all_is_there_once()


@pytest.mark.parametrize("status", [429, 503])
def test_calls_that_are_refused_for_now_are_made_again(world: TickingOnABucket, proxy: FaultProxy, status: int) -> None:
    world.publish()
    proxy.play(*(Fault(calls, status=status, times=2) for calls in KINDS))
    world.tick()
    assert [call.status for call in proxy.calls()].count(status) == 2 * len(KINDS)
    world.check_that_all_is_there_once()


@pytest.mark.parametrize("kinds", [[COMMIT, ENTRY], [DATA, NOTE], READINGS], ids=["commits", "files", "readings"])
def test_an_answer_that_is_lost_after_success_neither_loses_nor_doubles_anything(
    world: TickingOnABucket, proxy: FaultProxy, kinds: list[str]
) -> None:
    world.publish()
    proxy.play(*(Fault(calls, loses_answer=True, times=1) for calls in kinds))
    world.tick()
    proxy.play()
    world.publish()
    world.tick()
    world.check_that_all_is_there_once()


@pytest.mark.parametrize(
    ("calls", "needed"),
    [
        (COMMIT, r"storage.objects.create of lake/quarantine/_delta_log/"),
        (DATA, r"/lake/heartbeats/event_hour=.*: storage.objects.create is needed"),
        (READINGS[1], r"storage.objects.list"),
    ],
    ids=["commit", "file", "listing"],
)
def test_a_permission_that_is_missing_is_named_with_the_role_that_has_it(
    world: TickingOnABucket, proxy: FaultProxy, calls: str, needed: str
) -> None:
    world.publish()
    proxy.play(Fault(calls, status=403))
    with pytest.raises(LakeUnwritable, match=needed) as raised:
        world.land()
    assert "roles/storage.objectUser on gs://tidemark-" in str(raised.value)
    proxy.play()
    world.wait(60)
    world.tick()
    world.check_that_all_is_there_once()


@pytest.mark.parametrize("calls", [COMMIT, DATA, ENTRY], ids=["commit", "file", "entry"])
def test_a_server_that_does_not_answer_is_given_up_by_name_and_the_next_tick_goes_on(
    tmp_path: Path, lake_apart: LakeSettings, proxy: FaultProxy, calls: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(gcs.ONCE, "timeout", 0.5)
    monkeypatch.setattr(gcs.CloudStorageObjects.__init__, "__kwdefaults__", {"retry_for": timedelta(seconds=1)})
    for option, value in {"timeout": "500ms", "retry_timeout": "1s", "max_retries": "1"}.items():
        monkeypatch.setitem(BOUNDS, option, value)
    world = TickingOnABucket(tmp_path, lake_apart, proxy)
    world.publish()
    world.tick()
    world.publish()
    proxy.play(Fault(calls, delay=3))
    with pytest.raises(LakeUnreachable, match=r"gs://tidemark-\w+/lake/"):
        world.tick()
    proxy.play()
    world.wait(120)
    world.tick()
    assert set(world.landed_ids()) == set(world.published)
    assert set(world.quarantined_ids()) == set(world.rejected)


class Pauses:
    """A thread that looks at the time again and again, as a lease's keeper does; `longest` is its longest pause."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._done = Event()
        self._thread = Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        last = time.monotonic()
        while not self._done.is_set():
            time.sleep(LOOKS_EVERY_SECONDS)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now

    def __enter__(self) -> "Pauses":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()


def what_the_code_server_asks(world: TickingOnABucket) -> list[Callable[[], object]]:
    """All that its threads ask of a lake, the ticks included."""
    lake, opened = world.behind_proxy, world.behind_proxy.heartbeats()
    assert opened.current() is not None
    stale = lake.window_index(*world.windows).update()
    streams = lake.streams()
    streams.save()
    return [
        world.tick,
        lake.heartbeats().current,
        opened.current,
        lambda: lake.heartbeats().at(1),
        lambda: lake.heartbeats().published_between(START, world.clock.now()),
        lambda: commits(opened, 0, 1),
        lambda: logged(opened),
        lake.quarantine().reasons,
        lake.tracking_log().catch_up,
        lake.tracking_log().newest,
        stale.update,
        streams.known,
        lake.diffs().computed,
    ]


def hanging(seconds: float) -> list[Fault]:
    """The first calls of each kind, that many, hang for so long."""
    kinds = {"get": 16, "list": 6, "create": 2}
    return [Fault(rf"storage\.objects\.{kind}", delay=seconds, times=kinds[kind]) for kind in kinds]


def test_no_thread_stands_still_while_another_waits_for_an_answer(world: TickingOnABucket, proxy: FaultProxy) -> None:
    world.publish()
    asked = what_the_code_server_asks(world)
    proxy.play(*hanging(5))
    with Pauses() as pauses, ThreadPoolExecutor(len(asked)) as threads:
        for done in [threads.submit(ask) for ask in asked]:
            done.result()
    assert pauses.longest < LONGEST_PAUSE_SECONDS
    world.check_that_all_is_there_once()

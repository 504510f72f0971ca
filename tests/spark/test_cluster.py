"""A cluster whose executors' Python lacks tidemark: what it says without the archive, and what runs with it, on both
kinds of session, also when a worker is killed on the way."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.quick import classic
from tests.spark.cluster_client import SPREAD
from tests.spark.pubsub_world import PubSubWorld
from tests.spark.standalone import SECRET, Cluster, bare_python, cluster, connect_server
from tests.spark.test_micro_batch import House
from tidemark.local.services.stack import TOKEN
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings, SparkSettings
from tidemark.pipeline.spark.executor_archive import pack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MESSAGES = 20_000
WORKS_WITHIN_SECONDS = 400
STREAMS = 3
BRINGING = "connect, to a server that brings the archive"


@dataclass
class Place:
    """A cluster, and the settings by which clients use it."""

    spread: Cluster
    spark: SparkSettings

    def start(self, *work: tuple[str, dict[str, Any]], python: Path | None = None) -> "subprocess.Popen[str]":
        """A client that does the work. `python` is what its environment calls the executors' Python."""
        return subprocess.Popen(
            [*(sys.executable, "-m", "tests.spark.cluster_client"), self.spark.model_dump_json(), json.dumps(work)],
            env={**os.environ, TOKEN: SECRET, "PYSPARK_PYTHON": str(python or sys.executable)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def do(self, *work: tuple[str, dict[str, Any]], python: Path | None = None) -> list[dict[str, Any]]:
        return answer_of(self.start(*work, python=python))

    def fails(self, *work: tuple[str, dict[str, Any]]) -> str:
        """What a client says that cannot do the work."""
        client = self.start(*work)
        problems = client.communicate(timeout=WORKS_WITHIN_SECONDS)[1]
        assert client.returncode, "it worked"
        return problems


def answer_of(client: "subprocess.Popen[str]") -> list[dict[str, Any]]:
    """What a client says in the end."""
    try:
        said, problems = client.communicate(timeout=WORKS_WITHIN_SECONDS)
    finally:
        client.kill()
    assert client.returncode == 0, problems[-5000:]
    answers: list[dict[str, Any]] = json.loads(said)
    return answers


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("packed") / "executors.tar.gz"
    pack(file)
    return file


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster for classic sessions, one after another."""
    with cluster(tmp_path_factory.mktemp("cluster"), python=bare_python()) as running:
        yield running


@pytest.fixture(params=["classic", "connect"])
def place(request: pytest.FixtureRequest, archive: Path, tmp_path: Path) -> Iterator[Place]:
    """Executors get the archive. A Connect server keeps a cluster's cores for as long as it runs, so it has its own."""
    if request.param == "classic":
        spread = request.getfixturevalue("spread")
        yield Place(spread, spread.classic(executor_environment=str(archive)))
        for app in spread.folder.glob("worker-*/app-*"):
            shutil.rmtree(app, ignore_errors=True)  # each has a gigabyte
        return
    with ExitStack() as stack:
        spread = stack.enter_context(cluster(tmp_path, python=bare_python()))
        brought = {"executor_environment": str(archive)} if request.param == BRINGING else {}
        address = stack.enter_context(connect_server(tmp_path, spread, spread.connected(**brought)))
        yield Place(spread, SparkSettings(remote=address, executor_environment=str(archive)))


@pytest.fixture
def world(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> PubSubWorld:
    return PubSubWorld(subscriber, publisher, fresh_pubsub, tmp_path)


def landed_in(folder: Path) -> list[str]:
    """The ids of the messages in a lake; a copy counts."""
    table = Lake(LakeSettings(uri=f"file:{folder}"), {}, SystemClock()).heartbeats().current()
    return [] if table is None else table.to_pyarrow_table(columns=["message_id"])["message_id"].to_pylist()


def lake_with_beats(folder: Path) -> Path:
    """A lake with three heartbeats of each stream in each window of SPREAD."""
    first = SPREAD[0].start
    starts = [(window.start - first).total_seconds() for window in SPREAD]
    house = House(folder, None)  # type: ignore[arg-type]  # nothing is computed here
    house.land(
        *((f"s{stream}", start + 60 * beat) for start in starts for stream in range(STREAMS) for beat in (1, 2, 3))
    )
    return folder


def rows_of(folder: Path) -> bytes:
    return House(folder, None).rows()  # type: ignore[arg-type]


def until(client: "subprocess.Popen[str]", what: str, reached: Callable[[], bool]) -> None:
    """Wait while the client works."""
    limit = time.monotonic() + WORKS_WITHIN_SECONDS
    while not reached():
        assert client.poll() is None, f"the client ended before: {what}; {client.communicate()[1][-3000:]}"
        assert time.monotonic() < limit, f"not within {WORKS_WITHIN_SECONDS} s: {what}"
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_without_the_archive_everything_is_refused_before_anything_is_pulled_or_visible(
    spread: Cluster, world: PubSubWorld, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.publish(100)
    lake = lake_with_beats(tmp_path / "windows")
    pubsub = world.settings.model_dump(mode="json")
    work = (
        ("windows", {"lake": str(lake)}),
        ("windows", {"lake": str(lake), "is_late": True}),
        ("rounds", {"pubsub": pubsub, "lake": str(world.lake), "messages": 100}),
        ("pubsub", {"options": world.options(), "folder": str(tmp_path)}),
    )
    if kind == "classic":
        answers = Place(spread, spread.classic()).do(*work, python=bare_python())
    else:
        monkeypatch.setenv("PYSPARK_PYTHON", str(bare_python()))  # which the server hands to executors
        with cluster(tmp_path) as own, connect_server(tmp_path, own) as address:
            answers = Place(own, SparkSettings(remote=address)).do(*work)
    assert len(answers) == len(work)
    for said in answers:
        assert "Spark's executors cannot run tidemark" in said["refused"]
        assert f"{bare_python()} on " in said["refused"]
        assert "No module named 'tidemark'" in said["refused"]
        assert "tidemark provision --executors executors.tar.gz" in said["refused"]
    assert len(list((lake / "diff_runs").iterdir())) == 1, "the first run left a manifest"
    assert House(lake, None).lake.diffs().computed() == set()  # type: ignore[arg-type]
    assert landed_in(world.lake) == []
    assert not world.is_quiet(is_tracked=True)


@pytest.mark.parametrize("place", ["classic", "connect", BRINGING], indirect=True)
def test_windows_have_the_same_rows_as_on_this_machine_although_a_worker_is_killed(
    place: Place, tmp_path: Path
) -> None:
    here, there = lake_with_beats(tmp_path / "here"), lake_with_beats(tmp_path / "there")
    local = Place(place.spread, classic("local[2]"))
    assert local.do(("windows", {"lake": str(here)})) == [{"rows": STREAMS * 3 * len(SPREAD)}]
    client = place.start(("windows", {"lake": str(there)}))
    until(client, "tasks have written", lambda: len(list((there / "heartbeat_diffs").rglob("*.parquet"))) > 20)
    place.spread.kill_worker(0)
    is_computed = bool(House(there, None).lake.diffs().computed())  # type: ignore[arg-type]
    assert not is_computed, "it was killed after the end"
    assert answer_of(client) == [{"rows": STREAMS * 3 * len(SPREAD)}]
    assert rows_of(there) == rows_of(here)
    assert place.spread.workers_that_ran() == {"worker-0", "worker-1"}
    place.spread.restart_worker(0)


@pytest.mark.parametrize("killed", ["worker", "driver"])
def test_rounds_land_everything_although_a_worker_or_the_driver_is_killed(
    place: Place, world: PubSubWorld, killed: str
) -> None:
    work = (
        "rounds",
        {"pubsub": world.settings.model_dump(mode="json"), "lake": str(world.lake), "messages": 2 * MESSAGES},
    )
    world.publish(MESSAGES)
    client = place.start(work)
    until(client, "a round is visible", lambda: len(landed_in(world.lake)) > 0)
    world.publish(MESSAGES)
    time.sleep(1.5)  # into a round
    if killed == "worker":
        place.spread.kill_worker(1)
    else:
        client.kill()
        client.communicate()
        client = place.start(work)
    (said,) = answer_of(client)
    assert said["rounds"] > 0
    assert set(landed_in(world.lake)) == set(world.published)
    assert world.is_quiet(is_tracked=True)
    if killed == "worker":
        place.spread.restart_worker(1)


def test_batches_of_the_source_bring_everything(place: Place, world: PubSubWorld) -> None:
    world.publish(2000)
    (said,) = place.do(("batches", {"options": world.options(maxMessages="500", batchMessages="250", readers="2")}))
    assert sorted(set().union(*said["batches"])) == sorted(world.published)
    assert world.is_quiet()


@pytest.mark.parametrize("place", ["classic", BRINGING], indirect=True)
def test_a_stream_of_the_source_brings_everything(place: Place, world: PubSubWorld, tmp_path: Path) -> None:
    world.publish(2000)
    options = world.options(maxMessages="500", batchMessages="250", readers="2")
    (said,) = place.do(("pubsub", {"options": options, "folder": str(tmp_path)}))
    first, again = said["batches"]
    assert 0 < len(first) <= 1000
    assert again == first
    assert sorted(first + said["streamed"]) == sorted(world.published)
    assert world.is_quiet()


@pytest.mark.parametrize("place", ["connect"], indirect=True)
def test_a_stream_that_would_not_find_the_archive_is_refused_before_anything_is_pulled(
    place: Place, world: PubSubWorld, tmp_path: Path
) -> None:
    world.publish(100)
    (said,) = place.do(("stream", {"options": world.options(), "folder": str(tmp_path)}))
    assert "cannot use an archive that the session sent" in said["refused"]
    assert "spark.archives=executors.tar.gz#tidemark_environment" in said["refused"]
    assert not world.is_quiet()

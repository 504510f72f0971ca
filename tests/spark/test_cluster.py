"""A cluster whose executors' Python lacks tidemark: what it says without the archive, and what runs with it, on both
kinds of session, also when a worker or the driver is killed on the way."""

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
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client as StorageClient
from pyspark.sql import SparkSession

from tests.gcs.tools import gcs_connector
from tests.spark.cluster_client import SPREAD
from tests.spark.pubsub_world import PubSubWorld
from tests.spark.rounds import landed, settings_of
from tests.spark.standalone import OF_PYSPARK, SECRET, Cluster, bare_python, cluster, connect_server
from tests.spark.test_micro_batch import House
from tidemark.local.services.stack import TOKEN
from tidemark.pipeline.lake.store.address import spark_storage_config
from tidemark.pipeline.settings_sections import LakeSettings, SparkSettings
from tidemark.pipeline.spark import executor_archive
from tidemark.pipeline.spark.connector import JARS
from tidemark.pipeline.spark.executors import PYTHON

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MESSAGES = 5_000
WORKS_WITHIN_SECONDS = 300
STREAMS = 3
RIGHT = {"rows": STREAMS * 3 * len(SPREAD)}
BRINGING = "connect, to a server that brings the archive"
Client = subprocess.Popen[str]


def start(spark: SparkSettings, *work: tuple[str, dict[str, Any]]) -> Client:
    """A client that does the work."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.cluster_client", spark.model_dump_json(), json.dumps(work)],
        env={**os.environ, TOKEN: SECRET, "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers_of(client: Client) -> list[dict[str, Any]]:
    """What a client says in the end."""
    try:
        said, problems = client.communicate(timeout=WORKS_WITHIN_SECONDS)
    finally:
        client.kill()
    assert client.returncode == 0, problems[-5000:]
    return json.loads(said)


def until(client: Client, what: str, reached: Callable[[], bool]) -> None:
    """Wait while the client works."""
    limit = time.monotonic() + WORKS_WITHIN_SECONDS
    while not reached():
        assert client.poll() is None, f"it ended before: {what}; {[said[-3000:] for said in client.communicate()]}"
        assert time.monotonic() < limit, f"not within {WORKS_WITHIN_SECONDS} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive without the packages that `bare_python` has in the same versions, and compressed in little time: each
    executor unpacks it. `test_executor_archive.py` runs all of it."""
    file = tmp_path_factory.mktemp("packed") / "executors.tar.gz"
    packed = {name: one for name, one in executor_archive.distributions().items() if name not in OF_PYSPARK}
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(executor_archive, "COMPRESSION", 1)
        quick.setattr(executor_archive, "distributions", lambda: packed)
        executor_archive.pack(file)
    return file


@pytest.fixture(scope="module")
def spread(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@dataclass
class Place:
    """A cluster, the settings of its clients with the archive and without, and whether its streams find no archive."""

    spread: Cluster
    spark: SparkSettings
    without: SparkSettings
    refuses_streams: bool


@pytest.fixture(scope="module", params=["classic", "connect", BRINGING])
def place(
    request: pytest.FixtureRequest, spread: Cluster, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """One after another: a session or a server keeps all cores of the cluster for as long as it runs."""
    with ExitStack() as stack:
        given: dict[str, Any] = spread.classic().model_dump()
        if request.param != "classic":
            brought = {"executor_environment": str(archive)} if request.param == BRINGING else {}
            server = connect_server(tmp_path_factory.mktemp("server"), spread, spread.connected(**brought))
            given = {"remote": stack.enter_context(server), "config": {}}
        lacking = SparkSettings.model_validate({**given, "config": {**given["config"], PYTHON: str(bare_python())}})
        carrying = SparkSettings.model_validate({**given, "executor_environment": str(archive)})
        yield Place(spread, carrying, lacking, refuses_streams=request.param == "connect")
    for app in spread.folder.glob("worker-*/app-*"):
        shutil.rmtree(app, ignore_errors=True)  # each has a gigabyte


def house_with_beats(folder: Path, spark: SparkSession | None = None) -> House:
    """A lake with three heartbeats of each stream in each window of SPREAD."""
    first = SPREAD[0].start
    starts = [(window.start - first).total_seconds() for window in SPREAD]
    house = House(folder, spark)  # type: ignore[arg-type]  # without a session, nothing is computed here
    house.land(
        *((f"s{stream}", start + 60 * beat) for start in starts for stream in range(STREAMS) for beat in (1, 2, 3))
    )
    return house


@pytest.fixture(scope="module")
def rows_here(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The rows that this machine computes."""
    here = house_with_beats(tmp_path_factory.mktemp("here"), spark)
    here.compute(SPREAD, watermark=SPREAD[-1].end)
    return here.rows()


@pytest.mark.parametrize("place", ["classic", "connect"], indirect=True)
def test_without_the_archive_all_is_refused_before_a_pull(place: Place, world: PubSubWorld, tmp_path: Path) -> None:
    world.publish(100)
    house = house_with_beats(tmp_path / "windows")
    pubsub = world.settings.model_dump(mode="json")
    work = (
        ("windows", {"lake": str(house.folder)}),
        ("windows", {"lake": str(house.folder), "is_late": True}),
        ("rounds", {"pubsub": pubsub, "lake": str(world.lake), "messages": 100}),
        ("source", {"options": world.options(), "folder": str(tmp_path)}),
    )
    answers = answers_of(start(place.without, *work))
    assert len(answers) == len(work)
    for said in answers:
        assert f"Spark's executors cannot run tidemark ({bare_python()} on " in said["refused"]
        assert "No module named 'tidemark'" in said["refused"]
        assert "tidemark provision --executors executors.tar.gz" in said["refused"]
    assert len(list((house.folder / "diff_runs").iterdir())) == 1, "the first run left a manifest"
    assert house.lake.diffs().computed() == set()
    assert landed(settings_of(world.settings, str(world.lake))) == []
    assert not world.is_quiet(is_tracked=True)


@pytest.mark.parametrize("place", ["classic", "connect"], indirect=True)
def test_rounds_land_everything_although_driver_and_worker_are_killed(place: Place, world: PubSubWorld) -> None:
    pubsub, settings = world.settings.model_dump(mode="json"), settings_of(world.settings, str(world.lake))
    work = ("rounds", {"pubsub": pubsub, "lake": str(world.lake), "messages": 3 * MESSAGES})
    world.publish(MESSAGES)
    client = start(place.spark, work)
    until(client, "a round is visible", lambda: len(landed(settings)) > 0)
    world.publish(MESSAGES)
    time.sleep(1.5)  # into a round
    client.kill()
    client.communicate()
    visible = len(landed(settings))
    client = start(place.spark, work)
    until(client, "another round is visible", lambda: len(landed(settings)) > visible)
    world.publish(MESSAGES)
    time.sleep(1.5)
    place.spread.kill_worker(1)
    place.spread.restart_worker(1)
    (said,) = answers_of(client)
    assert said["rounds"] > 0
    assert set(landed(settings)) == set(world.published)
    assert world.is_quiet(is_tracked=True)


def test_rows_are_right_if_a_worker_dies(place: Place, rows_here: bytes, world: PubSubWorld, tmp_path: Path) -> None:
    there = house_with_beats(tmp_path / "windows")
    world.publish(2000)
    options = world.options(maxMessages="500", batchMessages="250", readers="2")
    source = ("source", {"options": options, "folder": str(tmp_path)})
    client = start(place.spark, ("windows", {"lake": str(there.folder)}), source)
    until(client, "tasks have written", lambda: len(list((there.folder / "heartbeat_diffs").rglob("*.parquet"))) > 20)
    place.spread.kill_worker(0)
    assert not there.lake.diffs().computed(), "it was killed after the end"
    place.spread.restart_worker(0)
    computed, said = answers_of(client)
    assert computed == RIGHT
    assert there.rows() == rows_here
    assert place.spread.workers_that_ran() == {"worker-0", "worker-1"}
    first, again = said["batches"]
    assert 0 < len(first) <= 1000
    assert again == first
    if place.refuses_streams:
        assert "cannot use an archive that the session sent" in said["refused"]
        assert "spark.archives=executors.tar.gz#tidemark_environment" in said["refused"]
        assert not world.is_quiet()
    else:
        assert sorted(first + said["streamed"]) == sorted(world.published)
        assert world.is_quiet()


@pytest.mark.gcs
def test_an_archive_in_a_bucket_comes_by_the_connector(archive: Path, lake_apart: LakeSettings, tmp_path: Path) -> None:
    bucket = lake_apart.uri.split("/")[2]
    client = StorageClient("any", AnonymousCredentials(), client_options={"api_endpoint": lake_apart.endpoint})
    client.bucket(bucket).blob(archive.name).upload_from_filename(str(archive), timeout=300)
    carried = {"executor_environment": f"gs://{bucket}/{archive.name}"}
    work = [("windows", {"lake": str(house_with_beats(tmp_path / name).folder)}) for name in ("classic", "connect")]
    with cluster(tmp_path) as own:  # the shared one's cores belong to the last place's server
        able = {"config": own.classic().config | spark_storage_config(lake_apart) | {JARS: str(gcs_connector())}}
        assert "no Google connector" in start(own.classic(**carried), work[0]).communicate()[1]
        assert answers_of(start(own.classic(**(able | carried)), work[0])) == [RIGHT]
        with connect_server(tmp_path, own, own.connected(**(able | carried))) as address:
            assert answers_of(start(SparkSettings(remote=address, **carried), work[1])) == [RIGHT]
        with connect_server(tmp_path, own) as address:
            assert "no Google connector" in start(SparkSettings(remote=address, **carried), work[1]).communicate()[1]

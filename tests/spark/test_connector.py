"""The connector's JAR: fetched once, whole and checked, and the same for whichever Spark is started."""

import hashlib
import os
from pathlib import Path

import pytest

from tests.cli.command import said_here
from tests.http_server import Quiet, serving
from tests.official_emulator import free_port
from tests.quick import classic
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import have_connector, start_stack
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import ToolMissing
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, LakeSettings, SparkSettings
from tidemark.pipeline.spark import connector
from tidemark.pipeline.spark.connector import JAR_URL, JARS, explaining_missing_connector, fetch
from tidemark.pipeline.spark.session import server_config, session_config
from tidemark.resources.spark import SparkResource

CONTENT = b"a JAR" * 1000
BUCKET = LakeSettings(uri="gs://bucket/lake")
CLASSIC = classic("spark://host:7077")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tidemark"


def answering(content: bytes) -> type[Quiet]:
    """Of a server that answers with the content; `/absent…` is not there."""

    class Handler(Quiet):
        def do_GET(self) -> None:  # noqa: N802 (the name that the server calls)
            self.send_response(404 if self.path.startswith("/absent") else 200)
            self.end_headers()
            self.wfile.write(content)

    return Handler


def name_jar_at(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the connector be CONTENT, at an address."""
    monkeypatch.setattr(connector, "JAR_URL", f"{address}/connector.jar")
    monkeypatch.setattr(connector, "JAR_SHA256", hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setattr(connector, "JAR_SIZE", len(CONTENT))


def test_it_is_fetched_once_and_appears_whole(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = list[tuple[int, int]]()
    with serving(answering(CONTENT)) as address:
        name_jar_at(address, monkeypatch)
        assert fetch(SystemClock(), progress=lambda *at: told.append(at))
    assert (cache / "connector.jar").read_bytes() == CONTENT
    assert told[-1] == (len(CONTENT), len(CONTENT))
    assert not fetch(SystemClock()), "the server has gone, and nothing is asked"
    assert os.listdir(cache) == ["connector.jar"]


@pytest.mark.parametrize(
    ("served", "path", "why"),
    [
        (CONTENT[::-1], "/connector.jar", "its SHA-256 is"),
        (CONTENT[:-1], "/connector.jar", "4,999 bytes"),
        (CONTENT + b"!", "/connector.jar", "longer than the expected 5,000 bytes"),
        (CONTENT, "/absent.jar", "404"),
    ],
)
def test_all_else_is_refused(cache: Path, monkeypatch: pytest.MonkeyPatch, served: bytes, path: str, why: str) -> None:
    with serving(answering(served)) as address:
        name_jar_at(address, monkeypatch)
        with pytest.raises(ToolMissing, match=why):
            fetch(SystemClock(), source=address + path)
    assert os.listdir(cache) == []


def test_without_a_network_a_file_is_brought(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name_jar_at(f"http://127.0.0.1:{free_port()}", monkeypatch)
    refused = said_here(tmp_path, ("provision", "--connector"), dict(os.environ))
    assert refused.code == 1
    assert "Connection refused" in refused.err
    assert "tidemark provision --connector --source connector.jar" in refused.err
    (tmp_path / "brought.jar").write_bytes(CONTENT)
    taken = said_here(tmp_path, ("provision", "--connector", "--source", "brought.jar"), dict(os.environ))
    assert (taken.out, taken.code) == (f"fetched {cache}/connector.jar\n", 0)
    assert (cache / "connector.jar").read_bytes() == CONTENT
    assert said_here(tmp_path, ("provision", "--connector"), dict(os.environ)).out == f"found {cache}/connector.jar\n"


def test_the_users_own_jars_and_settings_come_instead_of_ours(tmp_path: Path) -> None:
    own = {JARS: "/opt/mine.jar", "spark.hadoop.fs.gs.auth.type": "COMPUTE_ENGINE"}
    settings = Settings(lake=BUCKET, spark=CLASSIC.model_copy(update={"config": own}))
    assert own.items() <= session_config(settings).items()
    assert own.items() <= server_config(settings, tmp_path).items()
    have_connector(Supervisor(tmp_path, SystemClock(), pytest.fail), settings)


def test_a_classic_session_without_the_jar_is_refused_before_a_jvm_starts() -> None:
    resource = SparkResource(spark_config=session_config(Settings(lake=BUCKET, spark=CLASSIC)))
    with pytest.raises(ToolMissing, match="run `tidemark provision --connector`"):
        resource.session()


def test_up_fetches_it_first_and_starts_nothing_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    supervisor = Supervisor(tmp_path / "state", SystemClock(), said.append)
    name_jar_at(f"http://127.0.0.1:{free_port()}", monkeypatch)  # no network
    spark, dagster = SparkSettings(remote=f"sc://localhost:{free_port()}"), DagsterSettings(storage=str(tmp_path))
    settings = Settings(lake=BUCKET, spark=spark, dagster=dagster)
    try:
        with pytest.raises(ToolMissing, match="Without a network"):
            start_stack(supervisor, settings, Path("tidemark.toml").resolve())
    finally:
        supervisor.stop()
    assert said == [f"fetching the Cloud Storage connector for Spark, 38 MiB, from {JAR_URL}"]
    assert not supervisor.state_folder.exists()


def test_a_spark_without_a_connector_is_named_as_one() -> None:
    for package in ("com.google.cloud.hadoop.fs.gcs", "org.apache.hadoop.fs.gs"):  # with our settings, and without
        with pytest.raises(ToolMissing, match="no Google connector"), explaining_missing_connector():
            raise RuntimeError(f"Class {package}.GoogleHadoopFileSystem not found")
    with pytest.raises(RuntimeError, match="another"), explaining_missing_connector():
        raise RuntimeError("another")

"""The archive for executors whose Python lacks tidemark: what is in it, and that such a Python runs it."""

import os
import subprocess
import sys
import tarfile
from dataclasses import replace
from pathlib import Path

import pyspark
import pytest

from tests.cli.command import said_here
from tests.programs import ended
from tidemark.local.services.stack import spark_server
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import SparkSettings
from tidemark.pipeline.spark import executor_archive
from tidemark.pipeline.spark.executor_archive import ARCHIVE, check_archive, identity, manifest_of, own_manifest, pack
from tidemark.pipeline.spark.session import server_config, session_config

IMPORTS = "import sys, tidemark.pipeline.ingest.rounds as r; print(sys.executable, r.__file__, sys.argv[1])"


Unpacked = tuple[Path, list[tarfile.TarInfo]]
"""The folder with what Spark makes of the archive, and what the archive says of its files."""


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Unpacked:
    folder = tmp_path_factory.mktemp("executor")
    with pytest.MonkeyPatch.context() as quick:
        quick.setattr(executor_archive, "COMPRESSION", 0)
        pack(folder / "executors.tar.gz")
    with tarfile.open(folder / "executors.tar.gz") as archive:
        archive.extractall(folder / "environment", filter="data")
        return folder, archive.getmembers()


def of_spark(**more: str) -> dict[str, str]:
    """The environment of a Python that Spark starts: PySpark's own modules are on its path."""
    libraries = Path(pyspark.__file__).parent / "python" / "lib"
    path = os.pathsep.join(str(library) for library in libraries.glob("*.zip"))
    return {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, **more}


def start(folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [folder / "environment" / "bin" / "python", "-c", IMPORTS, "an argument"]
    return ended(command, folder, of_spark(**environment))


@pytest.mark.slow
def test_a_python_without_tidemark_runs_what_is_in_the_archive(unpacked: Unpacked) -> None:
    folder, _ = unpacked
    python = f"{sys.base_prefix}/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    lacks = ended([python, "-c", "import tidemark"], variables=of_spark())
    assert "No module named 'tidemark'" in lacks.stderr
    done = start(folder, PYSPARK_PYTHON=python)
    assert done.returncode == 0, done.stderr
    packages = folder / "environment" / "site-packages"
    assert done.stdout == f"{python} {packages}/tidemark/pipeline/ingest/rounds.py an argument\n"


@pytest.mark.slow
def test_the_archive_has_tidemark_and_its_needs_and_neither_settings_nor_where_it_came_from(unpacked: Unpacked) -> None:
    folder, members = unpacked
    packages = folder / "environment" / "site-packages"
    files = {str(file.relative_to(packages)) for file in packages.rglob("*") if file.is_file()}
    packed = packages / "tidemark/pipeline/spark/executor_archive.py"
    assert packed.read_bytes() == Path(executor_archive.__file__).read_bytes()
    assert "tidemark/pipeline/lake/store/objects.py" in files
    assert "polars/__init__.py" in files
    assert not [name for name in files if name.startswith(("pyspark/", "dagster/", "dagster_pyspark/"))]
    assert not [name for name in files if name.startswith("tidemark/") and name.endswith((".toml", ".yaml"))]
    assert not [name for name in files if name.endswith("direct_url.json")]
    assert {(one.uname, one.uid, one.name.endswith(".pyc")) for one in members} == {("", 0, False)}


@pytest.mark.parametrize(("field", "other"), [("python", "3.6"), ("machine", "plan9-mips")])
def test_a_foreign_archive_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, field: str, other: str) -> None:
    monkeypatch.setattr(executor_archive, "distributions", dict)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(executor_archive, "own_manifest", lambda: replace(own_manifest(), **{field: other}))
        pack(tmp_path / "executors.tgz")
    with pytest.raises(InvalidSettings, match=rf"packed for {field} {other}.*tidemark provision --executors"):
        check_archive({ARCHIVE: str(tmp_path / "executors.tgz")})


def test_a_file_that_is_missing_or_was_not_packed_is_refused(tmp_path: Path) -> None:
    for content in (None, b"", b"not an archive"):
        file = tmp_path / "executors.tar.gz"
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(InvalidSettings, match="tidemark provision --executors"):
            identity(str(file))
    with tarfile.open(file, "w:gz") as archive:
        archive.add(__file__, "manifest.yaml")
    with pytest.raises(InvalidSettings, match="was not made by `tidemark provision --executors`"):
        check_archive({ARCHIVE: str(file)})
    check_archive({ARCHIVE: "gs://bucket/executors.tar.gz"})  # nobody here reads it


def test_the_command_packs_what_spark_unpacks_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor_archive, "distributions", dict)
    said = said_here(tmp_path, ("provision", "--executors", "executors.tar.gz"), {})
    assert 'executor_environment = "executors.tar.gz"' in said.out, said.err
    assert manifest_of(tmp_path / "executors.tar.gz") == own_manifest()
    refused = said_here(tmp_path, ("provision", "--executors", "executors.whl"), {})
    assert refused.code == 1
    assert ".tar.gz" in refused.err
    assert sorted(file.name for file in tmp_path.iterdir()) == ["executors.tar.gz"]


PYTHON = "spark.sql.execution.pyspark.python"
ON_A_CLUSTER = {"spark.master": "spark://host:7077"}


def test_which_sessions_carry_it_and_which_servers_bring_it(tmp_path: Path) -> None:
    archive = str(tmp_path / "executors.tar.gz")
    with_theirs = {**ON_A_CLUSTER, "spark.archives": "theirs.zip#theirs"}
    both = f"{archive}#tidemark_environment,theirs.zip#theirs"

    def settings(**spark: object) -> Settings:
        return Settings(spark=SparkSettings.model_validate({"executor_environment": archive, **spark}))

    connected = session_config(settings())
    assert connected[ARCHIVE] == archive
    assert "spark.archives" not in connected
    spread = session_config(settings(remote=None, config=with_theirs))
    assert (spread["spark.archives"], spread[PYTHON]) == (both, "tidemark_environment/bin/python")
    elsewhere = "gs://bucket/executors.tgz"
    in_a_bucket = session_config(settings(remote=None, config=ON_A_CLUSTER, executor_environment=elsewhere))
    assert in_a_bucket[ARCHIVE] == elsewhere
    assert "spark.archives" not in in_a_bucket  # which Spark reads before it has a JAR
    assert ARCHIVE not in session_config(settings(remote=None))  # its tasks run the driver's Python

    for without in (settings(), settings(config=ON_A_CLUSTER, executor_environment=None)):  # the first is local[2,4]
        assert "spark.archives" not in server_config(without, tmp_path)
    brings = server_config(settings(config=with_theirs), tmp_path)
    assert brings["spark.archives"] == both
    assert PYTHON not in brings  # what the server plans runs the server's Python
    with pytest.raises(InvalidSettings, match="tidemark provision --executors"):
        spark_server(settings(config=ON_A_CLUSTER), tmp_path, {})

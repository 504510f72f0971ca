"""What doctor says of Java, Spark and its connector, and of Dagster's storage."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from tests.official_emulator import free_port
from tests.quick import classic
from tests.spark.machine import script
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.doctor import spark as spark_checks
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, examine
from tidemark.pipeline.doctor.lake import check_dagster_storage, check_own_tables, judged
from tidemark.pipeline.doctor.spark import (
    check_connector,
    check_environment,
    check_executors,
    check_java,
    check_python,
    check_spark,
    check_task_slots,
    check_token,
)
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import (
    DagsterSettings,
    IngestSettings,
    LakeSettings,
    SparkSettings,
    TableSettings,
)
from tidemark.pipeline.spark import executor_archive, java
from tidemark.resources.storage_state import revisions

LOOKS = (check_connector, check_spark, check_token)
IN_A_BUCKET = LakeSettings(uri="gs://bucket")


def findings(look: Any, **settings: Any) -> list[CheckFinding]:
    return examine(Setup(Settings(**settings), SystemClock()), [Check("it", look)])


def here() -> SparkSettings:
    return SparkSettings(remote=f"sc://localhost:{free_port()}")


def test_without_a_java_what_needs_one_is_broken_and_a_server_elsewhere_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    for spark in (here(), classic("local[1]")):
        (finding,) = findings(check_java, spark=spark)
        assert finding.level is Level.BROKEN
        assert "install Java 17 or newer" in finding.said
    assert findings(check_java, spark=SparkSettings(remote="sc://spark.example:15002")) == []


def test_a_table_of_ones_own_that_cannot_be_read_is_broken(tmp_path: Path) -> None:
    assert findings(check_own_tables) == []
    (tmp_path / "mine.sql").write_text("SELECT window, stream_id FROM {heartbeats}")
    (finding,) = findings(check_own_tables, tables={"mine": TableSettings(file=str(tmp_path / "mine.sql"))})
    assert (finding.level, finding.said) == (Level.OK, "custom tables: mine")
    (finding,) = findings(check_own_tables, tables={"mine": TableSettings(file=str(tmp_path / "absent.sql"))})
    assert (finding.level, "absent.sql cannot be read" in finding.said) == (Level.BROKEN, True)


def test_a_spark_that_nobody_starts_is_broken() -> None:
    assert [one.level for one in findings(check_spark, spark=here())] == [Level.OK]
    (finding,) = findings(check_spark, spark=SparkSettings(remote=f"sc://0.0.0.0:{free_port()}"))
    assert (finding.level, "no Spark Connect server answers" in finding.said) == (Level.BROKEN, True)
    (finding,) = findings(check_spark, spark=SparkSettings(remote=f"sc://127.0.0.1:{free_port()}"))
    assert (finding.level, "write sc://localhost:PORT" in finding.said) == (Level.BROKEN, True)


def test_readers_that_pull_continuously_need_places_beside_windows() -> None:
    four = IngestSettings(mode="continuous", readers=4)
    assert Settings(ingest=four).spark_master == "local[6,4]"
    assert Settings(ingest=IngestSettings(readers=4)).spark_master == "local[3,4]"
    remote = here().remote
    for few in (
        classic("local[4]"),
        SparkSettings(remote=remote, config={"spark.master": "local[4,4]"}),
    ):
        (finding,) = findings(check_task_slots, spark=few, ingest=four)
        assert (finding.level, "4 task slots for 4 readers" in finding.said) == (Level.WARNING, True)
        assert findings(check_task_slots, spark=few) == []
    for enough in (here(), classic("local[5]")):
        assert [one.level for one in findings(check_task_slots, spark=enough, ingest=four)] == [Level.OK]
    for unknown in (
        classic("spark://host:7077"),
        classic("local[*]"),
    ):
        assert findings(check_task_slots, spark=unknown, ingest=four) == []


def test_executors_behind_a_token_are_said_not_to_have_been_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: object) -> None:
        raise SparkConnectGrpcException("UNAUTHENTICATED:No authentication token provided")

    monkeypatch.setattr(spark_checks, "check_answers", lambda _: None)
    monkeypatch.setattr(spark_checks, "is_ours_to_start", lambda _: False)
    monkeypatch.setattr(spark_checks, "shared_session", refused)
    (finding,) = findings(check_executors, spark=here())
    assert (finding.level, "requires its token" in finding.said) == (Level.WARNING, True)
    assert "before `tidemark up`" in finding.said


@pytest.mark.parametrize("spark", [here(), classic("local[2]")])
def test_another_python_of_the_executors_has_to_run_tidemark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark: SparkSettings
) -> None:
    able = script(tmp_path / "able", f'exec {sys.executable} "$@"')
    monkeypatch.setenv("PYSPARK_PYTHON", str(able))
    (finding,) = findings(check_python, spark=spark)
    assert finding.level is Level.OK
    bare = script(tmp_path / "bare", f'exec {sys.executable} -I -S "$@"')
    for unable, why in ((bare, "No module named 'tidemark'"), ("/another/python", "No such file or directory")):
        monkeypatch.setenv("PYSPARK_PYTHON", str(unable))
        (finding,) = findings(check_python, spark=spark)
        assert finding.level is Level.BROKEN
        assert f"$PYSPARK_PYTHON is {unable}" in finding.said
        assert why in finding.said
        assert f"a Python that has tidemark, such as {sys.executable}" in finding.said
    assert findings(check_python, spark=classic("spark://host:7077")) == []


def test_a_token_in_the_settings_is_a_warning_that_does_not_repeat_it() -> None:
    remote = "sc://spark.example:443/;use_ssl=true"
    assert findings(check_token, spark=SparkSettings(remote=remote)) == []
    (finding,) = findings(check_token, spark=SparkSettings(remote=f"{remote};token=hush"))
    assert finding.level is Level.WARNING
    assert "$SPARK_CONNECT_AUTHENTICATE_TOKEN" in finding.said
    assert "sc://spark.example:443" in finding.said
    with_token = SparkSettings(remote=f"sc://localhost:{free_port()}/;token=hush")
    said = [finding.said, *(one.said for look in LOOKS for one in findings(look, spark=with_token, lake=IN_A_BUCKET))]
    assert not [sentence for sentence in said if "hush" in sentence]


def test_the_archive_for_executors_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "executors.tar.gz"
    carrying = SparkSettings(executor_environment=str(archive))
    assert findings(check_environment) == []
    (finding,) = findings(check_environment, spark=carrying)
    assert (finding.level, "tidemark provision --executors" in finding.said) == (Level.BROKEN, True)
    monkeypatch.setattr(executor_archive, "distributions", dict)
    executor_archive.pack(archive)
    (finding,) = findings(check_environment, spark=carrying)
    assert (finding.level, str(archive) in finding.said) == (Level.OK, True)
    monkeypatch.setattr(executor_archive, "own_version", lambda: "0.0.1")
    executor_archive.pack(archive)
    monkeypatch.undo()
    (finding,) = findings(check_environment, spark=carrying)
    assert finding.level is Level.WARNING
    assert "holds tidemark 0.0.1" in finding.said
    (finding,) = findings(check_environment, spark=SparkSettings(executor_environment="gs://bucket/executors.tgz"))
    assert finding.level is Level.OK


@pytest.fixture
def no_jars(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A Spark without JARs of others."""
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    return jars


def test_a_lake_in_a_bucket_needs_the_connector_wherever_it_is_named(no_jars: Path, tmp_path: Path) -> None:
    jar = tmp_path / "gcs-connector-4.0.4-shaded.jar"
    named = SparkSettings(remote=None, config={"spark.master": "local[1]", "spark.jars": f"/a.jar,{jar}"})
    assert findings(check_connector, spark=named) == []
    unnamed = SparkSettings(remote=None, config={"spark.master": "local[1]", "spark.jars": "/a.jar"})
    for spark in (unnamed, named):
        (finding,) = findings(check_connector, spark=spark, lake=IN_A_BUCKET)
        assert (finding.level, "has no gcs-connector JAR" in finding.said) == (Level.BROKEN, True)
    jar.touch()
    fetched = SparkSettings(
        remote=None,
        config={"spark.master": "local[1]", "spark.jars.packages": "com.google.cloud.bigdataoss:gcs-connector:4.0.4"},
    )
    for spark in (named, fetched):
        (finding,) = findings(check_connector, spark=spark, lake=IN_A_BUCKET)
        assert finding.level is Level.OK
    (no_jars / jar.name).touch()
    (finding,) = findings(check_connector, spark=unnamed, lake=IN_A_BUCKET)
    assert (finding.level, str(no_jars) in finding.said) == (Level.OK, True)


def test_a_storage_that_an_earlier_dagster_has_left_is_told_by_its_revision(tmp_path: Path) -> None:
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        found = revisions(instance)
    assert set(found) == {"runs", "events", "schedules"}
    assert [level for level, _ in judged(found)] == [Level.OK]
    (runs,) = tmp_path.rglob("runs.db")
    with closing(sqlite3.connect(runs)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'da7cd32b690d'")
        connection.commit()
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        ((level, said),) = judged(revisions(instance))
    assert (level, "of another version (runs)" in said) == (Level.BROKEN, True)


def test_a_storage_that_cannot_be_opened_is_broken_and_one_to_be_made_is_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = tmp_path / "storage"
    settings = DagsterSettings(storage=str(storage))
    assert [one.level for one in findings(check_dagster_storage, dagster=settings)] == [Level.OK]
    assert not storage.exists()
    storage.mkdir()

    def fails(command: list[str], **_: Any) -> Any:
        assert command[:2] == [sys.executable, "-m"]
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nOperationalError: no answer")

    monkeypatch.setattr(subprocess, "run", fails)
    (finding,) = findings(check_dagster_storage, dagster=settings)
    assert (finding.level, "(OperationalError: no answer)" in finding.said) == (Level.BROKEN, True)


def test_a_guests_storage_is_that_of_its_own_dagster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    absent = DagsterSettings(storage=str(tmp_path / "absent"))

    def found() -> tuple[Level, str]:
        (one,) = check_dagster_storage(Setup(Settings(dagster=absent), SystemClock()))
        return one

    assert "`tidemark up` makes it. If your own Dagster runs this pipeline, set DAGSTER_HOME" in found()[1]
    (tmp_path / "dagster.yaml").write_text("storage: {sqlite: {base_dir: {env: THEIR_STORAGE}}}\n")
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    level, said = found()
    assert (level, str(tmp_path / "dagster.yaml") in said) == (Level.BROKEN, True)
    monkeypatch.setenv("THEIR_STORAGE", str(tmp_path / "theirs"))
    assert found() == (Level.OK, "Dagster's storage answers, and its tables are of the Dagster that runs")
    assert not (tmp_path / "absent").exists()

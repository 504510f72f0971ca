"""What doctor says of Java, Spark and its connector, and of Dagster's storage."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.errors.exceptions.connect import SparkConnectGrpcException

from tests.lake.builders import Beat, append_beats, columns_of, lake_in
from tests.official_emulator import free_port
from tests.pubsub.builders import raising
from tests.quick import classic
from tests.spark.machine import script
from tidemark.pipeline import settings_sections as sections
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.doctor import spark as spark_checks
from tidemark.pipeline.doctor.finding import Check, CheckFinding, Level, Setup, examine
from tidemark.pipeline.doctor.lake import (
    check_dagster_storage,
    check_own_tables,
    check_state,
    check_windowed_tables,
    judged,
)
from tidemark.pipeline.doctor.spark import (
    check_connector,
    check_environment,
    check_java,
    check_python,
    check_spark,
    check_task_slots,
    check_token,
)
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.spark import executor_archive, java
from tidemark.resources.storage_state import revisions

LOOKS = (check_connector, check_spark, check_token)
PYTHONS = (("able", ""), ("bare", "-I -S"))
PATIENCE_SECONDS = 240.0
"""The checks start programs, which take their time on a busy machine."""

IN_A_BUCKET = sections.LakeSettings(uri="gs://bucket")


def findings(look: Any, **settings: Any) -> list[CheckFinding]:
    return examine(Setup(Settings(**settings), SystemClock()), [Check("it", look, seconds=PATIENCE_SECONDS)])


def said(look: Any, level: Level, **settings: Any) -> str:
    """The sentence of the only finding, which is of this level."""
    (finding,) = findings(look, **settings)
    assert finding.level is level
    return finding.said


def here() -> sections.SparkSettings:
    return sections.SparkSettings(remote=f"sc://localhost:{free_port()}")


def test_without_a_java_what_needs_one_is_broken_but_no_server_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: iter(()))
    for spark in (here(), classic("local[1]")):
        assert "install Java 17 or newer" in said(check_java, Level.BROKEN, spark=spark)
    assert findings(check_java, spark=sections.SparkSettings(remote="sc://spark.example:15002")) == []


def test_a_custom_table_that_cannot_be_read_or_that_reads_a_removed_field_is_said(tmp_path: Path) -> None:
    assert findings(check_own_tables) == []
    (tmp_path / "mine.sql").write_text("SELECT window, stream_id, upload, max(load) FROM {heartbeats}")
    there, absent = ({"mine": sections.TableSettings(file=str(tmp_path / name))} for name in ("mine.sql", "absent.sql"))
    assert said(check_own_tables, Level.OK, tables=there) == "custom tables: mine"
    assert "absent.sql cannot be read" in said(check_own_tables, Level.BROKEN, tables=absent)
    lake = lake_in(tmp_path, fields := {"load": FieldKind.NUMBER, "up": FieldKind.NUMBER})
    append_beats(lake.heartbeats(), columns_of([Beat("a", 0, values={"load": 1.0, "up": 1.0})], [*fields]))
    renamed, kept = (MessageSettings(fields={name: "number"}) for name in ("level", "load"))
    more = {"lake": sections.LakeSettings(uri=f"file:{tmp_path}/lake"), "tables": there}
    assert "mine seems to read load, which" in said(check_windowed_tables, Level.WARNING, message=renamed, **more)
    assert findings(check_windowed_tables, message=kept, **more) == []


def test_a_spark_that_nobody_starts_is_broken() -> None:
    said(check_spark, Level.OK, spark=here())
    for host, why in (("0.0.0.0", "no Spark Connect server answers"), ("127.0.0.1", "write sc://localhost:PORT")):  # noqa: S104
        assert why in said(check_spark, Level.BROKEN, spark=sections.SparkSettings(remote=f"sc://{host}:{free_port()}"))


def test_readers_that_pull_continuously_need_places_beside_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    four = sections.IngestSettings(mode="continuous", readers=4)
    assert Settings(ingest=four).spark_master == "local[6,4]"
    assert Settings(ingest=sections.IngestSettings(readers=4)).spark_master == "local[3,4]"
    at_it = sections.SparkSettings(remote=here().remote, config={"spark.master": "local[4,4]"})
    for few in (classic("local[4, 2]"), classic("local[*]"), at_it):
        assert "4 task slots for 4 readers" in said(check_task_slots, Level.WARNING, spark=few, ingest=four)
        assert findings(check_task_slots, spark=few) == []
    for enough in (here(), classic("local[5]")):
        said(check_task_slots, Level.OK, spark=enough, ingest=four)
    assert findings(check_task_slots, spark=classic("spark://host:7077"), ingest=four) == []


def test_executors_behind_a_token_are_said_not_to_have_been_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = SparkConnectGrpcException("UNAUTHENTICATED:No authentication token provided")
    monkeypatch.setattr(spark_checks, "check_answers", lambda _: None)
    monkeypatch.setattr(spark_checks, "is_ours_to_start", lambda _: False)
    monkeypatch.setattr(spark_checks, "shared_session", raising(refused))
    answers, token = findings(check_spark, spark=here())
    assert (answers.level, token.level) == (Level.OK, Level.WARNING)
    assert "requires its token" in token.said
    assert "before `tidemark up`" in token.said


def test_another_python_of_the_executors_has_to_run_tidemark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    able, bare = (script(tmp_path / name, f'exec {sys.executable} {how} "$@"') for name, how in PYTHONS)
    monkeypatch.setenv("PYSPARK_PYTHON", str(able))
    said(check_python, Level.OK, spark=classic("local[2]"))
    for unable, why in ((bare, "No module named 'tidemark'"), ("/another/python", "No such file or directory")):
        monkeypatch.setenv("PYSPARK_PYTHON", str(unable))
        words = said(check_python, Level.BROKEN, spark=here())
        assert f"$PYSPARK_PYTHON is {unable}" in words
        assert why in words
        assert f"a Python that has tidemark, such as {sys.executable}" in words
    assert findings(check_python, spark=classic("spark://host:7077")) == []


def test_a_token_in_the_settings_is_a_warning_that_does_not_repeat_it() -> None:
    remote = "sc://spark.example:443/;use_ssl=true"
    assert findings(check_token, spark=sections.SparkSettings(remote=remote)) == []
    words = said(check_token, Level.WARNING, spark=sections.SparkSettings(remote=f"{remote};token=hush"))
    assert "$SPARK_CONNECT_AUTHENTICATE_TOKEN" in words
    assert "sc://spark.example:443" in words
    with_token = sections.SparkSettings(remote=f"sc://localhost:{free_port()}/;token=hush")
    every = [words, *(one.said for look in LOOKS for one in findings(look, spark=with_token, lake=IN_A_BUCKET))]
    assert not [sentence for sentence in every if "hush" in sentence]


def test_the_archive_for_executors_is_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = tmp_path / "executors.tar.gz"
    carrying = sections.SparkSettings(executor_environment=str(archive))
    assert findings(check_environment) == []
    assert "tidemark provision --executors" in said(check_environment, Level.BROKEN, spark=carrying)
    monkeypatch.setattr(executor_archive, "distributions", dict)
    executor_archive.pack(archive)
    assert str(archive) in said(check_environment, Level.OK, spark=carrying)
    monkeypatch.setattr(executor_archive, "CONTRACT", 1)
    executor_archive.pack(archive)
    monkeypatch.undo()
    words = said(check_environment, Level.WARNING, spark=carrying)
    assert f"contains tidemark {executor_archive.own_version()} (task version 1), but" in words
    said(check_environment, Level.OK, spark=sections.SparkSettings(executor_environment="gs://bucket/executors.tgz"))


def test_a_lake_in_a_bucket_needs_the_connector_wherever_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (jars := tmp_path / "spark" / "jars").mkdir(parents=True)  # a Spark without JARs of others
    monkeypatch.setenv("SPARK_HOME", str(jars.parent))
    jar = tmp_path / "gcs-connector-4.0.4-shaded.jar"
    named = classic("local[1]", **{"spark.jars": f"/a.jar,{jar}"})
    assert findings(check_connector, spark=named) == []
    unnamed = classic("local[1]", **{"spark.jars": "/a.jar"})
    for spark in (unnamed, named):
        assert "has no gcs-connector JAR" in said(check_connector, Level.BROKEN, spark=spark, lake=IN_A_BUCKET)
    jar.touch()
    fetched = classic("local[1]", **{"spark.jars.packages": "com.google.cloud.bigdataoss:gcs-connector:4.0.4"})
    for spark in (named, fetched):
        said(check_connector, Level.OK, spark=spark, lake=IN_A_BUCKET)
    (jars / jar.name).touch()
    assert str(jars) in said(check_connector, Level.OK, spark=unnamed, lake=IN_A_BUCKET)


def test_an_earlier_storage_is_broken_a_missing_one_not_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The storage is that of the Dagster that runs the pipeline, which may be another one's."""
    monkeypatch.chdir(tmp_path)
    absent = {"dagster": sections.DagsterSettings(storage=str(tmp_path / "absent"))}
    assert "`tidemark up` creates it. If another Dagster runs this pipeline, set DAGSTER_HOME" in said(
        check_dagster_storage, Level.OK, **absent
    )
    assert said(check_state, Level.OK, **absent).startswith("`tidemark up`'s storage is the folder")
    with dg.instance_for_test(temp_dir=str(tmp_path)) as instance:
        found = revisions(instance)
    assert set(found) == {"runs", "events", "schedules"}
    assert [level for level, _ in judged(found)] == [Level.OK]
    (runs,) = tmp_path.rglob("runs.db")
    with closing(sqlite3.connect(runs)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'da7cd32b690d'")
        connection.commit()
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    assert "the installed Dagster's version (runs)" in said(check_dagster_storage, Level.BROKEN, **absent)
    (tmp_path / "dagster.yaml").unlink()  # a Dagster without it has its storage there
    assert "the installed Dagster's version (runs)" in said(check_dagster_storage, Level.BROKEN, **absent)
    assert not (tmp_path / "absent").exists()

    def fails(command: list[str], **_: Any) -> Any:
        assert command[:2] == [sys.executable, "-m"]
        return subprocess.CompletedProcess(command, 1, "", "Traceback\nOperationalError: no answer")

    monkeypatch.setattr(subprocess, "run", fails)
    assert f"set in {tmp_path / 'dagster.yaml'}, cannot be opened (OperationalError: no answer)" in said(
        check_dagster_storage, Level.BROKEN, **absent
    )

"""Libraries are imported by what uses them: a gate, a command or a Dagster project does not wait for the others'."""

import os
import shutil
import sys
from pathlib import Path

import pyspark
import pytest

from tests.cli.command import TIDEMARK
from tests.programs import ended
from tidemark.pipeline.cli.app import PLACES, help_of, loaded

LAKE = Path(__file__).parent / "fixtures" / "lake-1"

SERVICES = {"pyspark", "dagster_pyspark", "dagster_webserver", "uvicorn", "starlette", "aiohttp", "requests", "grpc"}
GOOGLE = {"google.cloud", "google.api_core", "google.auth", "google.pubsub_v1", "google.protobuf", "ptars"}
PAYLOADS = {"fastavro", "grpc_tools"}
FRAMES = {"pandas", "polars", "duckdb"}
ELSE = {"jinja2", "psutil"}
UNUSED = SERVICES | GOOGLE | PAYLOADS | FRAMES | ELSE
DAGSTER = {"dagster", "sqlalchemy", "alembic", "structlog"}
UNUSED_BY_SPARK = {"pyspark.sql.streaming.datasource", "ptars", "google.pubsub_v1"} | FRAMES | DAGSTER

COMMAND = "from tidemark.pipeline.cli.app import run_command; assert run_command([{!r}]) == 0"


@pytest.mark.parametrize(
    "steps",
    [
        [("import tidemark.watermark", UNUSED | DAGSTER | {"typer", "rich"})],
        [("import tidemark.spark", UNUSED_BY_SPARK)],
        [("import tidemark.dagster", UNUSED | DAGSTER - {"dagster"})],
        [
            (COMMAND.format("--help"), UNUSED | DAGSTER | {"pyarrow", "numpy", "deltalake", "pydantic_settings"}),
            (COMMAND.format("watermark"), UNUSED | DAGSTER),
            (COMMAND.format("status"), UNUSED - {"psutil"} | DAGSTER),
        ],
    ],
    ids=["tidemark.watermark", "tidemark.spark", "tidemark.dagster", "commands"],
)
def test_nothing_is_imported_that_is_not_used(steps: list[tuple[str, set[str]]], tmp_path: Path) -> None:
    """Each step may import more than the one before it, in the same process."""
    shutil.copytree(LAKE, tmp_path / "lake")
    listed = "import sys; print([name for name in {} if name in sys.modules], file=sys.stderr)"
    program = "\n".join(f"{code}\n{listed.format(sorted(unused))}" for code, unused in steps)
    done = ended([sys.executable, "-W", "ignore", "-c", program], tmp_path / "lake")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == ["[]"] * len(steps)


def test_a_forked_python_worker_of_spark_has_no_library_left_to_import() -> None:
    code = """
import sys, tidemark.pipeline.compute.worker_daemon
found = {*sys.modules}
import pyarrow, pyspark.worker, tidemark.pipeline.compute.columns
pyarrow.scalar(True)
print({name.partition(".")[0] for name in {*sys.modules} - found})"""
    assert ended([sys.executable, "-W", "ignore", "-c", code]).stdout == "set()\n"


def test_a_python_worker_imports_the_installed_pyspark_and_not_its_zip_file(tmp_path: Path) -> None:
    installed = Path(pyspark.__file__)
    zipped = shutil.copy(installed.parent / "python/lib/pyspark.zip", tmp_path)
    code = "import tidemark.pipeline.compute.worker_daemon, pyspark; print(pyspark.__file__)"
    for path, imported in ((installed.parent / "python/lib/pyspark.zip", installed), (zipped, f"{zipped}/pyspark/")):
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(path), *sys.path])}
        found = ended([sys.executable, "-W", "ignore", "-c", code], variables=variables).stdout
        assert found.startswith(str(imported)), "another Spark's own PySpark stays"


@pytest.mark.parametrize("name", PLACES)
def test_each_command_is_found_where_it_is_said_to_be_with_the_help_that_is_listed(name: str) -> None:
    assert loaded(name).help == help_of(PLACES[name])


@pytest.mark.parametrize(
    ("typed", "completed"), [("tidemark re", ["release", "repair", "replay"]), ("tidemark repair --for", ["--forget"])]
)
def test_a_shell_completes_commands_and_options_of_commands_not_loaded(typed: str, completed: list[str]) -> None:
    asked = {"_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    assert sorted(ended([TIDEMARK], variables=asked).stdout.split()) == completed

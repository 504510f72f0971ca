"""Libraries are imported by what uses them: a gate, a command or a Dagster project does not wait for the others'."""

import shutil
import sys
from pathlib import Path

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

COMMAND = "from tidemark.pipeline.cli.app import run_command; assert run_command({!r}) == 0"


@pytest.mark.parametrize(
    ("code", "unused"),
    [
        ("import tidemark.watermark", UNUSED | DAGSTER | {"typer", "rich"}),
        ("import tidemark.spark", {"pyspark.sql.streaming.datasource", "ptars", "google.pubsub_v1"} | FRAMES | DAGSTER),
        ("import tidemark.dagster", UNUSED | DAGSTER - {"dagster"}),
        (COMMAND.format(["--help"]), UNUSED | DAGSTER | {"pyarrow", "numpy", "deltalake", "pydantic_settings"}),
        (COMMAND.format(["watermark"]), UNUSED | DAGSTER),
        (COMMAND.format(["status"]), UNUSED - {"psutil"} | DAGSTER),
    ],
    ids=["tidemark.watermark", "tidemark.spark", "tidemark.dagster", "--help", "watermark", "status"],
)
def test_nothing_is_imported_that_is_not_used(code: str, unused: set[str], tmp_path: Path) -> None:
    shutil.copytree(LAKE, tmp_path / "lake")
    listed = f"import sys; print([name for name in {sorted(unused)} if name in sys.modules], file=sys.stderr)"
    done = ended([sys.executable, "-W", "ignore", "-c", f"{code}\n{listed}"], tmp_path / "lake")
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", PLACES)
def test_each_command_is_found_where_it_is_said_to_be_with_the_help_that_is_listed(name: str) -> None:
    assert loaded(name).help == help_of(PLACES[name])


@pytest.mark.parametrize(
    ("typed", "completed"), [("tidemark re", ["release", "repair", "replay"]), ("tidemark repair --for", ["--forget"])]
)
def test_a_shell_completes_commands_and_options_of_commands_not_loaded(typed: str, completed: list[str]) -> None:
    words = len(typed.split())
    asked = {"_TIDEMARK_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(words - 1)}
    done = ended([TIDEMARK], variables=asked)
    assert sorted(done.stdout.split()) == completed

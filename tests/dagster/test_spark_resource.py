"""What the Spark resource says where the server of `tidemark up` has ended."""

from pathlib import Path

import pytest

from tests.official_emulator import free_port
from tidemark.local.services.own_files import spark_log
from tidemark.pipeline.errors import SparkUnreachable
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, SparkSettings
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.spark import SparkResource

WHY = 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'


def test_an_absent_server_is_said_with_the_line_of_its_log_that_says_why(tmp_path: Path) -> None:
    spark = SparkSettings(remote=f"sc://localhost:{free_port()}/;token=hush")
    settings = Settings(spark=spark, dagster=DagsterSettings(storage=str(tmp_path / "dagster")))
    log = spark_log(settings)
    resource = SparkResource(spark_config=session_config(settings), server_log=str(log))
    with pytest.raises(SparkUnreachable) as without_a_log:
        resource.session()
    assert str(log) not in str(without_a_log.value)
    log.parent.mkdir()
    log.write_text("\n".join([WHY, *(f"\tat line {number}" for number in range(40))]))
    with pytest.raises(SparkUnreachable) as unreachable:
        resource.session()
    assert str(unreachable.value).endswith(f"The newest errors in {log}:\n{WHY}")
    assert "hush" not in str(unreachable.value)

"""An archive in a bucket, for executors whose Python lacks tidemark."""

from pathlib import Path

import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client

from tests.gcs.tools import gcs_connector
from tests.spark.cluster_client import SPREAD
from tests.spark.standalone import SMALL, bare_python, cluster, connect_server
from tests.spark.test_cluster import STREAMS, Place, lake_with_beats
from tidemark.pipeline.lake.store.address import spark_storage_config
from tidemark.pipeline.settings_sections import LakeSettings, SparkSettings
from tidemark.pipeline.spark.connector import JARS
from tidemark.pipeline.spark.executor_archive import pack

pytestmark = [pytest.mark.gcs, pytest.mark.slow, pytest.mark.timeout(900)]

RIGHT = {"rows": STREAMS * 3 * len(SPREAD)}


@pytest.fixture
def carried(lake_apart: LakeSettings, tmp_path: Path) -> dict[str, str]:
    """The setting that names an archive in the lake's bucket."""
    pack(tmp_path / "executors.tar.gz")
    bucket = lake_apart.uri.split("/")[2]
    client = Client("any", AnonymousCredentials(), client_options={"api_endpoint": lake_apart.endpoint})
    client.bucket(bucket).blob("executors.tar.gz").upload_from_filename(str(tmp_path / "executors.tar.gz"), timeout=300)
    return {"executor_environment": f"gs://{bucket}/executors.tar.gz"}


@pytest.mark.parametrize("kind", ["classic", "connect"])
def test_executors_get_it_where_spark_has_the_connector_and_elsewhere_that_is_said(
    kind: str, carried: dict[str, str], lake_apart: LakeSettings, tmp_path: Path
) -> None:
    able = {"config": SMALL | spark_storage_config(lake_apart) | {JARS: str(gcs_connector())}}
    work = ("windows", {"lake": str(lake_with_beats(tmp_path / "lake"))})
    with cluster(tmp_path, python=bare_python()) as spread:
        if kind == "classic":
            assert Place(spread, spread.classic(**able, **carried)).do(work) == [RIGHT]
            assert "no Google connector" in Place(spread, spread.classic(**carried)).fails(work)
            return
        with connect_server(tmp_path, spread, spread.connected(**able, **carried)) as address:
            assert Place(spread, SparkSettings(remote=address, **carried)).do(work) == [RIGHT]
        with connect_server(tmp_path, spread) as address:
            assert "no Google connector" in Place(spread, SparkSettings(remote=address, **carried)).fails(work)

"""Delta commits on Cloud Storage are exclusive because the service's precondition is, and for no other reason."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from tidemark.pipeline.lake.store.address import storage_options, table_uri
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

RACERS = 8
ROUNDS = 5
SCHEMA = pa.schema([("writer", pa.int64()), ("number", pa.int64())])


def append(lake: LakeSettings, writer: int, number: int) -> None:
    write_deltalake(
        table_uri(lake, "heartbeats"),
        pa.table({"writer": [writer], "number": [number]}, SCHEMA),
        mode="append",
        storage_options=storage_options(lake),
        commit_properties=CommitProperties(max_commit_retries=50),
    )


def load(lake: LakeSettings) -> DeltaTable:
    return DeltaTable(table_uri(lake, "heartbeats"), storage_options=storage_options(lake))


def winners(lake: LakeSettings) -> int:
    """How many believe that they committed, when all have loaded the same version and commit at once."""
    tables = [load(lake) for _ in range(RACERS)]
    together = Barrier(RACERS)

    def compete(racer: int) -> bool:
        together.wait()
        try:
            tables[racer].create_write_transaction(
                [AddAction(f"racer-{racer}-{tables[racer].version()}.parquet", 1, {}, 0, True, "{}")],
                mode="append",
                schema=Schema.from_arrow(SCHEMA),
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            return False
        return True

    with ThreadPoolExecutor(RACERS) as threads:
        return sum(threads.map(compete, range(RACERS)))


def test_exactly_one_of_those_who_commit_a_version_at_once_wins_it(gcs_lake_settings: LakeSettings) -> None:
    append(gcs_lake_settings, writer=0, number=0)
    for committed in range(1, ROUNDS + 1):
        assert winners(gcs_lake_settings) == 1
        assert load(gcs_lake_settings).version() == committed

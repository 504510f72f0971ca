"""Delta commits on Cloud Storage are exclusive because the service's precondition is, and for no other reason."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Schema, write_deltalake
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction

from tests.gcs.server import CloudStorageServer
from tests.gcs.xml_proxy import XmlProxy
from tidemark.pipeline.lake.store.address import storage_options, table_uri
from tidemark.pipeline.settings_sections import LakeSettings

pytestmark = pytest.mark.gcs

WRITERS = 4
APPENDS_EACH = 5
RACERS = 8
ROUNDS = 5
PAYLOADS = 24
"""Payloads of a MiB that do not compress: together more than delta-rs sends in one piece."""
SCHEMA = pa.schema([("writer", pa.int64()), ("number", pa.int64())])


@pytest.fixture
def careless_lake_settings(gcs_server: CloudStorageServer, gcs_lake_settings: LakeSettings) -> Iterator[LakeSettings]:
    """The same lake behind a proxy that drops the precondition."""
    proxy = XmlProxy(gcs_server.upstream_port, honours_preconditions=False).start()
    yield gcs_lake_settings.model_copy(update={"endpoint": proxy.endpoint})
    proxy.stop()


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


def rows(lake: LakeSettings) -> list[tuple[int, int]]:
    read = load(lake).to_pyarrow_table()
    return sorted(zip(read["writer"].to_pylist(), read["number"].to_pylist(), strict=True))


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


def test_appends_of_several_writers_at_once_all_land(gcs_lake_settings: LakeSettings) -> None:
    append(gcs_lake_settings, writer=0, number=-1)  # the table is there before anybody competes

    def write(writer: int) -> None:
        for number in range(APPENDS_EACH):
            append(gcs_lake_settings, writer, number)

    with ThreadPoolExecutor(WRITERS) as threads:
        list(threads.map(write, range(WRITERS)))
    assert rows(gcs_lake_settings) == [
        (0, -1),
        *((writer, number) for writer in range(WRITERS) for number in range(APPENDS_EACH)),
    ]


def test_exactly_one_of_those_who_commit_a_version_at_once_wins_it(gcs_lake_settings: LakeSettings) -> None:
    append(gcs_lake_settings, writer=0, number=0)
    for committed in range(1, ROUNDS + 1):
        assert winners(gcs_lake_settings) == 1
        assert load(gcs_lake_settings).version() == committed


def test_commits_are_lost_where_the_precondition_is_ignored(careless_lake_settings: LakeSettings) -> None:
    """What the two tests above are worth: without the precondition they would fail."""
    append(careless_lake_settings, writer=0, number=0)
    believed = sum(winners(careless_lake_settings) for _ in range(ROUNDS))
    assert believed > load(careless_lake_settings).version()


def test_a_file_that_goes_up_in_parts_comes_back_whole(gcs_lake_settings: LakeSettings) -> None:
    payloads = [os.urandom(1 << 20) for _ in range(PAYLOADS)]
    write_deltalake(
        table_uri(gcs_lake_settings, "heartbeats"),
        pa.table({"payload": pa.array(payloads, pa.binary())}),
        storage_options=storage_options(gcs_lake_settings),
    )
    assert load(gcs_lake_settings).to_pyarrow_table()["payload"].to_pylist() == payloads


def test_compaction_a_checkpoint_and_vacuum_leave_the_rows_as_they_were(gcs_lake_settings: LakeSettings) -> None:
    for number in range(APPENDS_EACH):
        append(gcs_lake_settings, writer=0, number=number)
    before = rows(gcs_lake_settings)
    table = load(gcs_lake_settings)
    table.optimize.compact()
    table.create_checkpoint()
    removed = table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    assert len(removed) == APPENDS_EACH
    assert rows(gcs_lake_settings) == before
    assert len(load(gcs_lake_settings).file_uris()) == 1

"""Dagster knows by which code a job has computed a table of one's own."""

from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.definitions.data_version import CachingStaleStatusResolver
from dagster._core.loader import LoadingContextForTest

from tidemark.assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS
from tidemark.assets.own_tables import provenance
from tidemark.assets.partitions import Partitions
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Windowing

HOUR = "2026-11-02T00-00Z"
HOURS = Partitions(
    Windowing(timedelta(minutes=1), datetime(2026, 11, 1, tzinfo=UTC)), datetime(2026, 11, 3, tzinfo=UTC)
).definition()
OWN = dg.AssetKey("own")


def test_a_table_is_shown_as_stale_once_its_code_is_another_and_not_before() -> None:
    with dg.DagsterInstance.ephemeral() as instance:

        def why_stale(version: str) -> list[str]:
            @dg.asset(key=OWN, partitions_def=HOURS, deps=[HEARTBEATS, HEARTBEAT_DIFFS], code_version=version)
            def own() -> None: ...

            @dg.asset(key=HEARTBEAT_DIFFS, partitions_def=HOURS)
            def diffs() -> None: ...

            graph = dg.Definitions([own, diffs, dg.AssetSpec(HEARTBEATS)]).resolve_asset_graph()
            resolver = CachingStaleStatusResolver(instance, graph, LoadingContextForTest(instance))
            return [cause.reason for cause in resolver.get_stale_causes(OWN, HOUR)]

        instance.report_runless_asset_event(dg.AssetMaterialization(HEARTBEATS))
        instance.report_runless_asset_event(dg.AssetMaterialization(HEARTBEAT_DIFFS, partition=HOUR))
        tags = provenance(instance, "1", Settings())
        instance.report_runless_asset_event(dg.AssetMaterialization(OWN, partition=HOUR, tags=tags))
        assert why_stale("1") == []
        assert why_stale("2") == ["has a new code version"]

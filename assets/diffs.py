"""The asset `heartbeat_diffs`, one partition a window."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from assets.observed import GROUP, HEARTBEAT_DIFFS, HEARTBEATS, WATERMARK, column_schema
from assets.partitions import window_partitions
from pipeline.clock import SystemClock, iso
from pipeline.errors import TidemarkError, WindowExpired, WindowNotClosed
from pipeline.lake.tables.diffs import diff_schema
from pipeline.settings import Settings
from pipeline.spark.diffs import DiffPlan
from pipeline.spark.micro_batch import Computed, MicroBatch, compute_windows, refuse_open
from pipeline.windows import Window
from resources.lake import LakeResource
from resources.spark import SparkResource

NAMED_IN_METADATA = 10


def heartbeat_diffs_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset for these settings."""
    windowing = settings.windowing

    @dg.asset(
        key=HEARTBEAT_DIFFS,
        deps=[HEARTBEATS, WATERMARK],
        partitions_def=window_partitions(settings),
        backfill_policy=dg.BackfillPolicy.single_run(),
        group_name=GROUP,
        kinds={"pyspark", "deltalake"},
        owners=settings.dagster.owners,
        metadata={
            "dagster/column_schema": column_schema(diff_schema(settings.message.fields)),
            "lake": settings.lake.uri,
        },
        description=(
            "Each stream's heartbeats beside the one before: gap, missed heartbeats, and how the compared fields "
            "changed. One partition a window, computed once the watermark has passed its end; any window can be "
            "computed again, alone or in a range, and gives the same rows."
        ),
    )
    def heartbeat_diffs(context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource) -> None:
        keys = context.partition_keys
        windows = sorted(windowing.named(key) for key in keys)
        try:
            computed, watermark = compute_range(settings, windows, lake, spark, context.run.run_id)
        except (WindowExpired, WindowNotClosed) as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error
        except TidemarkError as error:
            raise dg.Failure(description=str(error)) from error
        _report(context, computed, watermark)

    return heartbeat_diffs


def compute_range(
    settings: Settings, windows: Sequence[Window], lake: LakeResource, spark: SparkResource, run: str
) -> tuple[Computed, datetime | None]:
    """Compute windows without a gap between them and replace them in the lake. Also returns the watermark relied on.

    Raises WindowNotClosed and WindowExpired, before Spark is used, and other TidemarkErrors.
    """
    lake.kept_windows(settings.windowing).refuse_expired(windows)
    decided = lake.tracking_log("run").newest_decision()
    watermark = None if decided is None else decided.decision.watermark
    refuse_open(windows, watermark)
    batch = MicroBatch(
        spark.session(),
        heartbeats=lake.heartbeats("run"),
        diffs=lake.diffs("run"),
        status=lake.whole().stream_status(),
        plan=DiffPlan(
            fields=settings.message.fields,
            lookback=settings.windows.lookback,
            period=settings.windows.heartbeat_period,
            window_length=settings.windows.length,
        ),
        watermark=watermark,
        run=run,
        clock=SystemClock(),
    )
    computed = compute_windows(batch, windows)
    return computed, watermark


def metadata_of(computed: Computed, key: str, watermark: datetime | None) -> dict[str, Any]:
    """The metadata of a computed window."""
    count, names = computed.silent.get(key, (0, []))
    return {
        "dagster/partition_row_count": computed.rows[key],
        "silent_streams": count,
        "silent_streams_first": ", ".join(names[:NAMED_IN_METADATA]),
        "heartbeats_version": computed.heartbeats_version,
        "watermark_when_computed": "none" if watermark is None else iso(watermark),
    }


def _report(context: dg.AssetExecutionContext, computed: Computed, watermark: datetime | None) -> None:
    """Report each window's metadata, and the totals in the run's log."""
    for key in computed.rows:
        context.add_asset_metadata(metadata_of(computed, key, watermark), asset_key=HEARTBEAT_DIFFS, partition_key=key)
    context.log.info(
        f"computed {len(computed.rows)} windows, {sum(computed.rows.values())} rows, from version "
        f"{computed.heartbeats_version} of heartbeats ({computed.input_rows} rows in its files)"
    )
    if computed.superseded:
        context.log.info(
            f"another run has computed these windows from input that is as new: {', '.join(computed.superseded)}"
        )

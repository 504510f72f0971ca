"""The asset that runs compute: heartbeat diffs, one partition a window."""

import dagster as dg

from assets.observed import GROUP, HEARTBEAT_DIFFS, HEARTBEATS, WATERMARK, column_schema
from assets.partitions import window_partitions
from pipeline.clock import SystemClock, iso
from pipeline.errors import TidemarkError, WindowNotClosed
from pipeline.lake.diffs import diff_schema
from pipeline.settings import Settings
from pipeline.spark.micro_batch import Computed, DiffPlan, compute_windows, refuse_open
from resources.lake import LakeResource
from resources.spark import SparkResource

NAMED_IN_METADATA = 10


def heartbeat_diffs_asset(settings: Settings) -> dg.AssetsDefinition:
    """The asset for these settings."""
    plan = DiffPlan(
        fields=settings.message.fields,
        lookback=settings.windows.lookback,
        period=settings.windows.heartbeat_period,
        window_length=settings.windows.length,
    )
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
            decided = lake.tracking_log("run").newest_decision()
            watermark = None if decided is None else decided.decision.watermark
            refuse_open(windows, watermark)
            computed = compute_windows(
                spark.session(),
                windows,
                heartbeats=lake.heartbeats("run"),
                diffs=lake.diffs("run"),
                status=lake.whole().stream_status(),
                plan=plan,
                watermark=watermark,
                run=context.run.run_id,
                clock=SystemClock(),
            )
        except WindowNotClosed as error:
            raise dg.Failure(description=str(error), allow_retries=False) from error
        except TidemarkError as error:
            raise dg.Failure(description=str(error)) from error
        _report(context, computed, "none" if watermark is None else iso(watermark))

    return heartbeat_diffs


def _report(context: dg.AssetExecutionContext, computed: Computed, watermark: str) -> None:
    """Rows and silent streams for each window, the totals in the run's log."""
    for key, rows in computed.rows.items():
        count, names = computed.silent.get(key, (0, []))
        context.add_asset_metadata(
            {
                "dagster/partition_row_count": rows,
                "silent_streams": count,
                "silent_streams_first": ", ".join(names[:NAMED_IN_METADATA]),
                "heartbeats_version": computed.heartbeats_version,
                "watermark_when_computed": watermark,
            },
            asset_key=HEARTBEAT_DIFFS,
            partition_key=key,
        )
    context.log.info(
        f"computed {len(computed.rows)} windows, {sum(computed.rows.values())} rows, from version "
        f"{computed.heartbeats_version} of heartbeats ({computed.input_rows} rows in its files)"
    )
    if computed.superseded:
        context.log.info(f"another run had computed from input as new: {', '.join(computed.superseded)}")

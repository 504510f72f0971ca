"""The asset `heartbeat_diffs`, one partition a window."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import dagster as dg

from assets.catalog import HEARTBEAT_DIFFS, HEARTBEATS, WATERMARK, windowed_asset
from assets.events import failing_run
from pipeline.clock import SystemClock, iso
from pipeline.errors import WindowExpired, WindowNotClosed
from pipeline.lake.tables.diffs import diff_schema
from pipeline.settings import Settings
from pipeline.spark.diffs import DiffPlan
from pipeline.spark.micro_batch import Computed, MicroBatch, compute_windows, refuse_open
from pipeline.windows import Window
from resources.lake import LakeResource
from resources.spark import SparkResource

NAMED_IN_METADATA = 10


def heartbeat_diffs_asset(settings: Settings) -> dg.AssetsDefinition:
    @windowed_asset(settings, HEARTBEAT_DIFFS, diff_schema(settings.message.fields), deps=[HEARTBEATS, WATERMARK])
    def heartbeat_diffs(context: dg.AssetExecutionContext, lake: LakeResource, spark: SparkResource) -> None:
        """Each stream's heartbeats beside the one before: gap, missed heartbeats, and how the compared fields changed.
        One partition a window, computed once the watermark has passed its end; any window can be computed again, alone
        or in a range, and gives the same rows."""
        windows = sorted(map(settings.windowing.named, context.partition_keys))
        with failing_run(WindowExpired, WindowNotClosed):
            computed, watermark = compute_range(windows, lake, spark, context.run.run_id)
        for key in computed.rows:
            metadata = metadata_of(computed, key, watermark)
            context.add_asset_metadata(metadata, asset_key=HEARTBEAT_DIFFS, partition_key=key)
        context.log.info(
            f"computed {len(computed.rows)} windows, {sum(computed.rows.values())} rows, from version "
            f"{computed.heartbeats_version} of heartbeats ({computed.input_rows} rows in its files)"
        )
        if computed.superseded:
            context.log.info(
                f"another run has computed these windows from input that is as new: {', '.join(computed.superseded)}"
            )

    return heartbeat_diffs


def compute_range(
    windows: Sequence[Window], lake: LakeResource, spark: SparkResource, run: str
) -> tuple[Computed, datetime | None]:
    """Compute windows without a gap between them and replace them in the lake. Also returns the watermark relied on.

    Raises WindowNotClosed and WindowExpired, before Spark is used, and other TidemarkErrors.
    """
    settings = lake.settings
    lake.kept_windows().refuse_expired(windows)
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
    return compute_windows(batch, windows), watermark


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

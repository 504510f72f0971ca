"""The assets' keys, the specs of those that sensors keep up to date, and what assets and sensors have in common."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg
import pyarrow as pa

from tidemark.assets.partitions import Partitions
from tidemark.pipeline.ingest.pace import last_look, least_interval
from tidemark.pipeline.lake.log.codec import CELLS
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_schema
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE
from tidemark.pipeline.services.dagster_names import name_of
from tidemark.pipeline.settings import Settings

TRACKING_HISTOGRAM = dg.AssetKey("tracking_histogram")
WATERMARK = dg.AssetKey("watermark")
HEARTBEATS = dg.AssetKey("heartbeats")
QUARANTINED = dg.AssetKey("quarantine")
HEARTBEAT_DIFFS = dg.AssetKey("heartbeat_diffs")
STREAM_STATUS = dg.AssetKey("stream_status")
CORRECTIONS = dg.AssetKey("corrections")
WATERMARK_TUNING = dg.AssetKey("watermark_tuning")
COMPLETE_WINDOWS = dg.AssetKey("complete_windows")
ASSETS = (
    *(TRACKING_HISTOGRAM, WATERMARK, HEARTBEATS, QUARANTINED, HEARTBEAT_DIFFS, STREAM_STATUS),
    *(CORRECTIONS, WATERMARK_TUNING),
)
"""Those whose old events of ticks are deleted. Each of `complete_windows` says that a partition is materialized."""

ON_COMPUTED: dg.AutomationCondition[Any] = (
    dg.AutomationCondition.any_deps_match(dg.AutomationCondition.newly_updated()).since(
        dg.AutomationCondition.newly_requested()
    )
    & ~dg.AutomationCondition.any_deps_missing()
    & ~dg.AutomationCondition.in_progress()
)
"""Requests a partition of an asset of your own when the one that it depends on is computed, or computed again, also
while a run of yours reads it. `eager()` alone looks at the newest partition only, and forgets what was computed again
while your run was at work."""

GROUP = "tidemark"


def key_of(settings: Settings, key: dg.AssetKey) -> dg.AssetKey:
    """The key of one of our assets: with `dagster.name`, that name comes before it."""
    return key.with_prefix(settings.dagster.name) if settings.dagster.name else key


def observed_assets(settings: Settings) -> list[dg.AssetSpec]:
    """Specs of the assets that no run computes: the histogram and the watermark, and where we land heartbeats and
    quarantine."""
    becomes = "be acknowledged for the first time on base" if settings.pubsub.attach else "land"
    tracked = [
        spec(
            settings,
            TRACKING_HISTOGRAM,
            "Counts and least event times of what was published, by publish-time and event-time second: Parquet "
            "snapshots in the tracking log, each durable before its messages are acknowledged.",
            kinds={"pubsub", "parquet"},
            schema=CELLS,
        ),
        spec(
            settings,
            WATERMARK,
            f"No message with an event time below it will still {becomes}, if the disorder is at most the band. Each "
            "tick decides it from the histogram and from the oldest unacknowledged messages of base and tracking; the "
            "metadata has the reason and the evidence.",
            kinds={"pubsub", "parquet"},
            deps=[TRACKING_HISTOGRAM],
            freshness_policy=dg.FreshnessPolicy.time_window(settings.checks.max_watermark_age),
        ),
    ]
    if settings.pubsub.attach:
        return tracked
    return [
        *tracked,
        spec(
            settings,
            HEARTBEATS,
            "Every valid message, whole, with the compared fields as columns. At least once: a redelivered message has "
            "two rows here and one in heartbeat_diffs.",
            kinds={"pubsub", "deltalake"},
            schema=heartbeat_schema(settings.message.kinds),
        ),
        spec(
            settings,
            QUARANTINED,
            "Every message that is not a valid heartbeat, whole, with the reason.",
            kinds={"pubsub", "deltalake"},
            schema=QUARANTINE,
        ),
    ]


def spec(
    settings: Settings,
    key: dg.AssetKey,
    description: str,
    *,
    schema: pa.Schema | None = None,
    deps: Sequence[dg.AssetKey] = (),
    **more: Any,
) -> dg.AssetSpec:
    """The spec of an asset that is not partitioned."""
    within = [key_of(settings, dep) for dep in deps]
    shown = _shown(settings, schema)
    return dg.AssetSpec(key_of(settings, key), deps=within, description=description, **shown, **more)


def windowed_asset(
    settings: Settings,
    key: dg.AssetKey,
    schema: pa.Schema | None,
    deps: Sequence[dg.AssetKey],
    partitions: Partitions,
    **more: Any,
) -> Callable[..., dg.AssetsDefinition]:
    """The decorator of an asset that Spark computes by window. The docstring describes it in the UI."""
    decorator: Callable[..., dg.AssetsDefinition] = dg.asset(
        key=key_of(settings, key),
        deps=[key_of(settings, dep) for dep in deps],
        partitions_def=partitions.definition(),
        backfill_policy=dg.BackfillPolicy.single_run(),
        kinds={"pyspark", "deltalake"},
        **_shown(settings, schema),
        **more,
    )
    return decorator


def ticking_sensor(
    settings: Settings, name: str, *, waits: bool = False, at_least: timedelta = timedelta(0), **more: Any
) -> Callable[..., dg.SensorDefinition]:
    """The decorator of a sensor that is on from the start and ticks as the settings say. Its function `waits` for the
    moment that is due, or is evaluated whenever Dagster's daemon looks about a tick after the last, and not before
    `at_least` has passed."""
    from tidemark.assets.watching import watched  # Google's clients: who only names assets needs none

    tick = max(settings.watermark.tick, at_least)
    least = least_interval(tick) if waits else last_look(tick)
    running = dg.DefaultSensorStatus.RUNNING
    sensor = dg.sensor(name=name_of(settings, name), minimum_interval_seconds=least, default_status=running, **more)
    return lambda evaluate: sensor(watched(settings, name, evaluate))


def _shown(settings: Settings, schema: pa.Schema | None) -> dict[str, Any]:
    """The group, the owners and the metadata that all assets have: the lake, and a table's columns."""
    metadata: dict[str, Any] = {"lake": settings.lake.uri}
    if schema is not None:
        columns = [
            dg.TableColumn(
                column.name, str(column.type), constraints=dg.TableColumnConstraints(nullable=column.nullable)
            )
            for column in schema
        ]
        metadata["dagster/column_schema"] = dg.TableSchema(columns=columns)
    return {"group_name": settings.dagster.name or GROUP, "owners": settings.dagster.owners, "metadata": metadata}

"""Asset keys, the specs of external assets (those that Dagster does not compute), and the attributes of all assets."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa

from tidemark.pipeline.contract.messages import described
from tidemark.pipeline.lake.log.codec import CELL_COLUMNS, CELLS
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_columns
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE, QUARANTINE_COLUMNS
from tidemark.pipeline.orchestrator.names import PIPELINE, name_of, pipeline_tag
from tidemark.pipeline.settings import Settings

TOPIC = dg.AssetKey("topic")
BASE_SUBSCRIPTION = dg.AssetKey("base_subscription")
TRACKING_SUBSCRIPTION = dg.AssetKey("tracking_subscription")
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
"""The assets whose old tick events housekeeping deletes. `complete_windows` is not one of them, because its events
record which partitions are materialized."""

GROUP = "tidemark"

Columns = tuple[pa.Schema, Mapping[str, str]]
"""A table's schema, and a description of each column."""


def key_of(settings: Settings, key: dg.AssetKey) -> dg.AssetKey:
    """Return the key of an asset, prefixed with `dagster.name` if that is set."""
    return key.with_prefix(settings.dagster.name) if settings.dagster.name else key


def on_computed(settings: Settings, tables: Iterable[str] = ()) -> dg.AutomationCondition[Any]:
    """Return a condition that requests a partition of your asset each time its upstream partition is computed or
    recomputed. Only upstream assets over this pipeline's windows count, including its custom tables. `tables` names
    custom tables outside the settings. If the upstream partition is recomputed while your asset's run reads it, another
    run follows. `eager()` alone misses this case, and looks only at the newest partition."""
    keys = (HEARTBEAT_DIFFS, STREAM_STATUS, COMPLETE_WINDOWS, *map(dg.AssetKey, (*settings.tables, *tables)))
    ours = dg.AssetSelection.assets(*(key_of(settings, key) for key in keys))
    updated = dg.AutomationCondition.any_deps_match(dg.AutomationCondition.newly_updated()).allow(ours)
    missing = dg.AutomationCondition.any_deps_missing().allow(ours)
    requested, in_progress = dg.AutomationCondition.newly_requested(), dg.AutomationCondition.in_progress()
    return updated.since(requested) & ~missing & ~in_progress


def topic_assets(settings: Settings, topic: dg.AssetKey | None) -> list[dg.AssetSpec]:
    """Return the specs of the topic and of both subscriptions. If `topic` is the key of the user's own asset for the
    topic, return only the specs of the subscriptions."""
    pubsub = settings.pubsub
    part = f" It receives only the messages that pass its filter: `{pubsub.filter}`." if pubsub.filter else ""
    read_by = "Another consumer reads it." if pubsub.attach else "The pipeline lands what it delivers."
    described = [
        (TOPIC, pubsub.topic_path, "The topic to which the sources publish. Both subscriptions receive its messages."),
        (
            BASE_SUBSCRIPTION,
            pubsub.base_path,
            f"Base, the subscription that carries the data. {read_by} The watermark also follows the oldest message "
            f"that is not acknowledged here.{part}",
        ),
        (
            TRACKING_SUBSCRIPTION,
            pubsub.tracking_path,
            "Tracking, the second subscription of the topic. Only the metadata of its messages is kept, so it can be "
            f"read far ahead of base.{part}",
        ),
    ]
    found = [spec(settings, key, about, uri=uri, kinds={"pubsub"}) for key, uri, about in described]
    of_topic = found[0].key if topic is None else topic
    return [*(found[:1] if topic is None else []), *(one.replace_attributes(deps=[of_topic]) for one in found[1:])]


def observed_assets(settings: Settings, topic: dg.AssetKey | None = None) -> list[dg.AssetSpec]:
    """Return the specs of the external assets: topic (unless `topic` is the user's own asset for it), subscriptions,
    histogram and watermark. Without `pubsub.attach`, also return those of heartbeats and quarantine."""
    tracking = name_of(settings, "tracking")
    becomes = "be acknowledged for the first time on base" if settings.pubsub.attach else "land"
    tracked = [
        *topic_assets(settings, topic),
        spec(
            settings,
            TRACKING_HISTOGRAM,
            "The number of published messages and their smallest event time, for each publish-time second and "
            "event-time second. It is stored as Parquet snapshots in the tracking log. A snapshot is durable before "
            f"its messages are acknowledged. The sensor `{tracking}` adds to it.",
            uri=within(settings, "tracking/log"),
            kinds={"pubsub", "parquet"},
            columns=(CELLS, CELL_COLUMNS),
            deps=[TRACKING_SUBSCRIPTION],
        ),
        spec(
            settings,
            WATERMARK,
            "If the disorder is at most the band, no message with an event time below the watermark will still "
            f"{becomes}. Each tick of the sensor `{tracking}` decides the watermark from the histogram and from the "
            "oldest unacknowledged messages of base and tracking. The metadata has the reason and the evidence.",
            uri=within(settings, "watermark.json"),
            kinds={"pubsub", "parquet"},
            deps=[TRACKING_HISTOGRAM, BASE_SUBSCRIPTION],
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
            "Every valid message in full, with the compared fields as columns. A redelivered message can have several "
            "rows here, but has only one in heartbeat_diffs.",
            uri=within(settings, "heartbeats"),
            kinds={"pubsub", "deltalake"},
            columns=described(heartbeat_columns(settings.message.kinds)),
            deps=[BASE_SUBSCRIPTION],
        ),
        spec(
            settings,
            QUARANTINED,
            "Every message that is not a valid heartbeat, in full, with the reason.",
            uri=within(settings, "quarantine"),
            kinds={"pubsub", "deltalake"},
            columns=(QUARANTINE, QUARANTINE_COLUMNS),
            deps=[BASE_SUBSCRIPTION],
        ),
    ]


def within(settings: Settings, path: str) -> str:
    """Return the address of a path in the lake."""
    return f"{settings.lake.uri}/{path}"


def spec(
    settings: Settings,
    key: dg.AssetKey,
    description: str,
    *,
    uri: str,
    columns: Columns | None = None,
    deps: Sequence[dg.AssetKey] = (),
    **more: Any,
) -> dg.AssetSpec:
    """Build the spec of an asset, with the attributes that all assets share."""
    upstream = [key_of(settings, dep) for dep in deps]
    return dg.AssetSpec(
        key_of(settings, key), deps=upstream, description=description, **shown(settings, uri, columns), **more
    )


def shown(settings: Settings, uri: str, columns: Columns | None) -> dict[str, Any]:
    """Return the attributes that all assets share: group, owners and metadata. The metadata has the asset's address,
    the pipeline's identity, and a table's columns."""
    metadata: dict[str, Any] = {"dagster/uri": uri, PIPELINE: pipeline_tag(settings.lake.uri)}
    if columns is not None:
        schema, about = columns
        listed = [
            dg.TableColumn(each.name, str(each.type), about[each.name], dg.TableColumnConstraints(each.nullable))
            for each in schema
        ]
        metadata["dagster/column_schema"] = dg.TableSchema(columns=listed)
    return {"group_name": settings.dagster.name or GROUP, "owners": settings.dagster.owners, "metadata": metadata}

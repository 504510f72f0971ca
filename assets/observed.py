"""The assets that the sensors keep up to date, and how they depend on each other."""

from collections.abc import Mapping, Sequence

import dagster as dg
import pyarrow as pa

from pipeline.lake.log.codec import CELLS
from pipeline.lake.tables.heartbeats import heartbeat_schema
from pipeline.lake.tables.quarantine import QUARANTINE
from pipeline.settings import Settings

TRACKING_HISTOGRAM = dg.AssetKey("tracking_histogram")
WATERMARK = dg.AssetKey("watermark")
HEARTBEATS = dg.AssetKey("heartbeats")
QUARANTINED = dg.AssetKey("quarantine")
HEARTBEAT_DIFFS = dg.AssetKey("heartbeat_diffs")

GROUP = "tidemark"


def observed_assets(settings: Settings) -> list[dg.AssetSpec]:
    """Specs of the assets that no run computes: the histogram and the watermark, heartbeats and quarantine."""
    return [
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
            "No message with an event time below it will still land, if the disorder is at most the band. Each tick "
            "decides it from the histogram and from the oldest unacknowledged messages of base and tracking; the "
            "metadata has the reason and the evidence.",
            kinds={"pubsub", "parquet"},
            deps=[TRACKING_HISTOGRAM],
        ),
        spec(
            settings,
            HEARTBEATS,
            "Every valid message, whole, with the compared fields as columns. At least once: a redelivered message has "
            "two rows here and one in heartbeat_diffs.",
            kinds={"pubsub", "deltalake"},
            schema=heartbeat_schema(settings.message.fields),
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
    kinds: set[str],
    schema: pa.Schema | None = None,
    deps: Sequence[dg.AssetKey] = (),
) -> dg.AssetSpec:
    """An asset's spec with the owners, kinds and table columns that all assets here have."""
    metadata: Mapping[str, object] = {} if schema is None else {"dagster/column_schema": column_schema(schema)}
    return dg.AssetSpec(
        key,
        deps=deps,
        description=description,
        group_name=GROUP,
        kinds=kinds,
        owners=settings.dagster.owners,
        metadata={**metadata, "lake": settings.lake.uri},
    )


def column_schema(schema: pa.Schema) -> dg.TableSchema:
    """A table's columns as Dagster shows them."""
    return dg.TableSchema(
        columns=[
            dg.TableColumn(
                column.name, str(column.type), constraints=dg.TableColumnConstraints(nullable=column.nullable)
            )
            for column in schema
        ]
    )

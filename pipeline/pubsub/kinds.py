"""The meaning of an acknowledgement on a subscription that somebody else reads, by its kind, as Google documents it."""

from collections.abc import Iterator
from typing import Any

from tidemark.pipeline.durations import format_duration


def promises(found: Any) -> Iterator[str]:
    """Say what a watermark over the subscription promises, in a sentence for each option that matters. What voids the
    promise, `requirements.dangers` says."""
    yield f"{found.name} {_acknowledged(found)}"
    if found.enable_exactly_once_delivery:
        yield "it delivers exactly once: what counts as acknowledged is not delivered again"
    else:
        yield "it delivers at least once: the first acknowledgement of a message counts, and the message may come again"
    if found.filter:
        yield f"it has the filter {found.filter!r}, as tracking has: other messages are outside of the promise"
    kept = format_duration(found.message_retention_duration)
    yield f"it keeps unacknowledged messages for {kept}: what is not read by then is gone, and the watermark passes it"


def _acknowledged(found: Any) -> str:
    if "bigquery_config" in found:
        return (
            f"writes to the BigQuery table {found.bigquery_config.table}: a message is acknowledged once BigQuery has "
            "taken its row, so the table has every event below the watermark, some perhaps twice"
        )
    if "cloud_storage_config" in found:
        return (
            f"writes to the bucket {found.cloud_storage_config.bucket}: a message is acknowledged once its file is "
            "finalized, so the bucket's files have every event below the watermark, which waits for their max_duration"
        )
    if "bigtable_config" in found:
        return (
            f"writes to the Bigtable table {found.bigtable_config.table}: a message is acknowledged once its row is "
            "committed, so the table has every event below the watermark"
        )
    if found.push_config.push_endpoint:
        return (
            f"pushes to {found.push_config.push_endpoint}: a message is acknowledged once that answers with success, "
            "so the promise is worth what it has made durable by then"
        )
    return (
        "is pulled by others: a message is acknowledged when its reader says so, so the promise is worth what the "
        "reader has made durable by then (Dataflow: the first fused stage, not yet the sink)"
    )

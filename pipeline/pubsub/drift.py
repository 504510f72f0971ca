"""Checks the current state of the two subscriptions: their options may have changed since `provision`."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.pubsub.connection import reported
from tidemark.pipeline.pubsub.requirements import dangers, differences, followed, refusals
from tidemark.pipeline.settings_sections import PubSubSettings

LOOKS_WITHIN = timedelta(seconds=10)
"""Timeout of one request. It runs concurrently with a tick, and its answer is not urgent."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Human-readable sentences, each with a remedy. `breaks`: the method does not hold. `dangers`: messages will be
    lost later. `differences` from the settings cost or surprise, nothing more. `promises`: what a watermark over base
    promises, if somebody else reads base."""

    breaks: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()


def look_at_subscriptions(client: SubscriberClient, settings: PubSubSettings, contract: MessageContract) -> Drift:
    """Find problems of the two subscriptions, with two requests that are not retried. Changes nothing.

    Raises PubSubUnreachable, and PermissionMissing without `pubsub.subscriptions.get` on them.
    """
    paths = {"tracking": settings.tracking_path, "base": settings.base_path}
    found = {role: _find(client, path) for role, path in paths.items()}
    settings = followed(settings, found["base"])
    missing = tuple(
        f"{paths[role]} does not exist: run `tidemark provision`, or correct pubsub.{role}_subscription; messages "
        "published before it exists never reach it"
        for role, one in found.items()
        if one is None and paths[role] != settings.read_by_others
    )
    existing = [(role, one) for role, one in found.items() if one is not None]
    return Drift(
        breaks=(*missing, *refusals(settings, contract, found["tracking"], found["base"])),
        dangers=tuple(sentence for role, one in existing for sentence in dangers(role, one, attach=settings.attach)),
        differences=tuple(sentence for role, one in existing for sentence in differences(settings, role, one)),
        promises=tuple(promises(found["base"])) if settings.attach and found["base"] is not None else (),
    )


def _find(client: SubscriberClient, path: str) -> Any | None:
    with reported("look up", path, "pubsub.subscriptions.get on it"):
        try:
            return client.get_subscription(subscription=path, retry=None, timeout=LOOKS_WITHIN.total_seconds())
        except api.NotFound:
            return None


def promises(found: Any) -> Iterator[str]:
    """Yield what a watermark over the subscription promises, a sentence for each relevant option.
    `requirements.dangers` covers what voids the promise."""
    yield f"{found.name} {_acknowledged(found)}"
    if found.enable_exactly_once_delivery:
        yield "it delivers exactly once: what counts as acknowledged is not delivered again"
    else:
        yield "it delivers at least once: the first acknowledgement of a message counts, and it may be redelivered"
    if found.filter:
        yield f"it has the filter {found.filter!r}, as tracking has: other messages are outside the promise"
    kept = format_duration(found.message_retention_duration)
    yield f"it keeps unacknowledged messages for {kept}: unread messages are lost then, and the watermark passes them"


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
            "so the promise covers only what the endpoint has made durable by then"
        )
    return (
        "is pulled by others: a message is acknowledged when its reader says so, so the promise covers only what "
        "the reader has made durable by then (Dataflow: the first fused stage, not yet the sink)"
    )

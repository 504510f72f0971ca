"""The options that the two subscriptions need for a correct watermark.

This module builds the request that creates a subscription. It also checks existing subscriptions, whose options may
have changed since `tidemark provision`. It distinguishes options that make the watermark wrong from options that merely
differ from the settings.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from google.pubsub_v1 import SubscriberClient

from tidemark.pipeline.clock import format_duration
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.pubsub.connection import Resources
from tidemark.pipeline.pubsub.leases import LEASE
from tidemark.pipeline.settings_sections import PubSubSettings

DEFAULT_EXPIRY = timedelta(days=31)
"""Time without use after which Pub/Sub deletes a subscription that has no expiration policy."""

DELETED_TOPIC = "_deleted-topic_"
"""Topic that Pub/Sub reports for a subscription whose topic was deleted."""

TRANSFORM_CODE = """\
function keepMetadata(message, metadata) {
  const attributes = message.attributes || {};
  return {data: Object.keys(attributes).length > 0 ? '' : '-', attributes: attributes};
}
"""
"""JavaScript that drops the payload and keeps the attributes. Pub/Sub requires a payload or an attribute, so a message
without attributes gets a dash as its payload."""

KEEP_METADATA = [{"javascript_udf": {"function_name": "keepMetadata", "code": TRANSFORM_CODE}}]


def wanted(settings: PubSubSettings, path: str, lease: timedelta = LEASE) -> dict[str, Any]:
    """Return the request that creates the subscription at `path`: a pull subscription that never expires, with the
    filter from the settings."""
    drops_payload = settings.metadata_only and path == settings.tracking_path
    return {
        "name": path,
        "topic": settings.topic_path,
        "ack_deadline_seconds": int(lease.total_seconds()),
        "message_retention_duration": settings.retention,
        "expiration_policy": {},  # present but without a TTL: it never expires
        "filter": settings.filter,
        "message_transforms": KEEP_METADATA if drops_payload else [],
    }


def followed(settings: PubSubSettings, base: Any | None) -> PubSubSettings:
    """Return the settings for the two subscriptions. With `pubsub.attach`, the filter of the existing subscription
    `base` replaces an empty filter."""
    if settings.attach and base is not None and not settings.filter:
        return settings.model_copy(update={"filter": base.filter})
    return settings


def refusals(
    settings: PubSubSettings, contract: MessageContract, tracking: Any | None, base: Any | None
) -> Iterator[str]:
    """Yield each reason why a watermark over these subscriptions would be wrong, with a remedy. `tracking` or `base` is
    None if the subscription does not exist yet."""
    if settings.metadata_only and contract.needs_payload:
        yield (
            "pubsub.metadata_only = true drops the payload on tracking, but message.each, message.event_time, "
            "message.stream_id or message.publisher_id is read from the payload: publish these as attributes, or set "
            "pubsub.metadata_only to false"
        )
    if settings.attach and base is None:
        yield (
            f"{settings.base_path} does not exist, and with pubsub.attach tidemark never creates it: name the "
            "other application's subscription in pubsub.base_subscription and pubsub.project, or have it created"
        )
    for role, found in (("tracking", tracking), ("base", base)):
        if found is not None:
            yield from _breaks(contract, role, found, settings)
    tracked = settings.retention if tracking is None else tracking.message_retention_duration
    kept = settings.retention if base is None else base.message_retention_duration
    if tracked < kept:
        remedy = (
            f"set pubsub.retention to {format_duration(kept)}"
            if tracking is None
            else f"run `{_update(tracking)} --message-retention-duration={_seconds(kept)}s`"
        )
        yield (
            f"{settings.tracking_path} keeps messages for {format_duration(tracked)} and {settings.base_path} for "
            f"{format_duration(kept)}, so tracking could lose messages that base still delivers: {remedy}"
        )


def lacks_schema(topic: str, contract: MessageContract) -> str:
    """Return a warning that a topic has no schema, although the contract needs one to read messages."""
    return (
        f"{topic} has no schema, but message.payload = {contract.payload.encoding.value!r} with an empty "
        "message.schema needs one: all messages would go to quarantine (UNREADABLE_PAYLOAD). Before "
        f"you publish, give the topic its schema, `gcloud pubsub topics update {named(topic)} "
        "--schema=NAME --message-encoding=binary`, or create the topic again with a schema; or name a schema file in "
        "message.schema"
    )


def ignored(settings: PubSubSettings) -> Iterator[str]:
    """Yield a sentence for each setting that the emulator ignores."""
    if settings.emulator_host is not None and settings.metadata_only:
        yield "pubsub.metadata_only: the emulator ignores message transforms, so tracking carries the payload"
    if settings.emulator_host is not None and settings.filter and settings.emulator != "local":
        yield (
            "pubsub.filter: Google's official emulator stores filters but ignores them, so both subscriptions "
            'would get every message; use tidemark\'s own Pub/Sub, which applies them: pubsub.emulator = "local"'
        )


def _breaks(contract: MessageContract, role: str, found: Any, settings: PubSubSettings) -> Iterator[str]:
    name = found.name
    another = f"name another subscription in pubsub.{role}_subscription"
    again = f"delete it and provision again (undelivered messages are lost), or {another}"
    if name == settings.read_by_others:
        again = another
    if found.topic == DELETED_TOPIC:
        yield f"{name} belonged to a topic that was deleted, and gets no messages: {again}"
    elif found.topic != settings.topic_path:
        yield f"{name} is attached to {found.topic}, not to {settings.topic_path}: correct pubsub.topic, or {again}"
    if found.detached:
        yield f"{name} is detached from its topic, and gets no messages: {again}"
    if found.filter != settings.filter:
        has, wants = (f"the filter {text!r}" if text else "no filter" for text in (found.filter, settings.filter))
        yield (
            f"{name} has {has}, and pubsub.filter asks for {wants}. A filter is fixed for a subscription's life: set "
            f"pubsub.filter to the filter that both subscriptions have, or {again}"
        )
    if name == settings.read_by_others:
        return
    if found.dead_letter_policy.dead_letter_topic:
        yield (
            f"{name} moves messages to the dead-letter topic {found.dead_letter_policy.dead_letter_topic}: run "
            f"`{_update(found)} --clear-dead-letter-policy`"
        )
    if found.push_config.push_endpoint:
        yield (
            f"{name} pushes to {found.push_config.push_endpoint}, but tidemark pulls: run "
            f"`gcloud pubsub subscriptions modify-push-config {named(found.name)} --push-endpoint=`, or {another}"
        )
    for config in EXPORTS:
        if config in found:
            yield f"{name} exports its messages ({config}), and cannot be pulled from: {another}"
    for transform in found.message_transforms:
        if transform.disabled:
            continue
        if role == "base" or transform.javascript_udf.code != TRANSFORM_CODE:
            yield (
                f"{name} has a message transform, which may drop or change messages on this subscription alone: move "
                "it to the topic, where it is the same for both"
            )
        elif contract.needs_payload:
            yield (
                f"{name} drops the payload, but message.each, message.event_time, message.stream_id or "
                "message.publisher_id is read from the payload: remove the subscription's message transform"
            )


def differences(settings: PubSubSettings, role: str, found: Any) -> Iterator[str]:
    """Yield a sentence for each option of an existing subscription that differs from the settings, or that tidemark
    does not need. `role` is tracking or base. Yields nothing if another application reads the subscription."""
    if found.name == settings.read_by_others:
        return
    name, update = found.name, _update(found)
    kept = found.message_retention_duration
    if kept != settings.retention:
        run = f"run `{update} --message-retention-duration={_seconds(settings.retention)}s`"
        remedy = run if kept < settings.retention else f"set pubsub.retention to {format_duration(kept)}"
        yield (
            f"{name} keeps unacknowledged messages for {format_duration(kept)}, but pubsub.retention is "
            f"{format_duration(settings.retention)}: {remedy}"
        )
    if found.enable_exactly_once_delivery:
        yield (
            f"{name} delivers exactly once, which tidemark does not need and which is slower: run "
            f"`{update} --no-enable-exactly-once-delivery`"
        )
    if found.enable_message_ordering:
        yield f"{name} delivers in order, which tidemark does not need and which cannot be turned off"
    drops = any(not transform.disabled for transform in found.message_transforms)
    if role == "tracking" and drops != settings.metadata_only:
        yield (
            f"{name} {'drops' if drops else 'carries'} the payload, but pubsub.metadata_only is "
            f"{str(settings.metadata_only).lower()}: change the setting, or the subscription's message transforms"
        )


def dangers(role: str, found: Any, *, attach: bool = False) -> Iterator[str]:
    """Yield a sentence for each option that will lose messages later, although the watermark is right at present. With
    `attach`, also yield one for each option that removes unread messages from base, and one if base cannot deliver."""
    if attach and role == "base":
        yield from _unread(found)
    expiry = found.expiration_policy.ttl if "expiration_policy" in found else DEFAULT_EXPIRY
    if expiry:  # without a TTL, it never expires
        yield (
            f"Pub/Sub will DELETE the {role} subscription {found.name}, with all undelivered messages, if "
            f"nothing pulls from it for {format_duration(expiry)}: run `{_update(found)} --expiration-period=never` now"
        )


def _unread(found: Any) -> Iterator[str]:
    name, dead = found.name, found.dead_letter_policy
    if dead.dead_letter_topic:
        yield (
            f"{name} moves messages to the dead-letter topic {dead.dead_letter_topic} after "
            f"{dead.max_delivery_attempts} attempts. Such a message leaves the subscription although no reader "
            "acknowledged it, and the watermark passes it. Watch the dead-letter topic"
        )
    if any(not transform.disabled for transform in found.message_transforms):
        yield (
            f"{name} has a message transform: a message that the transform drops counts as acknowledged, and the "
            "watermark passes it although no reader got it"
        )
    if found.state == found.State.RESOURCE_ERROR:
        yield f"{name} cannot deliver (RESOURCE_ERROR): until it can, nothing is acknowledged, and the watermark holds"


def _update(found: Any) -> str:
    return f"gcloud pubsub subscriptions update {named(found.name)}"


def named(path: str) -> str:
    """Return the arguments `NAME --project=PROJECT` for `gcloud pubsub`, from a resource's full name."""
    _, project, _, name = path.split("/")
    return f"{name} --project={project}"


def _seconds(duration: timedelta) -> int:
    return int(duration.total_seconds())


@dataclass(frozen=True, slots=True)
class Drift:
    """Problems with the options of the subscriptions, as human-readable sentences, most of them with a remedy.

    - `breaks`: options that make the watermark wrong.
    - `dangers`: options that will lose messages later.
    - `differences`: options that differ from the settings. They are harmless, but may cost money or be unexpected.

    `promises` are not problems: they say what a watermark over base guarantees if another application reads base.
    """

    breaks: tuple[str, ...] = ()
    dangers: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    promises: tuple[str, ...] = ()


def compared(settings: PubSubSettings, contract: MessageContract, found: Mapping[str, Any | None]) -> Drift:
    """Compare the existing subscriptions with `settings`, the result of `followed`. `found` maps the roles base
    and tracking to the subscriptions; None means missing."""
    existing = [(role, one) for role, one in found.items() if one is not None]
    base = found["base"]
    return Drift(
        breaks=tuple(refusals(settings, contract, found["tracking"], base)),
        dangers=tuple(sentence for role, one in existing for sentence in dangers(role, one, attach=settings.attach)),
        differences=tuple(sentence for role, one in existing for sentence in differences(settings, role, one)),
        promises=tuple(promises(base)) if settings.attach and base is not None else (),
    )


def look_at_subscriptions(client: SubscriberClient, settings: PubSubSettings, contract: MessageContract) -> Drift:
    """Check the two subscriptions for problems. Changes nothing. Sends two requests, which are not retried.

    Raises PubSubUnreachable, and PermissionMissing if `pubsub.subscriptions.get` is missing on either subscription.
    """
    server, paths = Resources(client, look=True), {"tracking": settings.tracking_path, "base": settings.base_path}
    found = {role: server.find("subscription", path) for role, path in paths.items()}
    drift = compared(followed(settings, found["base"]), contract, found)
    missing = tuple(
        f"{paths[role]} does not exist: run `tidemark provision`, or correct pubsub.{role}_subscription; messages "
        "published earlier never reach it"
        for role, one in found.items()
        if one is None and paths[role] != settings.read_by_others
    )
    return replace(drift, breaks=(*missing, *drift.breaks))


def promises(found: Any) -> Iterator[str]:
    """Yield a sentence for each option that determines what a watermark over the subscription guarantees. Options that
    break the guarantee are reported by `dangers`."""
    yield f"{found.name} {_acknowledged(found)}"
    if found.enable_exactly_once_delivery:
        yield "it delivers exactly once: an acknowledged message is not delivered again"
    else:
        yield "it delivers at least once: the first acknowledgement of a message counts, and it may be redelivered"
    if found.filter:
        yield f"it has the filter {found.filter!r}, like tracking: the promise does not cover other messages"
    kept = format_duration(found.message_retention_duration)
    yield f"it keeps unacknowledged messages for {kept}: older unread messages are lost, and the watermark passes them"


EXPORTS: Mapping[str, str] = {
    "bigquery_config": "the BigQuery table {0.table}: a message is acknowledged once BigQuery has taken its row, so "
    "the table has every event below the watermark, some perhaps twice",
    "cloud_storage_config": "the bucket {0.bucket}: a message is acknowledged once its file is finalized, so the "
    "bucket's files have every event below the watermark; the watermark waits up to max_duration for a file",
    "bigtable_config": "the Bigtable table {0.table}: a message is acknowledged once its row is committed, so the "
    "table has every event below the watermark",
}
"""The options that make Pub/Sub itself export messages. Each has a phrase that names the destination and states the
watermark's promise about it. Nothing can pull from a subscription with such an option."""


def _acknowledged(found: Any) -> str:
    for config, text in EXPORTS.items():
        if config in found:
            return f"writes to {text.format(getattr(found, config))}"
    if found.push_config.push_endpoint:
        return (
            f"pushes to {found.push_config.push_endpoint}: a message is acknowledged once the endpoint answers with "
            "success, so the promise covers only what the endpoint has made durable by then"
        )
    return (
        "is pulled by others: their reader decides when to acknowledge a message, and the promise covers only what "
        "the reader has made durable by then (Dataflow: the first fused stage, not yet the sink)"
    )

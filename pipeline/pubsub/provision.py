"""Creates the topic and its two subscriptions, and refuses options that would make the watermark wrong.

The watermark relies on both subscriptions getting the same messages. Provisioning never changes existing resources. It
reports differences from the settings, and fails if an option would make the messages of the two subscriptions differ.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from google.pubsub_v1 import PublisherClient, SubscriberClient

from tidemark.pipeline.clock import Clock, iso, rough
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.errors import ProvisionRefused, PubSubError, SnapshotRefused
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import Resources, publisher_client, refuse_foreign_server, subscriber_client
from tidemark.pipeline.pubsub.leases import LEASE
from tidemark.pipeline.pubsub.requirements import compared, followed, ignored, lacks_schema, refusals, wanted
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings

CREATE = {
    "topic": "pubsub.topics.create on the project",
    "subscription": "pubsub.subscriptions.create on the project and pubsub.topics.attachSubscription on the topic",
}


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """The result of provisioning: the full names of created and of existing resources, sentences about differences from
    the settings, and warnings."""

    created: list[str]
    found: list[str]
    differences: list[str]
    warnings: list[str]


def provision(
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    settings: PubSubSettings,
    contract: MessageContract,
    clock: Clock,
    signal_topic: str | None = None,
    lease: timedelta = LEASE,
) -> ProvisionReport:
    """Create what is missing: first the topic, then the tracking subscription, then the base subscription. Because of
    this order, tracking gets every message that base gets. The topic for watermark signals, if configured, comes last.

    With `pubsub.attach`, base must exist, and tracking gets base's filter. Idempotent, and safe to run concurrently.
    Changes no existing resource. Raises ProvisionRefused with all reasons why the watermark would be wrong. Checks what
    it can before it creates anything. Also raises PubSubUnreachable, PermissionMissing and other PubSubErrors.
    """
    server = Resources(subscriber, publisher)
    topic, paths = settings.topic_path, {"tracking": settings.tracking_path, "base": settings.base_path}
    topic_found = server.find("topic", topic)
    created = {topic: topic_found is None}
    found = {role: server.find("subscription", path) for role, path in paths.items()}
    settings = followed(settings, found["base"])
    _refuse(refusals(settings, contract, **found))

    created[topic] = created[topic] and server.create("topic", {"name": topic}, CREATE["topic"])
    tracking_created_at = None
    for role, path in paths.items():
        request = wanted(settings, path, lease)
        created[path] = found[role] is None and server.create("subscription", request, CREATE["subscription"])
        if found[role] is None and not created[path]:  # another provisioning was faster: check its subscription
            found[role] = server.find("subscription", path)
        if role == "tracking" and created[path]:
            tracking_created_at = clock.now()
    drift = compared(settings, contract, found)
    _refuse(drift.breaks)
    if signal_topic is not None:
        is_missing = server.find("topic", signal_topic) is None
        created[signal_topic] = is_missing and server.create("topic", {"name": signal_topic}, CREATE["topic"])

    warnings = [*drift.dangers]
    if tracking_created_at is not None and not created[settings.base_path]:
        warnings += _older_backlog(subscriber, settings, clock, tracking_created_at)
    warnings += ignored(settings)
    if contract.payload.asks_for_schemas and (topic_found is None or not topic_found.schema_settings.schema):
        warnings.append(lacks_schema(topic, contract))
    return ProvisionReport(
        created=[path for path, is_new in created.items() if is_new],
        found=[path for path, is_new in created.items() if not is_new],
        differences=[*drift.differences],
        warnings=warnings,
    )


def provision_here(settings: Settings, clock: Clock) -> ProvisionReport:
    """Create the topic and the two subscriptions that the settings name, if they are missing. See `provision`."""
    server = settings.pubsub.server
    refuse_foreign_server(settings.pubsub.emulator_host)
    clients = subscriber_client(*server), publisher_client(*server)
    return provision(*clients, settings.pubsub, settings.contract, clock, settings.signal_topic)


def _refuse(reasons: Iterable[str]) -> None:
    if found := "; ".join(reasons):
        raise ProvisionRefused(
            f"existing resources are unchanged; the watermark would be wrong with these subscriptions: {found}"
        )


def _older_backlog(
    subscriber: SubscriberClient, settings: PubSubSettings, clock: Clock, tracking_created_at: datetime
) -> Iterator[str]:
    base = settings.base_path
    if settings.attach:
        yield (
            "tracking is new: the watermark holds (HELD_INCOMPLETE) until all messages that were published before "
            f"tracking existed are acknowledged on {base}"
        )
        return
    held = "the watermark holds (HELD_INCOMPLETE) until base has landed all messages from before tracking existed"
    try:
        reading = SnapshotBacklog(subscriber, base, ReadingTimes(clock)).read()
    except SnapshotRefused:
        yield f"{base} holds messages that are almost 7 days old, and tracking is new: {held}"
    except PubSubError as error:
        yield f"tracking is new, and the backlog of {base} cannot be read ({error}): if it has older messages, {held}"
    else:
        if reading.names_a_message and reading.oldest_unacked < tracking_created_at:
            since, age = iso(reading.oldest_unacked), rough(tracking_created_at - reading.oldest_unacked)
            yield f"{base} holds messages since {since}, {age} before tracking was created: {held}"

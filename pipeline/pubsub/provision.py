"""Creating the topic and its two subscriptions, and refusing what would break the method.

The watermark rests on both subscriptions being given the same messages. What exists already is never changed:
what differs from the settings is reported, and what would part the two subscriptions is refused.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import PublisherClient, SubscriberClient

from pipeline.clock import Clock, iso
from pipeline.durations import format_duration
from pipeline.errors import ProvisionRefused, PubSubError, SnapshotRefused
from pipeline.heartbeat import MessageContract
from pipeline.pubsub.backlog import SnapshotBacklog
from pipeline.pubsub.connection import reported, retrying
from pipeline.pubsub.rules import dangers, differences, refusals, wanted
from pipeline.settings import PubSubSettings

RUN_PERMISSIONS: Mapping[str, str] = {
    "pubsub.subscriptions.consume": "on both subscriptions: to pull, to acknowledge, and to take a reading",
    "pubsub.snapshots.create": "on the project: a reading is a snapshot's expiry",
    "pubsub.snapshots.delete": "on the project: the snapshot is deleted at once",
    "pubsub.snapshots.list": "on the project: to sweep what a crash left behind",
    "monitoring.timeSeries.list": "on the project: for readings by monitoring, where they are used",
}
"""The least that running needs: each permission, where, and why. `reading = "snapshot"` does without the last one,
`reading = "monitoring"` without those on snapshots; with `reading = "auto"` a lack of the last one is told, and the
snapshots go on."""

PUBLISH_PERMISSIONS: Mapping[str, str] = {"pubsub.topics.publish": "on the topic: for `tidemark publish` only"}
"""The least that the synthetic source needs."""

PROVISION_PERMISSIONS: Mapping[str, str] = {
    "pubsub.topics.get": "on the topic: to see whether it is there",
    "pubsub.topics.create": "on the project: where the topic is missing",
    "pubsub.topics.attachSubscription": "on the topic: where a subscription is missing",
    "pubsub.subscriptions.get": "on both subscriptions: to compare them with the settings",
    "pubsub.subscriptions.create": "on the project: where a subscription is missing",
    "pubsub.subscriptions.consume": "on base: to read an existing backlog when tracking is new",
    "pubsub.snapshots.create": "on the project: for that reading",
    "pubsub.snapshots.delete": "on the project: for that reading",
}
"""The least that `provision` needs."""

CREATE = "pubsub.subscriptions.create on the project and pubsub.topics.attachSubscription on the topic"


@dataclass(frozen=True, slots=True)
class ProvisionReport:
    """What was done. `created` and `found` are full resource names; the others are sentences for a person.

    `tracking_created_at` is a moment just after tracking was created, None where it was there before: every
    message that is published from then on is on tracking, provided that this clock is not behind Pub/Sub's.
    """

    created: list[str]
    found: list[str]
    differences: list[str]
    warnings: list[str]
    tracking_created_at: datetime | None = None


def provision(
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    settings: PubSubSettings,
    contract: MessageContract,
    clock: Clock,
) -> ProvisionReport:
    """Create what is missing: the topic, tracking, then base, so that whatever base holds is on tracking as well.

    Idempotent, also against somebody who provisions at the same time. Nothing that exists is changed, and nothing
    is created where something is refused. Raises ProvisionRefused with everything that breaks the method at once,
    and PubSubUnreachable, PermissionMissing.
    """
    server = _Server(subscriber, publisher, settings)
    topic_found = server.has_topic()
    tracking, base = server.subscription(settings.tracking_path), server.subscription(settings.base_path)
    _refuse(refusals(settings, contract, tracking, base))

    topic_created = not topic_found and server.create_topic()
    tracking_created = tracking is None and server.create_subscription(wanted(settings, settings.tracking_path))
    tracking_created_at = clock.now() if tracking_created else None
    base_created = base is None and server.create_subscription(wanted(settings, settings.base_path))

    if tracking is None and not tracking_created:  # somebody else was quicker: look at what they made
        tracking = server.subscription(settings.tracking_path)
    if base is None and not base_created:
        base = server.subscription(settings.base_path)
    _refuse(refusals(settings, contract, tracking, base))

    existing = [(role, found) for role, found in (("tracking", tracking), ("base", base)) if found is not None]
    warnings = [sentence for role, found in existing for sentence in dangers(role, found)]
    if tracking_created_at is not None and not base_created:
        warnings += _older_backlog(subscriber, settings, clock, tracking_created_at)
    if settings.metadata_only and settings.emulator_host is not None:
        warnings.append("pubsub.metadata_only: the emulator ignores message transforms, tracking carries the payload")
    outcome = {
        settings.topic_path: topic_created,
        settings.tracking_path: tracking_created,
        settings.base_path: base_created,
    }
    return ProvisionReport(
        created=[path for path, created in outcome.items() if created],
        found=[path for path, created in outcome.items() if not created],
        differences=[sentence for role, found in existing for sentence in differences(settings, role, found)],
        warnings=warnings,
        tracking_created_at=tracking_created_at,
    )


def _refuse(reasons: Iterator[str]) -> None:
    if all_of_them := "; ".join(reasons):
        raise ProvisionRefused(
            "the two subscriptions would not see the same messages, and nothing that exists was changed: " + all_of_them
        )


def _older_backlog(
    subscriber: SubscriberClient, settings: PubSubSettings, clock: Clock, tracking_created_at: datetime
) -> Iterator[str]:
    """What base holds from before tracking was there, in a sentence; nothing where it holds none."""
    base = settings.base_path
    held = "the watermark holds (HELD_INCOMPLETE) until base has landed what was published before tracking existed"
    try:
        reading = SnapshotBacklog(subscriber, base, clock, settings.call_timeout).read()
    except SnapshotRefused:
        yield f"{base} holds messages that are almost 7 days old, and tracking is new: {held}"
    except PubSubError as error:
        yield f"tracking is new, and what {base} holds from before could not be read ({error}): if anything, {held}"
    else:
        if reading.names_a_message and reading.oldest_unacked < tracking_created_at:
            age = timedelta(seconds=round((tracking_created_at - reading.oldest_unacked).total_seconds()))
            yield (
                f"{base} holds messages since {iso(reading.oldest_unacked)}, {format_duration(age)} before tracking "
                f"was created: {held}"
            )


class _Server:
    """The few requests that are made, each bounded in time and with its errors explained."""

    def __init__(self, subscriber: SubscriberClient, publisher: PublisherClient, settings: PubSubSettings) -> None:
        self._subscriber = subscriber
        self._publisher = publisher
        self._topic = settings.topic_path
        self._bounds = {"retry": retrying(settings.call_timeout), "timeout": settings.call_timeout.total_seconds()}

    def has_topic(self) -> bool:
        with reported("look up", self._topic, "pubsub.topics.get"):
            return _done(lambda: self._publisher.get_topic(topic=self._topic, **self._bounds), unless=api.NotFound)

    def subscription(self, path: str) -> Any | None:
        """What exists at the path, or None."""
        with reported("look up", path, "pubsub.subscriptions.get"):
            try:
                return self._subscriber.get_subscription(subscription=path, **self._bounds)
            except api.NotFound:
                return None

    def create_topic(self) -> bool:
        """Whether it was us who created it."""
        with reported("create", self._topic, "pubsub.topics.create on the project"):
            request = {"name": self._topic}
            return _done(
                lambda: self._publisher.create_topic(request=request, **self._bounds), unless=api.AlreadyExists
            )

    def create_subscription(self, request: dict[str, Any]) -> bool:
        """Whether it was us who created it."""
        with reported("create", request["name"], CREATE):
            return _done(
                lambda: self._subscriber.create_subscription(request=request, **self._bounds), unless=api.AlreadyExists
            )


def _done(request: Callable[[], Any], unless: type[api.GoogleAPICallError]) -> bool:
    try:
        request()
    except unless:
        return False
    return True

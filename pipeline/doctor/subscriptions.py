"""The topic and the two subscriptions, against what the method needs."""

from collections.abc import Iterator
from typing import Any

from google.api_core import exceptions as api

from tidemark.local.services.stack import emulator_is_absent
from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok, warning
from tidemark.pipeline.doctor.topic_schema import look_at_schema
from tidemark.pipeline.errors import PermissionMissing, PubSubUnreachable, SubscriptionMissing
from tidemark.pipeline.pubsub.connection import (
    publisher_client,
    refuse_foreign_server,
    reported,
    subscriber_client,
)
from tidemark.pipeline.pubsub.drift import LOOKS_WITHIN, look_at_subscriptions
from tidemark.pipeline.pubsub.requirements import ignored


def check_subscriptions(setup: Setup) -> Iterator[Said]:
    """Both subscriptions as they are, and whether anybody answers at all."""
    pubsub = setup.settings.pubsub
    if emulator_is_absent(setup.settings):
        yield warning(
            f"nothing answers at {pubsub.emulator_host}, so topic and subscriptions are not known: `tidemark up` "
            "starts an emulator there"
        )
        return
    refuse_foreign_server(pubsub.emulator_host)
    client = subscriber_client(*pubsub.server)
    try:
        drift = look_at_subscriptions(client, pubsub, setup.settings.contract)
    except PermissionMissing as error:
        if pubsub.attach:
            raise
        yield warning(f"{error}; until then nobody notices when a subscription is changed")
        return
    finally:
        client.transport.close()
    yield from (broken(sentence) for sentence in drift.breaks)
    yield from (warning(sentence) for sentence in drift.dangers)
    for sentence in drift.differences:
        if " expires after " not in sentence:  # the dangers have said it
            yield warning(sentence)
    yield from (ok(sentence) for sentence in drift.promises)
    yield from map(warning, ignored(pubsub))
    if not drift.breaks:
        both = f", both with the filter {pubsub.filter!r}" if pubsub.filter else ""
        yield ok(f"{pubsub.tracking_path} and {pubsub.base_path} are what the method needs{both}")


def check_topic(setup: Setup) -> Iterator[Said]:
    """The topic: there, and with a schema that `message.payload` can read."""
    pubsub = setup.settings.pubsub
    if emulator_is_absent(setup.settings):
        return
    client = publisher_client(*pubsub.server)
    try:
        with reported("look up", pubsub.topic_path, "pubsub.topics.get on it"):
            topic = client.get_topic(topic=pubsub.topic_path, retry=None, timeout=LOOKS_WITHIN.total_seconds())
    except SubscriptionMissing as error:
        if isinstance(error.__cause__, api.NotFound):
            yield broken(
                f"the topic {pubsub.topic_path} does not exist: run `tidemark provision`, or mend pubsub.topic and "
                "pubsub.project"
            )
        return
    except PermissionMissing:
        yield ok(
            f"the topic {pubsub.topic_path} cannot be looked at without pubsub.topics.get on it, which only "
            "`tidemark provision` needs; whether its schema fits message.payload is not known"
        )
        return
    except PubSubUnreachable:  # the check of the subscriptions says it
        return
    finally:
        client.transport.close()
    yield from look_at_schema(setup, topic)
    yield from _regions(topic, pubsub.endpoint)
    yield ok(f"the topic {pubsub.topic_path} is there")


def _regions(topic: Any, endpoint: str | None) -> Iterator[Said]:
    policy = topic.message_storage_policy
    regions = list(policy.allowed_persistence_regions)
    if policy.enforce_in_transit and regions and not any(region in (endpoint or "") for region in regions):
        yield broken(
            f"{topic.name} may be asked in {', '.join(regions)} only, and pubsub.endpoint is "
            f"{endpoint or 'empty'}: set it to {regions[0]}-pubsub.googleapis.com:443"
        )

"""The requirements of attach on base, which may be of any kind, and on tracking, which gets the filter of base."""

import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from google.pubsub_v1 import SubscriberClient, types

from tests.fixtures_emulator import unique_pubsub
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import BaseReadByOthers, ProvisionRefused
from tidemark.pipeline.pubsub import requirements
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import ProvisionReport, provision
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings

SETTINGS = PubSubSettings(attach=True)
CONTRACT = Settings().contract
TRANSFORM = {"javascript_udf": {"function_name": "f", "code": "function f(m) {return null}"}}


def base(**options: Any) -> types.Subscription:
    """Somebody's base: a week's retention, and these options."""
    kept = {"message_retention_duration": timedelta(days=7), "expiration_policy": {}}
    return types.Subscription({"name": SETTINGS.base_path, "topic": SETTINGS.topic_path, **kept, **options})


def refused(found: types.Subscription | None, settings: PubSubSettings = SETTINGS, **tracking: Any) -> list[str]:
    settings = requirements.followed(settings, found)
    ours = types.Subscription({**requirements.wanted(settings, settings.tracking_path), **tracking})
    return list(requirements.refusals(settings, CONTRACT, ours, found))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "is pulled by others"),
        ({"push_config": {"push_endpoint": "https://example.org/"}}, "pushes to https://example.org/"),
        ({"bigquery_config": {"table": "a.b.c"}}, "writes to the BigQuery table a.b.c"),
        ({"cloud_storage_config": {"bucket": "somewhere"}}, "writes to the bucket somewhere"),
        ({"bigtable_config": {"table": "a/t"}}, "writes to the Bigtable table a/t"),
        ({"enable_exactly_once_delivery": True}, "delivers exactly once"),
        ({"enable_message_ordering": True, "ack_deadline_seconds": 17}, "delivers at least once"),
        ({"filter": 'attributes.a = "b"'}, "has the filter 'attributes.a = \"b\"'"),
    ],
)
def test_every_kind_of_base_is_accepted_with_what_the_signal_promises(options: dict[str, Any], says: str) -> None:
    found = base(**options)
    assert refused(found) == []
    assert [*requirements.differences(SETTINGS, "base", found), *requirements.dangers("base", found, attach=True)] == []
    assert sum(says in sentence for sentence in requirements.promises(found)) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dead_letter_policy": {"dead_letter_topic": "projects/p/topics/dead"}}, "although no reader acknowledged it"),
        ({"message_transforms": [TRANSFORM]}, "counts as acknowledged"),
        ({"state": types.Subscription.State.RESOURCE_ERROR}, "cannot deliver"),
        ({"expiration_policy": {"ttl": timedelta(days=2)}}, "will DELETE the base subscription"),
    ],
)
def test_what_takes_messages_away_unread_is_a_danger_and_no_refusal(options: dict[str, Any], says: str) -> None:
    assert refused(base(**options)) == []
    (danger,) = requirements.dangers("base", base(**options), attach=True)
    assert says in danger


@pytest.mark.parametrize(
    ("found", "tracking", "says"),
    [
        (base(topic="projects/tidemark-local/topics/another"), {}, "is attached to"),
        (base(topic="_deleted-topic_"), {}, "belonged to a topic that was deleted"),
        (base(detached=True), {}, "is detached"),
        (base(filter='attributes.a = "b"'), {"filter": ""}, "heartbeats-tracking has no filter"),
        (base(), {"filter": 'attributes.a = "b"'}, "heartbeats-tracking has the filter"),
        (base(message_retention_duration=timedelta(days=8)), {}, "tracking could lose messages that base still"),
        (base(), {"push_config": {"push_endpoint": "https://example.org/"}}, "tidemark pulls"),
        (None, {}, "tidemark never creates it"),
    ],
)
def test_what_breaks_attach_is_refused(found: types.Subscription | None, tracking: dict[str, Any], says: str) -> None:
    (reason,) = refused(found, **tracking)
    assert says in reason
    assert SETTINGS.tracking_path in reason or "delete it" not in reason


@pytest.fixture
def pubsub() -> Iterator[PubSubSettings]:
    """The settings of a server that has no topic and no subscription yet."""
    with served(PubSubModel(rng=random.Random(0))) as address:
        yield unique_pubsub(address).model_copy(update={"attach": True})


@pytest.fixture
def client(pubsub: PubSubSettings) -> Iterator[SubscriberClient]:
    with subscriber_client(*pubsub.server) as client:
        yield client


def test_provisioning_makes_tracking_alone_with_bases_filter(pubsub: PubSubSettings, client: SubscriberClient) -> None:
    publisher = publisher_client(*pubsub.server)

    def provisioned() -> ProvisionReport:
        return provision(client, publisher, pubsub, CONTRACT, SystemClock())

    def look() -> requirements.Drift:
        return requirements.look_at_subscriptions(client, pubsub, CONTRACT)

    with pytest.raises(ProvisionRefused, match="tidemark never creates it"):
        provisioned()
    assert look().breaks[0].startswith(f"{pubsub.tracking_path} does not exist")
    publisher.create_topic(name=pubsub.topic_path)
    theirs = {"name": pubsub.base_path, "topic": pubsub.topic_path, "ack_deadline_seconds": 33}
    before = client.create_subscription(request={**theirs, "filter": 'attributes.a = "b"'})
    report = provisioned()
    assert report.created == [pubsub.tracking_path]
    assert sum("HELD_INCOMPLETE" in warning for warning in report.warnings) == 1
    assert client.get_subscription(subscription=pubsub.tracking_path).filter == 'attributes.a = "b"'
    assert client.get_subscription(subscription=pubsub.base_path) == before
    assert provisioned().created == []
    looked = look()
    assert (looked.breaks, looked.differences) == ((), ())
    assert looked.promises[0].startswith(f"{pubsub.base_path} is pulled by others")
    publisher.transport.close()


def test_nothing_that_pulls_can_be_made_for_base(pubsub: PubSubSettings, client: SubscriberClient) -> None:
    with pytest.raises(BaseReadByOthers, match="never pulls from it"):
        PubSubSubscription(client, pubsub.base_path, SystemClock(), pubsub)
    PubSubSubscription(client, pubsub.tracking_path, SystemClock(), pubsub, lease=timedelta(minutes=1))

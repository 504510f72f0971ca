"""A sample of the topic: what is published while it waits, and nothing that stays, however it ends."""

from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.fixtures_emulator import unique_pubsub
from tests.pubsub.builders import Altered, raising, send
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import PermissionMissing, SubscriptionMissing
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.sampling import EXPIRES_AFTER, KEPT, PREFIX, sample_messages
from tidemark.pipeline.settings_sections import PubSubSettings

SHORT, LONG = timedelta(milliseconds=300), timedelta(seconds=20)


@pytest.fixture
def settings(fresh_pubsub: PubSubSettings, publisher: PublisherClient) -> PubSubSettings:
    """Settings of a topic that is there, without a subscription."""
    publisher.create_topic(name=fresh_pubsub.topic_path)
    return fresh_pubsub


def left(subscriber: SubscriberClient, settings: PubSubSettings) -> list[str]:
    return [found.name for found in subscriber.list_subscriptions(project=f"projects/{settings.project}")]


def after_creating(subscriber: SubscriberClient, then: Any) -> Any:
    """A client that does something as soon as it has created a subscription."""

    def create(**request: Any) -> Any:
        made = subscriber.create_subscription(**request)
        then(made)
        return made

    return Altered(subscriber, create_subscription=create)


def test_it_has_each_message_once_and_leaves_no_subscription(
    subscriber: SubscriberClient, publisher: PublisherClient, settings: PubSubSettings
) -> None:
    send(publisher, settings, 3)
    sent: list[str] = []
    client = after_creating(subscriber, lambda _: sent.extend(send(publisher, settings, 5)))
    found = sample_messages(client, settings, SystemClock(), 5, LONG)
    assert sorted(one["message_id"][0].as_py() for one in found) == sorted(sent), "none from before it began"
    assert left(subscriber, settings) == []


def test_it_sees_what_the_pipeline_s_filter_lets_pass(own_pubsub: str) -> None:
    settings = unique_pubsub(own_pubsub).model_copy(update={"filter": 'attributes.number = "3"'})
    subscriber, publisher = subscriber_client(own_pubsub), publisher_client(own_pubsub)
    publisher.create_topic(name=settings.topic_path)
    messages = [{"attributes": {"number": str(number)}} for number in range(5)]
    client = after_creating(subscriber, lambda _: publisher.publish(topic=settings.topic_path, messages=messages))
    found = sample_messages(client, settings, SystemClock(), 1, LONG)
    assert [dict(one["attributes"][0].as_py()) for one in found] == [{"number": "3"}]


def test_it_takes_no_more_than_asked_for_and_waits_no_longer(
    subscriber: SubscriberClient, publisher: PublisherClient, settings: PubSubSettings
) -> None:
    client = after_creating(subscriber, lambda _: send(publisher, settings, 5))
    assert len(sample_messages(client, settings, SystemClock(), 2, LONG)) == 2
    clock = SystemClock()
    began = clock.monotonic()
    assert sample_messages(subscriber, settings, clock, 2, SHORT) == []
    assert clock.monotonic() - began < LONG.total_seconds() / 2
    assert left(subscriber, settings) == []


def test_other_subscriptions_keep_every_message(
    subscriber: SubscriberClient, publisher: PublisherClient, settings: PubSubSettings
) -> None:
    subscriber.create_subscription(name=settings.base_path, topic=settings.topic_path)
    client = after_creating(subscriber, lambda _: send(publisher, settings, 5))
    assert len(sample_messages(client, settings, SystemClock(), 5, LONG)) == 5
    assert left(subscriber, settings) == [settings.base_path]
    assert len(subscriber.pull(subscription=settings.base_path, max_messages=10).received_messages) == 5


def test_the_subscription_would_not_last(subscriber: SubscriberClient, settings: PubSubSettings) -> None:
    made: list[Any] = []
    sample_messages(after_creating(subscriber, made.append), settings, SystemClock(), 1, SHORT)
    (found,) = made
    assert found.name.startswith(f"projects/{settings.project}/subscriptions/{PREFIX}")
    assert (found.ack_deadline_seconds, found.message_retention_duration) == (10, KEPT)
    assert found.expiration_policy.ttl == EXPIRES_AFTER


def interrupt(_: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_while_it_is_created_or_pulled_from_leaves_nothing(
    subscriber: SubscriberClient, publisher: PublisherClient, settings: PubSubSettings
) -> None:
    class Interrupting(SystemClock):
        looks = 0

        def monotonic(self) -> float:
            self.looks += 1
            if self.looks == 10:
                raise KeyboardInterrupt
            return super().monotonic()

    interrupted = [
        (after_creating(subscriber, interrupt), SystemClock()),
        (after_creating(subscriber, lambda _: send(publisher, settings, 5)), Interrupting()),
    ]
    for client, clock in interrupted:
        with pytest.raises(KeyboardInterrupt):
            sample_messages(client, settings, clock, 100, LONG)
        assert left(subscriber, settings) == []


def test_without_a_topic_it_says_so(subscriber: SubscriberClient, fresh_pubsub: PubSubSettings) -> None:
    with pytest.raises(SubscriptionMissing, match=f"{fresh_pubsub.topic_path} does not exist"):
        sample_messages(subscriber, fresh_pubsub, SystemClock(), 1, SHORT)


def test_what_may_not_be_deleted_is_named(subscriber: SubscriberClient, settings: PubSubSettings) -> None:
    client = Altered(subscriber, delete_subscription=raising(api.PermissionDenied("no")))
    with pytest.raises(PermissionMissing, match=rf"delete projects/.*{PREFIX}.*Pub/Sub does after a day"):
        sample_messages(client, settings, SystemClock(), 1, SHORT)  # type: ignore[arg-type]
    (path,) = left(subscriber, settings)
    subscriber.delete_subscription(subscription=path)

"""A sample of the topic: what is published while it waits, and nothing that stays, however it ends."""

from datetime import timedelta
from typing import Any

import pytest
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.pubsub.builders import Altered, send
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.pubsub.sampling import sample_messages
from tidemark.pipeline.settings_sections import PubSubSettings

LONG = timedelta(seconds=20)


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

    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    interrupted = [
        (after_creating(subscriber, interrupt), SystemClock()),
        (after_creating(subscriber, lambda _: send(publisher, settings, 5)), Interrupting()),
    ]
    for client, clock in interrupted:
        with pytest.raises(KeyboardInterrupt):
            sample_messages(client, settings, clock, 100, LONG)
        assert left(subscriber, settings) == []

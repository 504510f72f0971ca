"""Pulls that go on after their batch: what they bring belongs to the next one, or is given back; and a sample of the
topic."""

from collections.abc import Iterator
from datetime import timedelta
from threading import current_thread, main_thread
from typing import Any

import pytest
from google.pubsub_v1 import SubscriberClient

from tests.clock import until
from tests.fixtures_emulator import unique_pubsub
from tests.pubsub.builders import Altered, Served, ids_of, raising, subscription_of
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.pubsub import pulls
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.sampling import sample_messages
from tidemark.pipeline.pubsub.subscription import PubSubSubscription

MUCH = 1 << 30
CLOCK = SystemClock()
LONG = timedelta(hours=1)
"""Longer than a lease: nobody may pull in between."""

LEASE = timedelta(minutes=10)
"""Nothing comes again because it is over."""


@pytest.fixture
def topic(own_pubsub: str) -> Iterator[Served]:
    """A topic with its two subscriptions, on tidemark's own server."""
    with subscriber_client(own_pubsub) as subscriber, publisher_client(own_pubsub) as publisher:
        topic = Served(subscriber, publisher, unique_pubsub(own_pubsub))
        topic.provision(lease=LEASE)
        yield topic


def pulled(subscription: PubSubSubscription, seconds: float = 5, count: int = 0) -> list[str]:
    """Ids of a batch, acknowledged; and of the next ones, until there are so many."""
    batch = subscription.pull(1000, MUCH, seconds)
    assert subscription.acknowledge(batch.ack_ids).failed == 0
    left = count - len(batch.ack_ids)
    return [*ids_of(batch), *(pulled(subscription, seconds, left) if left > 0 else ())]


def test_messages_for_a_closed_forgotten_or_rarely_pulled_subscription_are_given_back(topic: Served) -> None:
    closed = topic.subscription()
    rare = PubSubSubscription(topic.subscriber, topic.settings.tracking_path, CLOCK, topic.settings, LONG)
    forgotten = topic.subscription()
    assert [pulled(one, 0.1) for one in (closed, rare, forgotten)] == [[], [], []]
    del forgotten
    sent = topic.send(3)
    CLOCK.sleep(0.5)
    closed.close()
    for path in (topic.settings.base_path, topic.settings.tracking_path):
        assert sorted(pulled(topic.subscription(path), count=3)) == sorted(sent)
    assert pulled(closed, 0.1) == []  # and it may be used again


def test_slow_answers_of_the_service_are_asked_for_at_once(topic: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    on_the_service = topic.settings.model_copy(update={"emulator_host": None})
    monkeypatch.setattr(pulls, "PULLS_AT_ONCE", 4)
    monkeypatch.setattr(pulls, "PULL_AT_MOST", 100)  # or the first pull asks for the whole batch
    subscription = subscription_of(topic.subscriber, on_the_service)
    assert pulled(subscription, 0.5) == []
    assert subscription._pulls._under_way == 4
    for _ in range(4):
        topic.send(1)
    CLOCK.sleep(0.5)
    assert len(pulled(subscription)) == 4


def test_what_is_pulled_ahead_of_a_batch_is_of_the_next_one(topic: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "PULL_AT_MOST", 4)
    sent = topic.send(30)
    subscription = topic.subscription(lease=LEASE, pull_wait=PATIENT)
    first = subscription.pull(10, MUCH, 60, ahead=15)
    until("it holds them", lambda: subscription._pulls._held >= 15)
    CLOCK.sleep(0.5)  # for one that would go on
    others = pulled(topic.subscription(), 1, count=5)
    second = pulled(subscription, 1, count=15)
    assert (len(others), len(second)) == (30 - 10 - 15, 15)
    assert sorted([*others, *second, *ids_of(first)]) == sorted(sent)


PATIENT = timedelta(seconds=20)


def after_creating(subscriber: SubscriberClient, then: Any) -> Any:
    """A client that does something as soon as it has created a subscription."""

    def create(**request: Any) -> Any:
        made = subscriber.create_subscription(**request)
        then(made)
        return made

    return Altered(subscriber, create_subscription=create)


def test_ctrl_c_while_it_is_created_or_pulled_from_leaves_nothing(served_pubsub: Served) -> None:
    subscriber, settings = served_pubsub.subscriber, served_pubsub.settings
    served_pubsub.publisher.create_topic(name=settings.topic_path)

    class Interrupting(SystemClock):
        looks = 0

        def monotonic(self) -> float:
            self.looks += (is_main := current_thread() is main_thread())  # the only thread that Ctrl-C interrupts
            if is_main and self.looks == 10:
                raise KeyboardInterrupt
            return super().monotonic()

    interrupted = [
        (after_creating(subscriber, raising(KeyboardInterrupt())), SystemClock()),
        (after_creating(subscriber, lambda _: served_pubsub.send(5)), Interrupting()),
    ]
    for client, clock in interrupted:
        with pytest.raises(KeyboardInterrupt):
            sample_messages(client, settings, clock, 100, PATIENT)
        assert not list(subscriber.list_subscriptions(project=f"projects/{settings.project}"))

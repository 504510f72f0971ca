"""Pulling and acknowledging, on the official emulator or on `tidemark pubsub`."""

from datetime import timedelta

import pytest

from tests.fixtures_emulator import QUICK_LEASE
from tests.official_emulator import HOST, free_port
from tests.pubsub.builders import Served, ids_of, subscription_of
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import PubSubUnreachable, SubscriptionMissing
from tidemark.pipeline.pubsub import pulls
from tidemark.pipeline.pubsub import subscription as module
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings_sections import PubSubSettings

MUCH = 1 << 30
PULL = 100
"""The most messages that a pull asks for in some of these tests: the emulator never answers with more."""


@pytest.fixture
def topic(served_pubsub: Served) -> Served:
    """A topic with its two subscriptions."""
    served_pubsub.provision(lease=QUICK_LEASE)
    return served_pubsub


def drained(subscription: PubSubSubscription) -> list[str]:
    """Pull and acknowledge until nothing comes; the ids, copies included."""
    ids: list[str] = []
    while batch := subscription.pull(1000, MUCH, 5):
        assert subscription.acknowledge(batch.ack_ids).failed == 0
        ids += ids_of(batch)
    return ids


def test_a_pull_ends_with_the_answer_that_reaches_its_bytes(topic: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "PULL_AT_MOST", PULL)
    topic.send(1_000, size=1_000)
    batch = topic.subscription().pull(1_000, 250_000, 5)
    assert 250_000 <= batch.size_bytes < 250_000 + PULL * 1_500
    assert len(batch) == 3 * PULL


class TickingClock(SystemClock):
    """A second passes whenever somebody looks."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def monotonic(self) -> float:
        self._seconds += 1
        return self._seconds


def test_a_pull_ends_with_its_time_or_a_third_of_the_deadline(topic: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulls, "PULL_AT_MOST", PULL)
    topic.send(1_000)
    short = topic.subscription(clock=TickingClock()).pull(1_000, MUCH, 2.5)
    assert len(short) <= 2 * PULL
    by_deadline = topic.subscription(clock=TickingClock()).pull(1_000, MUCH, 60)
    assert len(by_deadline) <= 3 * PULL


def test_leases_outlast_a_slow_write_and_messages_without_a_lease_come_again(topic: Served) -> None:
    lease, clock = timedelta(seconds=3), SystemClock()
    sent = topic.send(50)
    slow = topic.subscription(lease=lease)
    forgotten = topic.subscription(topic.settings.tracking_path, lease=lease)
    batch = slow.pull(1_000, MUCH, 5)
    assert len(forgotten.pull(1_000, MUCH, 5)) == 50
    clock.sleep(lease.total_seconds() / 2)  # each is extended once
    forgotten.close()
    clock.sleep(lease.total_seconds() + 1)
    assert ids_of(slow.pull(1_000, MUCH, 5)) == []
    assert slow.acknowledge(batch.ack_ids).count == 50
    assert drained(slow) == []
    assert sorted(drained(forgotten)) == sorted(sent)


def test_a_bogus_ack_id_fails_with_its_chunk_and_with_no_other(topic: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.IDS_PER_CALL * 500 < 512 << 10, "the service's ids have had more than 210 bytes"
    monkeypatch.setattr(module, "IDS_PER_CALL", 10)
    topic.send(30)
    subscription = topic.subscription()
    batch = subscription.pull(30, MUCH, 5)
    ack_ids = [*batch.ack_ids]
    ack_ids[10] = "bogus"
    outcome = subscription.acknowledge(ack_ids)
    assert (outcome.count, outcome.failed) == (20, 10)
    assert "bogus" in outcome.problems[0]
    path = topic.settings.base_path
    topic.subscriber.modify_ack_deadline(subscription=path, ack_ids=batch.ack_ids, ack_deadline_seconds=0)
    again = drained(subscription)
    assert ids_of(batch)[10] in again
    assert set(again) <= {*ids_of(batch)[10:20]}


def test_a_missing_subscription_says_how_to_get_it(served_pubsub: Served) -> None:
    subscription = served_pubsub.subscription()
    with pytest.raises(SubscriptionMissing, match="tidemark provision"):
        subscription.pull(10, MUCH, 5)
    with pytest.raises(SubscriptionMissing, match=served_pubsub.settings.base_path):
        subscription.acknowledge(["some:1"])


@pytest.mark.timeout(60)
def test_an_unreachable_server_is_an_error_and_not_an_empty_batch(fresh_pubsub: PubSubSettings) -> None:
    subscription = subscription_of(subscriber_client(f"{HOST}:{free_port()}"), fresh_pubsub)
    with pytest.raises(PubSubUnreachable, match=r"pubsub\.emulator_host"):
        subscription.pull(10, MUCH, 5)

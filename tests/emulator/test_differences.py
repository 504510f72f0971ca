"""Where the official emulator and `tidemark pubsub` differ, so that a difference that goes away is noticed.

Ours does what the service's documentation says, or has not what tidemark does not use.
"""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.protobuf.field_mask_pb2 import FieldMask

from tests.emulator.servers import CLOCK, Server, published


def test_the_official_one_gives_a_hundred_messages_at_most_and_ours_a_thousand(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 1000)
    assert len(server.pull(subscription)) == (100 if server.is_official else 1000)


def test_the_official_one_loses_a_snapshot_s_labels(server: Server) -> None:
    request = {"name": server.snapshot_name(), "subscription": server.subscription(server.topic())}
    labels = server.subscriber.create_snapshot(request={**request, "labels": {"tidemark": "reading"}}).labels
    assert dict(labels) == ({} if server.is_official else {"tidemark": "reading"})


def test_the_official_one_keeps_a_filter_and_ignores_it(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic, filter='attributes.number = "1" OR attributes.number = "3"')
    assert server.subscriber.get_subscription(subscription=subscription).filter.startswith("attributes.number")
    server.publish(topic, 5)
    passed = [one.message.attributes["number"] for one in server.pull(subscription)]
    assert sorted(passed) == (["0", "1", "2", "3", "4"] if server.is_official else ["1", "3"])


@pytest.mark.parametrize(
    ("over", "what"),
    [
        ({"": "value"}, "an empty key"),
        ({"k" * 257: "value"}, "a key of 257 bytes"),
        ({"key": "v" * 1025}, "a value of 1025 bytes"),
        ({str(number): "value" for number in range(101)}, "101 attributes"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_the_official_one_takes_attributes_beyond_the_limits(server: Server, over: dict[str, str], what: str) -> None:
    topic = server.topic()
    if server.is_official:
        assert server.publisher.publish(topic=topic, messages=[{"attributes": over}]).message_ids
        return
    with pytest.raises(api.InvalidArgument):
        server.publisher.publish(topic=topic, messages=[{"attributes": over}])


def test_the_official_one_takes_deadlines_beyond_the_limits(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic)
    received = server.pull(subscription)
    if server.is_official:
        server.subscription(topic, "short", ack_deadline_seconds=9)
        server.extend(subscription, received, 601)
        return
    with pytest.raises(api.InvalidArgument):
        server.subscription(topic, "short", ack_deadline_seconds=9)
    with pytest.raises(api.InvalidArgument):
        server.extend(subscription, received, 601)


def test_the_official_one_takes_requests_that_make_no_sense(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    dead = {"dead_letter_topic": f"projects/{server.project}/topics/missing", "max_delivery_attempts": 5}
    calls: list[Callable[[], Any]] = [
        lambda: server.publisher.list_topics(request={"project": f"projects/{server.project}", "page_token": "x"}),
        lambda: server.publisher.publish(topic=topic, messages=[{"data": b"x", "ordering_key": "k" * 1025}]),
        lambda: server.publisher.publish(topic=topic, messages=[{"data": b"x" * 10_000_000}]),
        lambda: server.subscriber.pull(subscription=subscription, max_messages=-1, timeout=2),
    ]
    for call in calls:
        if server.is_official:
            call()
        else:
            with pytest.raises(api.InvalidArgument):
                call()
    if server.is_official:  # which looks at this one, as it acts on it
        with pytest.raises(api.NotFound):
            server.subscription(topic, "other", dead_letter_policy=dead)
    else:
        server.subscription(topic, "other", dead_letter_policy=dead)


def test_a_lease_that_has_ended_is_renewed_by_the_official_one_alone(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic)
    received = server.pull(subscription)
    server.extend(subscription, received, 1)
    CLOCK.sleep(2)
    server.extend(subscription, received, 60)
    assert len(server.pull(subscription)) == (0 if server.is_official else 1)


def test_the_id_of_an_earlier_delivery_acknowledges_on_ours_alone(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic)
    earlier = server.pull(subscription)
    server.extend(subscription, earlier, 0)
    latest = server.pull(subscription)
    server.acknowledge(subscription, earlier)
    server.extend(subscription, latest, 0)
    assert len(server.pull(subscription)) == (1 if server.is_official else 0)


def test_a_reading_of_the_official_one_passes_what_was_given_back_by_a_deadline_of_nothing(server: Server) -> None:
    """Until it comes again. So tidemark gives back by a deadline of a second."""
    subscription, received = server.leased_before_another()
    server.extend(subscription, received, 0)
    assert (server.oldest(subscription) > published(received[0])) is server.is_official


def test_a_seek_ends_leases_on_the_official_one_alone(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 3)
    received = server.pull(subscription)
    server.subscriber.seek(request={"subscription": subscription, "time": CLOCK.now() - timedelta(hours=1)})
    assert len(server.pull(subscription)) == (3 if server.is_official else 0)
    server.extend(subscription, received, 0)
    assert server.is_official or len(server.pull(subscription)) == 3


def test_a_snapshot_gives_its_messages_to_a_younger_subscription_on_ours_alone(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 3)
    server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=subscription)
    young = server.subscription(topic, "young")
    server.subscriber.seek(request={"subscription": young, "snapshot": server.snapshot_name()})
    assert len(server.drained(young)) == (0 if server.is_official else 3)


def test_the_official_one_keeps_messages_for_a_week_at_most_and_never_changes_an_expiration(server: Server) -> None:
    topic = server.topic()
    month = {"message_retention_duration": timedelta(days=31)}
    changed = {"name": server.subscription(topic), "expiration_policy": {}}
    request = {"subscription": changed, "update_mask": FieldMask(paths=["expiration_policy"])}
    if not server.is_official:
        server.subscription(topic, "long", **month)
        assert not server.subscriber.update_subscription(request=request).expiration_policy.ttl
        return
    with pytest.raises(api.InvalidArgument):
        server.subscription(topic, "long", **month)
    with pytest.raises(api.InvalidArgument):
        server.subscriber.update_subscription(request=request)


def test_an_ack_id_of_a_deleted_subscription_is_refused_on_ours_alone(
    server: Server,
) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic)
    received = server.pull(subscription)
    server.subscriber.delete_subscription(subscription=subscription)
    server.subscription(topic)
    if server.is_official:
        server.acknowledge(subscription, received)
        return
    with pytest.raises(api.InvalidArgument):
        server.acknowledge(subscription, received)

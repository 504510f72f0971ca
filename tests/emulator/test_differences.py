"""Where the official emulator and `tidemark pubsub` differ, so that a difference that goes away is noticed.

Ours does what the service's documentation says, or has not what tidemark does not use.
"""

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.protobuf.field_mask_pb2 import FieldMask

from tests.emulator.servers import Server, published


def test_the_official_one_loses_a_snapshot_s_labels(server: Server) -> None:
    request = {"name": server.snapshot_name(), "subscription": server.subscription(server.topic())}
    labels = server.subscriber.create_snapshot(request={**request, "labels": {"tidemark": "reading"}}).labels
    assert dict(labels) == ({} if server.is_official else {"tidemark": "reading"})


def test_the_official_one_takes_requests_that_make_no_sense(server: Server, topic: str, base: str) -> None:
    dead = {"dead_letter_topic": f"projects/{server.project}/topics/missing", "max_delivery_attempts": 5}
    server.publish(topic)
    received = server.pull(base)
    attributes = [
        {"": "value"},
        {"k" * 257: "value"},
        {"key": "v" * 1025},
        dict.fromkeys(map(str, range(101)), "value"),
    ]
    calls: list[Callable[[], Any]] = [
        *(partial(server.publisher.publish, topic=topic, messages=[{"attributes": one}]) for one in attributes),
        lambda: server.subscription(topic, "short", ack_deadline_seconds=9),
        lambda: server.extend(base, received, 601),
        lambda: server.publisher.list_topics(request={"project": f"projects/{server.project}", "page_token": "x"}),
        lambda: server.publisher.publish(topic=topic, messages=[{"data": b"x", "ordering_key": "k" * 1025}]),
        lambda: server.publisher.publish(topic=topic, messages=[{"data": b"x" * 10_000_000}]),
        lambda: server.subscriber.pull(subscription=base, max_messages=-1, timeout=2),
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


def test_a_reading_of_the_official_one_passes_what_was_given_back_by_a_deadline_of_nothing(server: Server) -> None:
    """Until it comes again. So tidemark gives back by a deadline of a second."""
    subscription, received = server.leased_before_another()
    server.extend(subscription, received, 0)
    assert (server.oldest(subscription) > published(received[0])) is server.is_official


def test_a_snapshot_gives_its_messages_to_a_younger_subscription_on_ours_alone(
    server: Server, topic: str, base: str
) -> None:
    server.publish(topic, 3)
    server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=base)
    young = server.subscription(topic, "young")
    server.subscriber.seek(request={"subscription": young, "snapshot": server.snapshot_name()})
    assert len(server.drained(young)) == (0 if server.is_official else 3)


def test_the_official_one_keeps_messages_for_a_week_at_most_and_never_changes_an_expiration(
    server: Server, topic: str
) -> None:
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

"""One contract for two servers: the official emulator, where it is found, and `tidemark pubsub`.

Each test runs on both, through the real client; a machine without the official emulator skips its half, and says
so. `test_differences.py` pins where the two differ.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Event
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.protobuf.field_mask_pb2 import FieldMask
from google.protobuf.timestamp_pb2 import Timestamp
from google.pubsub_v1.types import SeekRequest, Subscription

from tests.emulator.servers import CLOCK, DEADLINE_SECONDS, Server, ids_of, published
from tidemark.pipeline.errors import SubscriptionMissing
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS


def test_created_resources_are_listed_and_deleted_ones_are_gone(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    assert server.publisher.get_topic(topic=topic).name == topic
    found = server.subscriber.get_subscription(subscription=subscription)
    assert (found.name, found.topic, found.ack_deadline_seconds) == (subscription, topic, DEADLINE_SECONDS)
    assert [one.name for one in server.publisher.list_topics(project=f"projects/{server.project}")] == [topic]
    listed = server.subscriber.list_subscriptions(project=f"projects/{server.project}")
    assert [one.name for one in listed] == [subscription]
    assert list(server.publisher.list_topic_subscriptions(topic=topic)) == [subscription]
    server.subscriber.delete_subscription(subscription=subscription)
    server.publisher.delete_topic(topic=topic)
    with pytest.raises(api.NotFound):
        server.publisher.get_topic(topic=topic)
    with pytest.raises(api.NotFound):
        server.subscriber.get_subscription(subscription=subscription)


def test_a_new_subscription_has_the_service_s_defaults(server: Server) -> None:
    path = f"projects/{server.project}/subscriptions/plain"
    found = server.subscriber.create_subscription(name=path, topic=server.topic())
    assert found.ack_deadline_seconds == 10
    assert found.message_retention_duration == timedelta(days=7)
    assert not found.retain_acked_messages


def test_creating_twice_and_deleting_twice_are_refused(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=subscription)
    with pytest.raises(api.AlreadyExists):
        server.topic()
    with pytest.raises(api.AlreadyExists):
        server.subscription(topic)
    with pytest.raises(api.AlreadyExists):
        server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=subscription)
    server.subscriber.delete_snapshot(snapshot=server.snapshot_name())
    server.subscriber.delete_subscription(subscription=subscription)
    server.publisher.delete_topic(topic=topic)
    with pytest.raises(api.NotFound):
        server.subscriber.delete_snapshot(snapshot=server.snapshot_name())
    with pytest.raises(api.NotFound):
        server.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(api.NotFound):
        server.publisher.delete_topic(topic=topic)


def test_an_ack_deadline_or_a_retention_that_is_too_long_or_too_short_is_refused(server: Server) -> None:
    topic = server.topic()
    wrong = [
        {"ack_deadline_seconds": 601},
        {"message_retention_duration": timedelta(minutes=9)},
        {"message_retention_duration": timedelta(days=32)},
    ]
    for number, config in enumerate(wrong):
        with pytest.raises(api.InvalidArgument):
            server.subscription(topic, f"wrong-{number}", **config)


def test_missing_resources_are_not_found(server: Server) -> None:
    topic = f"projects/{server.project}/topics/missing"
    subscription = f"projects/{server.project}/subscriptions/missing"
    with pytest.raises(api.NotFound):
        server.publish(topic)
    with pytest.raises(api.NotFound):
        server.subscription(topic)
    with pytest.raises(api.NotFound):
        server.pull(subscription)
    with pytest.raises(api.NotFound):
        server.subscriber.seek(request={"subscription": subscription, "time": CLOCK.now()})
    with pytest.raises(SubscriptionMissing, match=subscription):
        server.oldest(subscription)


def test_a_message_comes_whole(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    attributes = {"event_time": "1790000000000", "a key": "ein Wert ü", "none": ""}
    before = CLOCK.now()
    message = {"data": bytes(range(256)), "attributes": attributes, "ordering_key": "one"}
    (message_id,) = server.publisher.publish(topic=topic, messages=[message]).message_ids
    (received,) = server.pull(subscription)
    assert received.message.message_id == message_id
    assert received.message.data == bytes(range(256))
    assert dict(received.message.attributes) == attributes
    assert received.message.ordering_key == "one"
    millisecond = timedelta(milliseconds=1)  # the emulator's precision
    assert before - millisecond <= published(received) <= CLOCK.now()


def test_every_subscription_gets_every_message_with_the_same_id_and_publish_time(server: Server) -> None:
    topic = server.topic()
    paths = [server.subscription(topic, name) for name in ("base", "tracking")]
    ids = server.publish(topic, 20)
    first, second = ([*server.pull(path)] for path in paths)
    assert sorted(ids_of(first)) == sorted(ids_of(second)) == sorted(ids)
    assert {one.message.message_id: published(one) for one in first} == {
        one.message.message_id: published(one) for one in second
    }


def test_a_subscription_gets_only_what_is_published_after_its_creation(server: Server) -> None:
    topic = server.topic()
    server.subscription(topic)
    server.publish(topic)
    young = server.subscription(topic, "young")
    ids = server.publish(topic)
    assert server.drained(young) == ids


def test_a_pull_gives_no_more_than_asked_for(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 50)
    assert len(server.pull(subscription, at_most=7)) == 7
    with pytest.raises(api.InvalidArgument):
        server.pull(subscription, at_most=0)


def test_a_pull_that_need_not_wait_does_not(server: Server) -> None:
    subscription = server.subscription(server.topic())
    start = CLOCK.monotonic()
    request = {"subscription": subscription, "max_messages": 10, "return_immediately": True}
    with pytest.warns(DeprecationWarning, match="return_immediately"):
        assert not server.subscriber.pull(request=request, timeout=10).received_messages
    assert CLOCK.monotonic() - start < 3


def test_a_waiting_pull_gets_messages_that_are_published_meanwhile(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.pull, subscription, wait=20.0)
        CLOCK.sleep(0.5)
        ids = server.publish(topic)
        start = CLOCK.monotonic()
        assert ids_of(waiting.result()) == ids
    assert CLOCK.monotonic() - start < 5


@pytest.fixture
def stream_of(server: Server) -> Iterator[Callable[[str], Any]]:
    """Opens a streaming pull, whose requests go on until the test is over."""
    done = Event()

    def opened(subscription: str) -> Any:
        def requests() -> Iterator[Any]:
            yield {"subscription": subscription, "stream_ack_deadline_seconds": DEADLINE_SECONDS}
            done.wait(20)

        return server.subscriber.streaming_pull(requests=requests(), retry=None, timeout=20)

    yield opened
    done.set()


def test_a_stream_gives_what_is_there_and_what_is_published_meanwhile(
    server: Server, stream_of: Callable[[str], Any]
) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    ids = server.publish(topic)
    stream = stream_of(subscription)
    first = next(iter(stream))._pb.received_messages
    assert ids_of(first) == ids
    server.acknowledge(subscription, first)
    ids = server.publish(topic)
    assert ids_of(next(iter(stream))._pb.received_messages) == ids
    stream.cancel()


def test_a_leased_message_comes_again_after_its_deadline_with_the_same_id_and_publish_time(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 3)
    first = server.pull(subscription)
    start = CLOCK.monotonic()
    assert server.pull(subscription, wait=1.0) == []
    again = server.pull(subscription, wait=DEADLINE_SECONDS + 5)
    assert CLOCK.monotonic() - start >= DEADLINE_SECONDS - 1
    while len(again) < 3:
        again += server.pull(subscription)
    assert {one.message.message_id: one.message for one in again} == {
        one.message.message_id: one.message for one in first
    }
    server.acknowledge(subscription, again)
    assert server.pull(subscription, wait=1.0) == []


def test_an_extension_keeps_the_messages_and_a_refusal_brings_them_back_at_once(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 2)
    kept, refused = server.pull(subscription)
    server.extend(subscription, [kept], 2)
    server.extend(subscription, [kept], 60)
    server.extend(subscription, [refused], 0)
    (again,) = server.pull(subscription)
    assert again.message.message_id == refused.message.message_id
    server.acknowledge(subscription, [again])
    assert server.pull(subscription, wait=4.0) == []
    server.acknowledge(subscription, [kept])
    with pytest.raises(api.InvalidArgument):
        server.extend(subscription, [kept], -1)


def test_an_acknowledgement_after_its_lease_still_counts_and_one_that_is_repeated_is_ignored(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic)
    received = server.pull(subscription)
    server.extend(subscription, received, 1)
    CLOCK.sleep(2)
    server.acknowledge(subscription, received)
    server.acknowledge(subscription, received)
    assert server.pull(subscription, wait=1.0) == []


def test_an_acknowledgement_id_of_nobody_or_of_another_subscription_is_refused(server: Server) -> None:
    topic = server.topic()
    subscription, other = server.subscription(topic), server.subscription(topic, "other")
    server.publish(topic)
    (received,) = server.pull(other)
    for wrong in (["bogus"], [received.ack_id], []):
        with pytest.raises(api.InvalidArgument):
            server.subscriber.acknowledge(subscription=subscription, ack_ids=wrong)


def test_what_is_given_back_by_a_deadline_of_a_second_is_outstanding_all_along(server: Server) -> None:
    subscription, received = server.leased_before_another()
    server.extend(subscription, received, GIVEN_BACK_SECONDS)
    assert server.oldest(subscription) == published(received[0])
    CLOCK.sleep(GIVEN_BACK_SECONDS + 0.2)
    assert server.oldest(subscription) == published(received[0])
    again = [*server.pull(subscription), *server.pull(subscription)]
    assert len(again) == 2
    assert set(ids_of(received)) < set(ids_of(again))
    assert server.oldest(subscription) == published(received[0])


def test_a_reading_is_the_oldest_publish_time_that_is_not_acknowledged(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    for _ in range(3):
        server.publish(topic)
        CLOCK.sleep(0.05)
    received = sorted(server.pull(subscription), key=published)
    assert len(received) == 3
    assert server.oldest(subscription) == published(received[0])
    server.acknowledge(subscription, received[1:2])
    assert server.oldest(subscription) == published(received[0])
    server.acknowledge(subscription, received[:1])
    assert server.oldest(subscription) == published(received[2])


def test_a_seek_to_a_time_to_come_acknowledges_everything(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 5)
    server.subscriber.seek(request={"subscription": subscription, "time": CLOCK.now() + timedelta(minutes=1)})
    assert server.pull(subscription, wait=1.0) == []
    ids = server.publish(topic, 2)
    assert sorted(server.drained(subscription)) == sorted(ids)


def test_a_seek_forward_keeps_what_was_published_since(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    server.publish(topic, 3)
    CLOCK.sleep(0.1)
    middle = CLOCK.now()
    CLOCK.sleep(0.1)
    later = server.publish(topic, 3)
    server.subscriber.seek(request={"subscription": subscription, "time": middle})
    assert server.oldest(subscription) > middle
    assert sorted(server.drained(subscription)) == sorted(later)


def test_a_seek_back_brings_what_was_acknowledged_where_the_subscription_keeps_it(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic, retain_acked_messages=True)
    server.publish(topic, 3)
    CLOCK.sleep(0.1)
    middle = CLOCK.now()
    CLOCK.sleep(0.1)
    later = server.publish(topic, 3)
    assert len(server.drained(subscription)) == 6
    server.subscriber.seek(request={"subscription": subscription, "time": middle})
    assert sorted(server.drained(subscription)) == sorted(later)


def test_a_seek_to_a_snapshot_brings_what_was_outstanding_then_and_what_came_since(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    ids = server.publish(topic, 4)
    received = server.pull(subscription)
    server.acknowledge(subscription, received[:1])
    server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=subscription)
    server.acknowledge(subscription, received[1:])
    since = server.publish(topic, 2)
    assert sorted(server.drained(subscription)) == sorted(since)
    server.subscriber.seek(request={"subscription": subscription, "snapshot": server.snapshot_name()})
    expected = {*ids, *since} - {received[0].message.message_id}
    assert sorted(server.drained(subscription)) == sorted(expected)


def test_a_subscription_outlives_its_topic(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    ids = server.publish(topic, 2)
    server.publisher.delete_topic(topic=topic)
    assert server.subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"
    assert sorted(server.drained(subscription)) == sorted(ids)


@pytest.mark.parametrize(
    "path", ["filter", "topic", "enable_message_ordering", "nonsense", "labels.kind", "expiration_policy.nonsense"]
)
def test_changing_a_fixed_option_is_refused(server: Server, path: str) -> None:
    changed = {"name": server.subscription(server.topic()), "filter": 'attributes.kind = "one"'}
    with pytest.raises(api.InvalidArgument):
        server.subscriber.update_subscription(request={"subscription": changed, "update_mask": FieldMask(paths=[path])})


def test_names_that_are_too_short_are_refused(server: Server) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    with pytest.raises(api.InvalidArgument):
        server.topic("ab")
    with pytest.raises(api.InvalidArgument):
        server.subscription(topic, "ab")
    with pytest.raises(api.InvalidArgument):
        server.subscriber.create_snapshot(name=server.snapshot_name("ab"), subscription=subscription)


def test_messages_without_anything_and_requests_without_messages_are_refused(server: Server) -> None:
    topic = server.topic()
    with pytest.raises(api.InvalidArgument):
        server.publisher.publish(topic=topic, messages=[{"data": b""}])
    with pytest.raises(api.InvalidArgument):
        server.publisher.publish(topic=topic, messages=[])


@pytest.mark.parametrize("seconds", [1 << 62, -(1 << 62)])
def test_times_and_durations_beyond_all_bounds_are_refused(server: Server, seconds: int) -> None:
    topic = server.topic()
    subscription = server.subscription(topic)
    seek = SeekRequest.pb()(subscription=subscription, time=Timestamp(seconds=seconds))
    with pytest.raises(api.InvalidArgument):
        server.subscriber.seek(request=SeekRequest.wrap(seek))
    config = Subscription.pb()(name=f"{subscription}-2", topic=topic, message_retention_duration={"seconds": seconds})
    with pytest.raises(api.InvalidArgument):
        server.subscriber.create_subscription(request=Subscription.wrap(config))

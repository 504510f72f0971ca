"""One contract for two servers: the official emulator, where it is found, and `tidemark pubsub`.

Each test runs on both, through the real client; a machine without the official emulator skips its half, and says so.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import pytest
from google.api_core import exceptions as api

from tests.emulator.servers import CLOCK, DEADLINE_SECONDS, LONG_SECONDS, SHORT_SECONDS, Server, ids_of, published
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS


def test_a_message_comes_whole(server: Server, topic: str, base: str) -> None:
    attributes = {"event_time": "1790000000000", "a key": "ein Wert ü", "none": ""}
    before = CLOCK.now()
    message = {"data": bytes(range(256)), "attributes": attributes, "ordering_key": "one"}
    (message_id,) = server.publisher.publish(topic=topic, messages=[message]).message_ids
    (received,) = server.pull(base)
    assert received.message.message_id == message_id
    assert received.message.data == bytes(range(256))
    assert dict(received.message.attributes) == attributes
    assert received.message.ordering_key == "one"
    millisecond = timedelta(milliseconds=1)  # the emulator's precision
    assert before - millisecond <= published(received) <= CLOCK.now()


def test_a_subscription_gets_only_what_is_published_after_its_creation(server: Server, topic: str) -> None:
    server.subscription(topic)
    server.publish(topic)
    young = server.subscription(topic, "young")
    ids = server.publish(topic)
    assert server.drained(young, 1) == ids


def test_a_pull_that_need_not_wait_does_not(server: Server) -> None:
    subscription = server.subscription(server.topic())
    start = CLOCK.monotonic()
    request = {"subscription": subscription, "max_messages": 10, "return_immediately": True}
    with pytest.warns(DeprecationWarning, match="return_immediately"):
        assert not server.subscriber.pull(request=request, timeout=60).received_messages
    assert CLOCK.monotonic() - start < LONG_SECONDS / 2


def test_a_waiting_pull_gets_messages_that_are_published_meanwhile(server: Server, topic: str, base: str) -> None:
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.pull, base)
        CLOCK.sleep(0.5)
        ids = server.publish(topic)
        start = CLOCK.monotonic()
        assert ids_of(waiting.result()) == ids
    assert CLOCK.monotonic() - start < LONG_SECONDS / 2


@pytest.fixture
def requests() -> Iterator[SimpleQueue[Any]]:
    """The requests of a streaming pull, which go on until the test is over."""
    requests = SimpleQueue[Any]()
    yield requests
    requests.put(None)


def test_a_stream_gives_and_takes_messages(server: Server, topic: str, base: str, requests: SimpleQueue[Any]) -> None:
    ids = server.publish(topic)
    with pytest.raises(api.InvalidArgument, match="stream_ack_deadline_seconds"):
        next(iter(server.subscriber.streaming_pull(requests=iter([{"subscription": base}]), retry=None, timeout=60)))
    requests.put({"subscription": base, "stream_ack_deadline_seconds": DEADLINE_SECONDS})
    stream = server.subscriber.streaming_pull(requests=iter(requests.get, None), retry=None, timeout=60)
    first = next(iter(stream))._pb.received_messages
    assert ids_of(first) == ids
    requests.put({"ack_ids": [first[0].ack_id]})
    ids = server.publish(topic)
    second = next(iter(stream))._pb.received_messages
    assert ids_of(second) == ids
    requests.put({"modify_deadline_ack_ids": [second[0].ack_id], "modify_deadline_seconds": [0]})
    assert ids_of(next(iter(stream))._pb.received_messages) == ids
    assert server.oldest(base) == published(second[0])
    stream.cancel()


def test_a_message_comes_again_after_its_lease_with_its_id_and_time(server: Server, topic: str, base: str) -> None:
    server.publish(topic, 3)
    first = server.pull(base)
    start = CLOCK.monotonic()
    server.extend(base, first, 5)
    assert server.pull(base, wait=SHORT_SECONDS) == []
    again = server.pull(base)
    assert CLOCK.monotonic() - start >= 4
    while len(again) < 3:
        again += server.pull(base)
    came, again_came = ({one.message.message_id: one.message for one in each} for each in (first, again))
    assert came == again_came
    server.acknowledge(base, again)
    assert server.pull(base, wait=SHORT_SECONDS) == []


def test_an_extension_keeps_messages_and_a_refusal_brings_them_back(server: Server, topic: str, base: str) -> None:
    server.publish(topic, 2)
    kept, refused = server.pull(base)
    server.extend(base, [kept], 2)
    server.extend(base, [kept], 60)
    server.extend(base, [refused], 0)
    (again,) = server.pull(base)
    assert again.message.message_id == refused.message.message_id
    server.acknowledge(base, [again])
    assert server.pull(base, wait=3.0) == []
    server.acknowledge(base, [kept])
    with pytest.raises(api.InvalidArgument):
        server.extend(base, [kept], -1)


def test_what_is_given_back_by_a_deadline_of_a_second_is_outstanding_all_along(server: Server) -> None:
    subscription, received = server.leased_before_another()
    server.extend(subscription, received, GIVEN_BACK_SECONDS)
    assert server.oldest(subscription) == published(received[0])
    CLOCK.sleep(GIVEN_BACK_SECONDS + 0.2)
    assert server.oldest(subscription) == published(received[0])
    again = server.pull(subscription)
    while len(again) < 2:
        again += server.pull(subscription)
    assert len(again) == 2
    assert set(ids_of(received)) < set(ids_of(again))
    assert server.oldest(subscription) == published(received[0])


def test_a_seek_keeps_what_was_published_since_and_retained_messages(server: Server, topic: str, base: str) -> None:
    keeping = server.subscription(topic, "keeping", retain_acked_messages=True)
    server.publish(topic, 3)
    CLOCK.sleep(0.1)
    middle = CLOCK.now()
    CLOCK.sleep(0.1)
    later = server.publish(topic, 3)
    assert len(server.drained(keeping, 6)) == 6
    for path in (base, keeping):
        server.subscriber.seek(request={"subscription": path, "time": middle})
        assert server.oldest(path) > middle
        assert sorted(server.drained(path, 3)) == sorted(later)


def test_a_seek_to_a_snapshot_brings_the_outstanding_and_what_came_since(server: Server, topic: str, base: str) -> None:
    ids = server.publish(topic, 4)
    received = server.pull(base)
    server.acknowledge(base, received[:1])
    server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=base)
    server.acknowledge(base, received[1:])
    since = server.publish(topic, 2)
    assert sorted(server.drained(base, 2)) == sorted(since)
    server.subscriber.seek(request={"subscription": base, "snapshot": server.snapshot_name()})
    expected = {*ids, *since} - {received[0].message.message_id}
    assert sorted(server.drained(base, 5)) == sorted(expected)

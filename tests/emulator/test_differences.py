"""Where the official emulator and `tidemark pubsub` differ, so that a difference that goes away is noticed.

Ours does what the service's documentation says, or has not what tidemark does not use.
"""

from tests.emulator.servers import Server, published


def test_the_official_one_loses_a_snapshot_s_labels(server: Server) -> None:
    request = {"name": server.snapshot_name(), "subscription": server.subscription(server.topic())}
    labels = server.subscriber.create_snapshot(request={**request, "labels": {"tidemark": "reading"}}).labels
    assert dict(labels) == ({} if server.is_official else {"tidemark": "reading"})


def test_a_reading_of_the_official_one_passes_what_was_given_back_by_a_deadline_of_nothing(server: Server) -> None:
    """Until it comes again. So tidemark gives back by a deadline of a second."""
    subscription, received = server.leased_before_another()
    server.extend(subscription, received, 0)
    assert (server.oldest(subscription) > published(received[0])) is server.is_official


def test_a_snapshot_serves_a_younger_subscription_on_ours_alone(server: Server, topic: str, base: str) -> None:
    server.publish(topic, 3)
    server.subscriber.create_snapshot(name=server.snapshot_name(), subscription=base)
    young = server.subscription(topic, "young")
    server.subscriber.seek(request={"subscription": young, "snapshot": server.snapshot_name()})
    assert len(server.drained(young)) == (0 if server.is_official else 3)

"""The model without faults: what comes, when it comes again, and what snapshots and seeks do."""

from datetime import timedelta

import pytest

from tests.emulator.builders import (
    BASE,
    START,
    TOPIC,
    a_model,
    a_subscription,
    a_topic,
    acknowledge,
    after,
    expiry,
    ids_of,
    outstanding,
    plain,
    publish,
    pull,
)
from tidemark.local.emulator.refusals import AlreadyExists, Invalid, NotFound, Refused
from tidemark.pipeline.clock import to_us

WEEK = timedelta(days=7)


def test_messages_come_in_order_whole_with_an_id_and_their_publish_time() -> None:
    model = a_model()
    message = plain("payload", key="value")
    message.ordering_key = "one"
    (message_id,) = model.publish(TOPIC, [message], after(1.5))
    (delivered,) = pull(model, 2)
    assert delivered.message.message_id == message_id
    assert delivered.message.publish_time.seconds * 1_000_000 + 500_000 == to_us(after(1.5))
    assert (delivered.message.data, dict(delivered.message.attributes)) == (b"payload", {"key": "value"})
    assert delivered.message.ordering_key == "one"
    later = publish(model, 5, 2)
    assert ids_of(pull(model, 2, at_most=2)) + ids_of(pull(model, 2)) == later


def test_a_leased_message_does_not_come_and_comes_again_the_same_when_its_lease_ends() -> None:
    model = a_model()
    publish(model, 3)
    first = pull(model, 1)
    assert pull(model, 10.9) == []
    again = pull(model, 11)
    assert [one.message for one in again] == [one.message for one in first]
    assert [one.ack_id for one in again] != [one.ack_id for one in first]


def test_acknowledged_messages_never_come_again() -> None:
    model = a_model()
    ids = publish(model, 4)
    delivered = pull(model)
    acknowledge(model, delivered[1:3])
    assert ids_of(pull(model, 10)) == [ids[0], ids[3]]
    assert outstanding(model) == [ids[0], ids[3]]


def test_an_acknowledgement_after_its_lease_has_ended_still_counts() -> None:
    model = a_model()
    publish(model, 1)
    delivered = pull(model)
    pull(model, 10)
    acknowledge(model, delivered, 11)
    acknowledge(model, delivered, 12)
    assert outstanding(model) == []
    assert pull(model, 30) == []


def test_an_extension_keeps_a_message_and_a_refusal_brings_it_back_at_once() -> None:
    model = a_model()
    ids = publish(model, 2)
    kept, refused = pull(model)
    model.modify_ack_deadline(BASE, [kept.ack_id], 30, after(5))
    model.modify_ack_deadline(BASE, [refused.ack_id], 0, after(5))
    assert ids_of(pull(model, 5)) == [ids[1]]
    assert ids_of(pull(model, 34.9)) == [ids[1]]
    assert ids_of(pull(model, 35)) == [ids[0]]


def test_an_ended_lease_cannot_be_extended_nor_take_the_message_from_its_next_reader() -> None:
    model = a_model()
    publish(model, 1)
    (old,) = pull(model)
    pull(model, 10)
    model.modify_ack_deadline(BASE, [old.ack_id], 0, after(11))
    assert pull(model, 12) == []
    model.modify_ack_deadline(BASE, [old.ack_id], 600, after(12))
    assert len(pull(model, 20)) == 1


def test_acknowledgement_ids_of_nobody_or_of_another_subscription_are_refused_and_none_counts() -> None:
    model = a_model()
    model.create_subscription(a_subscription("other"), START)
    publish(model, 2)
    mine, theirs = pull(model), model.pull("other", 10, START)
    for wrong in (theirs[0].ack_id, "bogus", "s1.x.1", "s1.1"):
        with pytest.raises(Invalid, match=wrong):
            model.acknowledge(BASE, [mine[0].ack_id, wrong], after(1))
    assert len(outstanding(model)) == 2


def test_a_pull_ends_with_the_message_that_reaches_its_bytes() -> None:
    model = a_model()
    model.publish(TOPIC, [plain("x" * 1000) for _ in range(5)], START)
    assert len(model.pull(BASE, 10, START, max_bytes=1500)) == 2
    assert len(model.pull(BASE, 10, START, max_bytes=1)) == 1


def test_a_subscription_gets_what_is_published_after_it_was_made() -> None:
    model = a_model()
    publish(model, 1)
    model.create_subscription(a_subscription("young"), START)
    later = publish(model, 1, 1)
    assert ids_of(model.pull("young", 10, after(1))) == later


def test_the_oldest_is_the_smallest_publish_time_that_is_not_acknowledged_leased_or_not() -> None:
    model = a_model()
    assert model.oldest_unacked(BASE, START) is None
    for second in range(3):
        publish(model, 1, second)
    delivered = pull(model, 3)
    acknowledge(model, delivered[1:2], 3)
    assert model.oldest_unacked(BASE, after(3)) == START
    acknowledge(model, delivered[:1], 4)
    assert model.oldest_unacked(BASE, after(4)) == after(2)


def test_a_message_is_dropped_once_it_is_older_than_its_subscription_keeps_it() -> None:
    model = a_model()
    publish(model, 1)
    (kept,) = publish(model, 1, 60)
    assert len(outstanding(model)) == 2
    assert model.oldest_unacked(BASE, START + WEEK + timedelta(seconds=1)) == after(60)
    assert outstanding(model) == [kept]


def test_a_snapshot_expires_a_week_after_the_oldest_publish_time_or_after_now() -> None:
    model = a_model()
    assert expiry(model.create_snapshot("empty", BASE, after(7))) == after(7) + WEEK
    publish(model, 1, 8)
    publish(model, 1, 9)
    assert expiry(model.create_snapshot("full", BASE, after(20))) == after(8) + WEEK
    assert [snapshot.name for snapshot in model.list_snapshots(after(30))] == ["empty", "full"]
    assert [snapshot.name for snapshot in model.list_snapshots(after(7) + WEEK)] == ["full"]
    with pytest.raises(NotFound, match="empty"):
        model.get_snapshot("empty", after(7) + WEEK)


def test_a_snapshot_that_would_live_for_less_than_an_hour_is_refused() -> None:
    model = a_model()
    publish(model, 1)
    edge = START + WEEK - timedelta(hours=1)
    assert expiry(model.create_snapshot("just", BASE, edge)) == START + WEEK
    with pytest.raises(Refused, match="less than an hour"):
        model.create_snapshot("not", BASE, edge + timedelta(microseconds=1))


def test_a_seek_forward_acknowledges_what_was_published_before_it() -> None:
    model = a_model()
    publish(model, 2)
    later = publish(model, 2, 5)
    pull(model, 5, at_most=1)
    model.seek(BASE, after(5), after(6))
    assert outstanding(model) == later
    assert model.oldest_unacked(BASE, after(6)) == after(5)
    assert ids_of(pull(model, 60)) == later


@pytest.mark.parametrize("retained", [True, False])
def test_a_seek_back_restores_what_was_acknowledged_where_that_is_kept(retained: bool) -> None:
    model = a_model(retain_acked_messages=retained)
    publish(model, 1)
    later = publish(model, 2, 5)
    acknowledge(model, pull(model, 6), 6)
    model.seek(BASE, after(5), after(7))
    assert ids_of(pull(model, 7)) == (later if retained else [])
    assert model.oldest_unacked(BASE, after(8)) == (after(5) if retained else None)


def test_acknowledged_messages_are_kept_no_longer_than_the_retention() -> None:
    model = a_model(retain_acked_messages=True)
    publish(model, 1)
    (young,) = publish(model, 1, 60)
    acknowledge(model, pull(model, 60), 60)
    week_later = START + WEEK + timedelta(seconds=1)
    model.seek(BASE, START, week_later)
    assert ids_of(model.pull(BASE, 10, week_later)) == [young]


def test_a_seek_to_a_snapshot_restores_what_was_unacknowledged_then_and_what_came_since() -> None:
    model = a_model()
    ids = publish(model, 4)
    delivered = pull(model)
    acknowledge(model, delivered[:1])
    snapshot = model.create_snapshot("then", BASE, after(1))
    acknowledge(model, delivered[1:3], 1)
    since = publish(model, 2, 2)
    acknowledge(model, pull(model, 3, at_most=1), 3)
    model.seek(BASE, snapshot.name, after(4))
    assert sorted(outstanding(model)) == sorted([*ids[1:], *since])
    assert sorted(ids_of(pull(model, 60))) == sorted([*ids[1:], *since])


def test_a_snapshot_holds_neither_what_was_acknowledged_before_it_nor_what_a_seek_brought_back() -> None:
    model = a_model(retain_acked_messages=True)
    (early,) = publish(model, 1)
    acknowledge(model, pull(model))
    (kept,) = publish(model, 1, 1)
    snapshot = model.create_snapshot("then", BASE, after(1))
    model.seek(BASE, START, after(2))
    assert sorted(outstanding(model)) == sorted([early, kept])
    acknowledge(model, pull(model, 3), 3)
    model.seek(BASE, snapshot.name, after(4))
    assert outstanding(model) == [kept]


def test_a_snapshot_outlives_its_subscription_and_serves_another_of_the_topic() -> None:
    model = a_model()
    ids = publish(model, 2)
    snapshot = model.create_snapshot("then", BASE, START)
    model.delete_subscription(BASE)
    model.create_subscription(a_subscription(), START)
    since = publish(model, 1, 1)
    model.seek(BASE, snapshot.name, after(2))
    assert ids_of(pull(model, 3)) == [*ids, *since]


def test_a_snapshot_of_another_topic_is_refused() -> None:
    model = a_model()
    model.create_topic(a_topic("elsewhere"))
    model.create_subscription(a_subscription("far", "elsewhere"), START)
    snapshot = model.create_snapshot("far away", "far", START)
    with pytest.raises(Refused, match="elsewhere"):
        model.seek(BASE, snapshot.name, START)


def test_names_are_taken_once_and_what_is_missing_is_named() -> None:
    model = a_model()
    model.create_snapshot("one", BASE, START)
    with pytest.raises(AlreadyExists, match=TOPIC):
        model.create_topic(a_topic())
    with pytest.raises(AlreadyExists, match=BASE):
        model.create_subscription(a_subscription(), START)
    with pytest.raises(AlreadyExists, match="one"):
        model.create_snapshot("one", BASE, START)
    for call in (
        lambda: model.delete_topic("nobody"),
        lambda: model.publish("nobody", [], START),
        lambda: model.create_subscription(a_subscription("new", "nobody"), START),
        lambda: model.pull("nobody", 1, START),
        lambda: model.delete_subscription("nobody"),
        lambda: model.create_snapshot("two", "nobody", START),
        lambda: model.delete_snapshot("nobody", START),
    ):
        with pytest.raises(NotFound, match="nobody"):
            call()


def test_a_subscription_outlives_its_topic() -> None:
    model = a_model()
    ids = publish(model, 1)
    model.delete_topic(TOPIC)
    assert model.get_subscription(BASE).topic == "_deleted-topic_"
    assert ids_of(pull(model)) == ids


def test_publish_times_never_go_back_and_ids_are_never_used_twice() -> None:
    model = a_model()
    ids = publish(model, 1, 10) + publish(model, 1, 5)
    first, second = pull(model, 20)
    assert first.message.publish_time == second.message.publish_time
    assert len({*ids}) == 2


def test_a_message_that_a_seek_took_and_another_brought_back_comes_once() -> None:
    model = a_model()
    ids = publish(model, 2)
    snapshot = model.create_snapshot("then", BASE, START)
    model.seek(BASE, after(1), START)
    model.seek(BASE, snapshot.name, START)
    assert ids_of(pull(model)) == ids

"""Each fault does what it says, and one seed replays them all."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.emulator.builders import (
    BASE,
    DEADLINE,
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
    publish,
    pull,
)
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import DeadlineExceeded, ModelError, Throttled, Unavailable

WEEK = timedelta(days=7)


def under(**faults: Any) -> PubSubModel:
    """A model that has these faults from now on."""
    model = a_model()
    model.faults = Faults(**faults)
    return model


@pytest.mark.parametrize("wrong", [{"unavailable": 1.1}, {"redelivered": -0.1}, {"visible_after": timedelta(-1)}])
def test_a_chance_is_between_0_and_1_and_a_duration_is_not_negative(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Faults(**wrong)


@pytest.mark.parametrize(
    ("fault", "answer"),
    [("unavailable", Unavailable), ("deadline_exceeded", DeadlineExceeded), ("throttled", Throttled)],
)
def test_a_call_that_is_not_answered_has_done_nothing(fault: str, answer: type[ModelError]) -> None:
    model = a_model()
    publish(model, 2)
    delivered = pull(model, at_most=1)
    model.faults = Faults(**{fault: 1.0})
    calls: list[Callable[[], Any]] = [
        lambda: publish(model, 1),
        lambda: pull(model),
        lambda: acknowledge(model, delivered),
        lambda: model.modify_ack_deadline(BASE, [delivered[0].ack_id], 0, START),
        lambda: model.create_snapshot("one", BASE, START),
        lambda: model.seek(BASE, after(1), START),
        lambda: model.create_topic(a_topic("another")),
        lambda: model.delete_subscription(BASE),
    ]
    for call in calls:
        with pytest.raises(answer):
            call()
    model.faults = Faults()
    assert len(outstanding(model)) == 2
    assert len(pull(model)) == 1
    assert model.list_snapshots(START) == []
    assert [topic.name for topic in model.list_topics()] == [TOPIC]


def test_a_call_whose_answer_is_lost_has_done_its_work() -> None:
    model = under(answer_lost=1.0)
    with pytest.raises(Unavailable, match="took effect"):
        publish(model, 1)
    assert len(outstanding(model)) == 1
    with pytest.raises(Unavailable):
        pull(model)
    with pytest.raises(Unavailable):
        model.create_snapshot("leaked", BASE, START)
    model.faults = Faults()
    assert pull(model, 9) == []  # leased to nobody
    assert [snapshot.name for snapshot in model.list_snapshots(START)] == ["leaked"]
    assert len(pull(model, 10)) == 1


def test_an_acknowledgement_that_is_lost_leaves_the_message_leased_and_then_it_comes_again() -> None:
    model = under(acknowledgement_lost=1.0)
    publish(model, 1)
    acknowledge(model, pull(model))
    assert pull(model, 9) == []
    assert len(pull(model, 10)) == 1


def test_an_acknowledgement_is_undone_within_an_ack_deadline_and_only_once() -> None:
    model = under(redelivered=1.0)
    ids = publish(model, 20)
    acknowledge(model, pull(model))
    assert model.oldest_unacked(BASE, START) is None or outstanding(model) != ids
    again = pull(model, DEADLINE.total_seconds())
    assert sorted(ids_of(again), key=int) == ids
    assert model.oldest_unacked(BASE, after(10)) == START
    acknowledge(model, again, 10)
    assert outstanding(model) == []
    assert pull(model, 3600) == []


def test_a_late_acknowledgement_may_not_count_and_one_in_time_does() -> None:
    model = under(late_acknowledgement_lost=1.0)
    publish(model, 2)
    in_time, late = pull(model)
    acknowledge(model, [in_time], 9)
    acknowledge(model, [late], 10)
    assert outstanding(model) == [late.message.message_id]


def test_a_leased_message_is_delivered_a_second_time_and_either_id_acknowledges_it() -> None:
    model = under(duplicate_delivery=1.0)
    ids = publish(model, 3)
    first = pull(model)
    model.faults = Faults()
    second = pull(model, 1)
    assert ids_of(second) == ids
    assert pull(model, 2) == []
    acknowledge(model, first[:1], 3)
    acknowledge(model, second[1:2], 3)
    assert outstanding(model) == [ids[2]]


def test_each_subscription_sees_a_message_at_its_own_time_and_not_before() -> None:
    model = under(visible_after=timedelta(seconds=10))
    model.create_subscription(a_subscription("other"), START)
    ids = publish(model, 200)
    seen: dict[str, list[int]] = {BASE: [], "other": []}
    for second in range(11):
        for name, counts in seen.items():
            assert (model.oldest_unacked(name, after(second)) is None) == (sum(counts) == 0 and second == 0)
            counts.append(len(model.pull(name, 1000, after(second))))
    assert sum(seen[BASE]) == sum(seen["other"]) >= len(ids)
    assert seen[BASE][1:10] != seen["other"][1:10]
    assert len(outstanding(model)) == 200


def test_a_stale_reading_is_one_from_before() -> None:
    model = under(stale_reading=0.5)
    truth: list[Any] = []
    for second in range(40):
        read = expiry(model.create_snapshot(f"reading-{second}", BASE, after(second)))
        truth.append(after(second) + WEEK)
        assert read in truth
    assert len({expiry(snapshot) for snapshot in model.list_snapshots(after(40))}) < 35


def test_shuffled_messages_come_in_another_order_and_all_of_them() -> None:
    model = under(shuffled=True)
    ids = publish(model, 100)
    came = ids_of(pull(model, at_most=50)) + ids_of(pull(model))
    assert came != ids
    assert sorted(came, key=int) == ids
    model.faults = Faults()
    assert len(pull(model, 10)) == 100

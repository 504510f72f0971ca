"""The model: what comes, when it comes again, what snapshots and seeks do, and that each fault does what it says."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

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
    outstanding,
    plain,
    publish,
    pull,
)
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import DeadlineExceeded, Invalid, ModelError, Refused, Throttled, Unavailable

WEEK = timedelta(days=7)


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


def test_a_message_is_dropped_once_it_is_older_than_its_subscription_keeps_it() -> None:
    model = a_model()
    publish(model, 1)
    (kept,) = publish(model, 1, 60)
    assert len(outstanding(model)) == 2
    assert model.oldest_unacked(BASE, START + WEEK + timedelta(seconds=1)) == after(60)
    assert outstanding(model) == [kept]


def test_a_snapshot_that_would_live_for_less_than_an_hour_is_refused() -> None:
    model = a_model()
    publish(model, 1)
    edge = START + WEEK - timedelta(hours=1)
    assert expiry(model.create_snapshot("just", BASE, edge)) == START + WEEK
    with pytest.raises(Refused, match="less than an hour"):
        model.create_snapshot("not", BASE, edge + timedelta(microseconds=1))


def test_acknowledged_messages_are_forgotten_while_an_older_one_is_outstanding() -> None:
    model = a_model()
    publish(model, 1)
    pull(model)
    for second in range(5):
        publish(model, 10, second)
        acknowledge(model, pull(model, second), second)
    assert len(outstanding(model)) == 1
    assert len(model._state(BASE).outstanding._order) <= 2


# Faults


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

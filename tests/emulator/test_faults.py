"""Each fault does what it says, and one seed replays them all."""

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
    outstanding,
    publish,
    pull,
)
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.refusals import DeadlineExceeded, ModelError, Throttled, Unavailable


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

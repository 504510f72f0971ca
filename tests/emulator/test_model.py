"""The model without faults: what comes, when it comes again, and what snapshots and seeks do."""

from datetime import timedelta

import pytest

from tests.emulator.builders import (
    BASE,
    START,
    TOPIC,
    a_model,
    a_subscription,
    after,
    expiry,
    outstanding,
    plain,
    publish,
    pull,
)
from tidemark.local.emulator.refusals import Invalid, Refused

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

"""A model with one topic and one subscription, and messages for it."""

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from google.pubsub_v1 import types

from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.unacknowledged import Delivered

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
DEADLINE = timedelta(seconds=10)
ROUGH = Faults(
    shuffled=True,
    redelivered=0.05,
    acknowledgement_lost=0.05,
    late_acknowledgement_lost=0.5,
    acknowledgement_answer_lost=0.1,
    duplicate_delivery=0.05,
    stale_reading=0.2,
    reading_unavailable=0.1,
    unavailable=0.05,
    answer_lost=0.05,
    deadline_exceeded=0.05,
    throttled=0.05,
)

TOPIC, BASE = "topic", "base"


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def plain(data: str = "", **attributes: str) -> Any:
    return types.PubsubMessage.pb()(data=data.encode(), attributes=attributes)


def a_topic(name: str = TOPIC) -> Any:
    return types.Topic.pb()(name=name)


def a_subscription(
    name: str = BASE,
    topic: str = TOPIC,
    deadline: timedelta = DEADLINE,
    retention: timedelta = timedelta(days=7),
    *,
    retain_acked_messages: bool = False,
) -> Any:
    return types.Subscription.pb()(
        name=name,
        topic=topic,
        ack_deadline_seconds=int(deadline.total_seconds()),
        message_retention_duration=retention,
        retain_acked_messages=retain_acked_messages,
    )


def expiry(snapshot: Any) -> datetime:
    return snapshot.expire_time.ToDatetime(UTC)


def a_model(faults: Faults | None = None) -> PubSubModel:
    model = PubSubModel(rng=random.Random(1), faults=faults or Faults())
    model.create_topic(a_topic())
    model.create_subscription(a_subscription(), START)
    return model


def publish(model: PubSubModel, count: int, seconds: float = 0) -> list[str]:
    return model.publish(TOPIC, [plain(f"{number}") for number in range(count)], after(seconds))


def pull(model: PubSubModel, seconds: float = 0, at_most: int = 1000) -> list[Delivered]:
    return model.pull(BASE, at_most, after(seconds))


def acknowledge(model: PubSubModel, delivered: Sequence[Delivered], seconds: float = 0) -> None:
    model.acknowledge(BASE, [one.ack_id for one in delivered], after(seconds))


def ids_of(delivered: Sequence[Delivered]) -> list[str]:
    return [one.message.message_id for one in delivered]


def outstanding(model: PubSubModel) -> list[str]:
    return [message.message_id for message in model.unacknowledged(BASE)]

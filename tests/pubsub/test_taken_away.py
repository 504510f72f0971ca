"""What takes messages from somebody else's base unread is told by the service's metrics."""

import random
from collections.abc import Iterator

import grpc
import pytest

from tests.clock import ManualClock
from tests.fixtures_emulator import unique_pubsub
from tests.pubsub.fake_monitoring import START, FakeMonitoring, Point, Series, metrics_at
from tests.pubsub.fake_monitoring import served as metrics_of
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.pubsub.backlog import DEAD_LETTERED, LOOK_BACK, SOUGHT
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings


@pytest.fixture
def pubsub(fake: FakeMonitoring) -> Iterator[PubSubSettings]:
    with served(PubSubModel(rng=random.Random(0))) as address, metrics_of(fake) as metrics, metrics_at(metrics):
        yield unique_pubsub(address).model_copy(update={"attach": True, "project": fake.project})


def told(pubsub: PubSubSettings, clock: ManualClock) -> list[str]:
    return list(Subscriptions(Settings(pubsub=pubsub), Kept(), clock).taken_away())


def counts(fake: FakeMonitoring, pubsub: PubSubSettings, metric: str, *values: int, result: str = "success") -> None:
    points = [Point(START - (number + 1) * LOOK_BACK / 10, value) for number, value in enumerate(values)]
    labels = {"response_class": result}
    fake.series.append(Series(metric, pubsub.base_subscription, points, fake.project, labels))


def test_seeks_and_dead_letters_are_told_with_their_number(
    fake: FakeMonitoring, pubsub: PubSubSettings, clock: ManualClock
) -> None:
    assert told(pubsub, clock) == []
    counts(fake, pubsub, SOUGHT, 1, 0)
    counts(fake, pubsub, SOUGHT, 1, result="invalid")
    counts(fake, pubsub, DEAD_LETTERED, 3, 4)
    sought, moved = told(pubsub, clock)
    assert sought.startswith(f"{pubsub.base_path} was sought within 10m (2 requests)")
    assert moved.startswith(f"{pubsub.base_path} moved messages to its dead-letter topic within 10m (7)")
    assert told(pubsub.model_copy(update={"attach": False}), clock) == []
    fake.errors = [grpc.StatusCode.PERMISSION_DENIED]
    assert told(pubsub, clock) == []
    clock.advance(2 * LOOK_BACK)
    assert told(pubsub, clock) == []

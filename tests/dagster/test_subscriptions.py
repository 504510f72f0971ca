"""The check `subscriptions`: what somebody changes after provisioning is reported, once."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from google.pubsub_v1 import SubscriberClient, types

from tests.clock import ManualClock
from tests.dagster.house import Ticking, settings_of
from tests.doctor.world import World, served_world
from tidemark.assets.sensors.staleness import AUDIT_EVERY
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import PermissionMissing, PubSubUnreachable
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.readings import Subscriptions

ERROR, WARN = dg.AssetCheckSeverity.ERROR, dg.AssetCheckSeverity.WARN


@pytest.fixture
def world() -> Iterator[World]:
    with served_world() as world:
        world.provision()
        yield world


@pytest.fixture
def ticking(world: World, tmp_path: Path) -> Iterator[Ticking]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield Ticking(settings_of(world.pubsub, tmp_path), instance, ManualClock(SystemClock().now()))


@pytest.fixture
def subscriber(world: World) -> Iterator[SubscriberClient]:
    client = subscriber_client(*world.pubsub.server)
    yield client
    client.transport.close()


def said(ticking: Ticking) -> list[tuple[bool, dg.AssetCheckSeverity, str]]:
    """What a tick says of the check, and the next one is five minutes later."""
    events = [
        event
        for event in ticking.tick("staleness").asset_events
        if isinstance(event, dg.AssetCheckEvaluation) and event.check_name == "subscriptions"
    ]
    assert isinstance(ticking.clock, ManualClock)
    ticking.clock.advance(AUDIT_EVERY)
    return [(event.passed, event.severity, event.description or "") for event in events]


def test_each_change_is_news_and_so_is_its_end(ticking: Ticking, world: World, subscriber: SubscriberClient) -> None:
    said(ticking)
    expiring = types.Subscription(
        name=world.pubsub.base_path, expiration_policy={"ttl": timedelta(days=2)}, push_config={}
    )
    subscriber.update_subscription(subscription=expiring, update_mask={"paths": ["expiration_policy"]})
    ((passed, severity, sentence),) = said(ticking)
    assert (passed, severity) == (False, WARN)
    assert "Pub/Sub will DELETE the base subscription" in sentence
    pushing = types.Subscription(name=world.pubsub.base_path, push_config={"push_endpoint": "https://push.example"})
    subscriber.update_subscription(subscription=pushing, update_mask={"paths": ["push_config"]})
    ((passed, severity, sentence),) = said(ticking)
    assert (passed, severity) == (False, ERROR)
    assert "pushes to https://push.example" in sentence
    assert said(ticking) == []
    mended = types.Subscription(name=world.pubsub.base_path, push_config={}, expiration_policy={})
    subscriber.update_subscription(subscription=mended, update_mask={"paths": ["push_config", "expiration_policy"]})
    assert [passed for passed, _, _ in said(ticking)] == [True]


def test_a_missing_permission_to_look_is_a_warning_and_no_answer_is_silence(
    ticking: Ticking, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(error: Exception) -> None:
        def raising(self: object) -> None:
            raise error

        monkeypatch.setattr(Subscriptions, "drift", raising)

    answer(PubSubUnreachable("nobody answers"))
    assert said(ticking) == []
    answer(PermissionMissing("grant pubsub.subscriptions.get on it"))
    ((passed, severity, sentence),) = said(ticking)
    assert (passed, severity) == (False, WARN)
    assert sentence == "a change of the subscriptions would not be noticed: grant pubsub.subscriptions.get on it"

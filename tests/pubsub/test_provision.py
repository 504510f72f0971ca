"""Provisioning, on the official emulator."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.official_emulator import HOST, free_port
from tests.pubsub.builders import Altered, send
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.errors import ProvisionRefused, PubSubUnreachable
from tidemark.pipeline.pubsub import resources
from tidemark.pipeline.pubsub.connection import bounded, publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import ProvisionReport, provision
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings

CONTRACT: MessageContract = Settings().contract
Provision = Callable[..., ProvisionReport]


@pytest.fixture
def provisioned(subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings) -> Provision:
    """Provisions the fresh settings, or with the parts that are named otherwise."""

    def run(**others: Any) -> ProvisionReport:
        parts = {"subscriber": subscriber, "publisher": publisher, "settings": fresh_pubsub, "contract": CONTRACT}
        return provision(**{**parts, "clock": SystemClock(), **others})

    return run


def test_subscriptions_that_another_provisioning_created_meanwhile_are_judged_as_well(
    provisioned: Provision, subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings
) -> None:
    publisher.create_topic(name=fresh_pubsub.topic_path)

    def beaten(request: dict[str, Any], **bounds: Any) -> Any:
        subscriber.create_subscription(request={**request, "filter": "attributes:a"}, **bounds)
        raise api.AlreadyExists("beaten")

    with pytest.raises(ProvisionRefused, match="has the filter"):
        provisioned(subscriber=Altered(subscriber, create_subscription=beaten))


def test_nothing_is_created_where_something_is_refused(
    provisioned: Provision, subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings
) -> None:
    publisher.create_topic(name=fresh_pubsub.topic_path)
    wrong = {"name": fresh_pubsub.base_path, "topic": fresh_pubsub.topic_path, "filter": "attributes:a"}
    subscriber.create_subscription(request=wrong)
    with pytest.raises(ProvisionRefused, match="has the filter 'attributes:a'"):
        provisioned()
    with pytest.raises(api.NotFound):
        subscriber.get_subscription(subscription=fresh_pubsub.tracking_path)


def test_metadata_only_gives_tracking_a_transform_and_says_that_the_emulator_ignores_it(
    provisioned: Provision, subscriber: SubscriberClient, fresh_pubsub: PubSubSettings
) -> None:
    settings = fresh_pubsub.model_copy(update={"metadata_only": True})
    report = provisioned(settings=settings)
    (transform,) = subscriber.get_subscription(subscription=settings.tracking_path).message_transforms
    assert "attributes" in transform.javascript_udf.code
    assert not subscriber.get_subscription(subscription=settings.base_path).message_transforms
    assert "the emulator ignores" in report.warnings[0]
    with pytest.raises(ProvisionRefused, match=r"message\.event_time"):
        provisioned(settings=settings, contract=replace(CONTRACT, event_time=Place.of("payload:at")))


def test_a_base_backlog_that_is_older_than_tracking_is_reported_with_its_age(
    provisioned: Provision, subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings
) -> None:
    provisioned()
    send(publisher, fresh_pubsub, 3)
    subscriber.delete_subscription(subscription=fresh_pubsub.tracking_path)
    SystemClock().sleep(1.5)
    report = provisioned()
    assert report.created == [fresh_pubsub.tracking_path]
    (warning,) = report.warnings
    assert "HELD_INCOMPLETE" in warning
    assert "before tracking was created" in warning


def test_an_unreachable_server_is_reported_within_the_call_timeout(
    fresh_pubsub: PubSubSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = f"{HOST}:{free_port()}"
    settings = fresh_pubsub.model_copy(update={"emulator_host": nobody})
    monkeypatch.setattr(resources, "bounded", lambda: bounded(timedelta(seconds=1)))
    with pytest.raises(PubSubUnreachable, match=r"pubsub\.emulator_host.*run the command again"):
        provision(subscriber_client(nobody), publisher_client(nobody), settings, CONTRACT, SystemClock())

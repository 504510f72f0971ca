"""Provisioning, on the official emulator; and what breaks the method and what merely differs, as Pub/Sub describes
it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.api_core import exceptions as api
from google.pubsub_v1 import types

from tests.official_emulator import HOST, free_port
from tests.pubsub.builders import Altered, Served
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.contract.places import Place
from tidemark.pipeline.errors import ProvisionRefused, PubSubUnreachable
from tidemark.pipeline.pubsub import connection
from tidemark.pipeline.pubsub.connection import bounded, publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.pubsub.requirements import dangers, differences, refusals, wanted
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import PubSubSettings

CONTRACT: MessageContract = Settings().contract


def test_subscriptions_that_another_provisioning_created_meanwhile_are_judged_as_well(served_pubsub: Served) -> None:
    subscriber = served_pubsub.subscriber
    served_pubsub.publisher.create_topic(name=served_pubsub.settings.topic_path)

    def beaten(request: dict[str, Any], **bounds: Any) -> Any:
        subscriber.create_subscription(request={**request, "filter": "attributes:a"}, **bounds)
        raise api.AlreadyExists("beaten")

    with pytest.raises(ProvisionRefused, match="has the filter"):
        served_pubsub.provision(subscriber=Altered(subscriber, create_subscription=beaten))


def test_nothing_is_created_where_something_is_refused(served_pubsub: Served) -> None:
    settings, subscriber = served_pubsub.settings, served_pubsub.subscriber
    served_pubsub.publisher.create_topic(name=settings.topic_path)
    wrong = {"name": settings.base_path, "topic": settings.topic_path, "filter": "attributes:a"}
    subscriber.create_subscription(request=wrong)
    with pytest.raises(ProvisionRefused, match="has the filter 'attributes:a'"):
        served_pubsub.provision()
    with pytest.raises(api.NotFound):
        subscriber.get_subscription(subscription=settings.tracking_path)


def test_metadata_only_gives_tracking_a_transform_and_says_that_the_emulator_ignores_it(served_pubsub: Served) -> None:
    subscriber, settings = served_pubsub.subscriber, served_pubsub.settings.model_copy(update={"metadata_only": True})
    report = served_pubsub.provision(settings=settings)
    (transform,) = subscriber.get_subscription(subscription=settings.tracking_path).message_transforms
    assert "attributes" in transform.javascript_udf.code
    base = subscriber.get_subscription(subscription=settings.base_path)
    assert not base.message_transforms
    assert (base.ack_deadline_seconds, base.message_retention_duration) == (60, timedelta(days=7))
    assert "the emulator ignores" in report.warnings[0]


def test_a_base_backlog_that_is_older_than_tracking_is_reported_with_its_age(served_pubsub: Served) -> None:
    tracking = served_pubsub.settings.tracking_path
    served_pubsub.provision()
    served_pubsub.send(3)
    served_pubsub.subscriber.delete_subscription(subscription=tracking)
    SystemClock().sleep(1.5)
    report = served_pubsub.provision()
    assert report.created == [tracking]
    (warning,) = report.warnings
    assert "HELD_INCOMPLETE" in warning
    assert "before tracking was created" in warning


def test_an_unreachable_server_is_said_in_time(fresh_pubsub: PubSubSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = f"{HOST}:{free_port()}"
    settings = fresh_pubsub.model_copy(update={"emulator_host": nobody})
    monkeypatch.setattr(connection, "bounded", lambda: bounded(timedelta(seconds=1)))
    with pytest.raises(PubSubUnreachable, match=r"pubsub\.emulator_host.*run the command again"):
        provision(subscriber_client(nobody), publisher_client(nobody), settings, CONTRACT, SystemClock())


SETTINGS = PubSubSettings()
ROLES = ("tracking", "base")


def existing(role: str, **changes: Any) -> types.Subscription:
    path = SETTINGS.tracking_path if role == "tracking" else SETTINGS.base_path
    return types.Subscription({**wanted(SETTINGS, path), **changes})


def refused(**found: types.Subscription) -> list[str]:
    return list(refusals(SETTINGS, CONTRACT, found.get("tracking"), found.get("base")))


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"topic": "projects/tidemark-local/topics/another"}, "is attached to projects/tidemark-local/topics/another"),
        ({"topic": "_deleted-topic_"}, "belonged to a topic that was deleted"),
        ({"detached": True}, "is detached"),
        ({"filter": 'attributes.a = "b"'}, "asks for no filter"),
        ({"dead_letter_policy": {"dead_letter_topic": "projects/p/topics/dead"}}, "--clear-dead-letter-policy"),
        ({"push_config": {"push_endpoint": "https://example.org/"}}, "modify-push-config"),
        ({"bigquery_config": {"table": "a.b.c"}}, "exports its messages (bigquery_config)"),
        ({"cloud_storage_config": {"bucket": "somewhere"}}, "exports its messages (cloud_storage_config)"),
        ({"bigtable_config": {"table": "somewhere"}}, "exports its messages (bigtable_config)"),
        (
            {"message_transforms": [{"javascript_udf": {"function_name": "f", "code": "function f(m) {return null}"}}]},
            "has a message transform",
        ),
    ],
)
def test_options_that_make_subscriptions_differ_are_refused(role: str, change: dict[str, Any], said: str) -> None:
    (reason,) = refused(**{role: existing(role, **change)})
    assert said in reason
    assert existing(role).name in reason


@pytest.mark.parametrize(("policy", "after"), [({"ttl": timedelta(days=2)}, "2d"), (None, "31d")])
def test_a_subscription_that_would_expire_is_a_danger(policy: Any, after: str) -> None:
    (said,) = dangers("tracking", existing("tracking", expiration_policy=policy))
    assert "will DELETE the tracking subscription" in said
    assert f"for {after}:" in said


def test_both_subscriptions_must_have_the_filter_of_the_settings_and_are_created_with_it() -> None:
    settings = SETTINGS.model_copy(update={"filter": 'attributes.region = "eu"'})
    made = {role: types.Subscription(wanted(settings, getattr(settings, f"{role}_path"))) for role in ROLES}
    assert [one.filter for one in made.values()] == [settings.filter] * 2
    assert list(refusals(settings, CONTRACT, **made)) == []
    for role in ROLES:
        (reason,) = refusals(settings, CONTRACT, **{**made, role: existing(role, filter="attributes:a")})
        assert f"has the filter 'attributes:a', and pubsub.filter asks for the filter {settings.filter!r}" in reason
        assert f"name another subscription in pubsub.{role}_subscription" in reason
        (reason,) = refusals(settings, CONTRACT, **{**made, role: existing(role)})
        assert "has no filter" in reason


@pytest.mark.parametrize(
    ("tracking", "base", "count"), [(7, 7, 0), (8, 7, 0), (6, 7, 1), (None, 8, 1), (None, 6, 0), (6, None, 1)]
)
def test_tracking_must_keep_messages_as_long_as_base(tracking: int | None, base: int | None, count: int) -> None:
    kept = {"tracking": tracking, "base": base}
    found = {
        role: existing(role, message_retention_duration=timedelta(days=days)) for role, days in kept.items() if days
    }
    assert len(refused(**found)) == count


def test_metadata_only_is_for_tracking_alone_and_refused_where_the_contract_needs_the_payload() -> None:
    settings = SETTINGS.model_copy(update={"metadata_only": True})
    tracking = types.Subscription(wanted(settings, settings.tracking_path))
    assert list(refusals(settings, CONTRACT, tracking, None)) == []
    of_the_payload = replace(CONTRACT, event_time=Place.of("payload:at"))
    (reason,) = refusals(settings, of_the_payload, None, None)
    assert "pubsub.metadata_only" in reason
    (reason,) = refusals(SETTINGS, of_the_payload, tracking, None)
    assert "drops the payload" in reason
    assert list(differences(settings, "tracking", tracking)) == []
    (said,) = differences(SETTINGS, "tracking", tracking)
    assert "drops the payload" in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"message_retention_duration": timedelta(days=8)}, "pubsub.retention is 7d: set pubsub.retention to 8d"),
        ({"enable_exactly_once_delivery": True}, "delivers exactly once"),
        ({"enable_message_ordering": True}, "delivers in order"),
    ],
)
def test_each_option_that_differs_has_its_sentence(change: dict[str, Any], said: str) -> None:
    found = existing("tracking", **change)
    (sentence,) = differences(SETTINGS, "tracking", found)
    assert said in sentence
    assert refused(tracking=found) == []

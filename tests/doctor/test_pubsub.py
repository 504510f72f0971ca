"""What doctor says of the topic and the two subscriptions; and each permission that is taken away is named, with what
it is on and who needs it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from google.pubsub_v1 import SchemaServiceClient, types

from tests.doctor.world import World, served_world
from tests.pubsub.builders import Denying
from tidemark.pipeline.doctor import checks
from tidemark.pipeline.doctor.finding import CheckFinding, Level, examine
from tidemark.pipeline.doctor.identity import RUNNING, Component, permissions_of
from tidemark.pipeline.pubsub.connection import client_of
from tidemark.pipeline.settings_message import MessageSettings

CHECKS = [check for check in checks.CHECKS if check.subject == checks.PUBSUB]


def found(world: World) -> list[CheckFinding]:
    return examine(world.setup(), CHECKS)


def wrong(world: World) -> list[CheckFinding]:
    return [one for one in found(world) if one.level is not Level.OK]


@pytest.mark.parametrize(
    ("options", "level", "said"),
    [
        ({"filter": "attributes:a"}, Level.BROKEN, "has the filter 'attributes:a'"),
        ({"expiration_policy": {"ttl": timedelta(days=2)}}, Level.WARNING, "Pub/Sub will DELETE the base subscription"),
        ({"enable_message_ordering": True}, Level.WARNING, "delivers in order"),
    ],
)
def test_each_wrong_option_is_said_once(world: World, options: dict[str, Any], level: Level, said: str) -> None:
    world.provision(**options)
    (finding,) = wrong(world)
    assert finding.level is level
    assert said in finding.said


@pytest.mark.parametrize(
    ("options", "level", "said"),
    [
        ({"schema_settings": {"schema": "projects/p/schemas/s", "encoding": "BINARY"}}, Level.BROKEN, "reads JSON"),
        ({"schema_settings": {"schema": "_deleted-schema_", "encoding": "JSON"}}, Level.WARNING, "--clear-schema"),
        (
            {"message_storage_policy": {"allowed_persistence_regions": ["europe-west3"], "enforce_in_transit": True}},
            Level.BROKEN,
            "set it to europe-west3-pubsub.googleapis.com:443",
        ),
    ],
)
def test_a_topic_that_would_not_do_is_said(world: World, options: dict[str, Any], level: Level, said: str) -> None:
    world.provision()
    topic = types.Topic({"name": world.pubsub.topic_path, **options})
    world.model._topics[world.pubsub.topic_path] = types.Topic.pb(topic)
    (finding,) = wrong(world)
    assert finding.level is level
    assert said in finding.said


def with_schema(world: World, kind: Any, encoding: Any, **message: Any) -> list[CheckFinding]:
    """What is wrong with a topic that has such a schema, for settings that say so of messages."""
    pubsub = world.pubsub
    schema = types.Schema(type_=kind, definition="{}")
    with client_of(SchemaServiceClient, *pubsub.server) as client:
        client.create_schema(parent=f"projects/{pubsub.project}", schema=schema, schema_id="beat")
    settings = {"schema": f"projects/{pubsub.project}/schemas/beat", "encoding": encoding}
    world.model._topics[pubsub.topic_path] = types.Topic.pb(
        types.Topic({"name": pubsub.topic_path, "schema_settings": settings})
    )
    setup = replace(world.setup(), settings=world.settings.model_copy(update={"message": MessageSettings(**message)}))
    return [one for one in examine(setup, CHECKS) if one.level is not Level.OK]


AVRO, PROTOBUF = types.Schema.Type.AVRO, types.Schema.Type.PROTOCOL_BUFFER


@pytest.mark.parametrize(
    ("kind", "encoding", "message", "said"),
    [
        (AVRO, "BINARY", {"payload": "avro"}, None),
        (PROTOBUF, "BINARY", {"payload": "protobuf"}, None),
        (AVRO, "JSON", {"payload": "json"}, None),
        (AVRO, "BINARY", {"payload": "none"}, None),
        (AVRO, "BINARY", {"payload": "json"}, "has binary messages, and message.payload = 'json' reads JSON"),
        (AVRO, "JSON", {"payload": "protobuf"}, "is avro, and message.payload = 'protobuf': all messages would go to"),
        (PROTOBUF, "BINARY", {"payload": "avro"}, "or set message.payload = 'protobuf'"),
        (PROTOBUF, "BINARY", {"payload": "avro", "schema": "/beat.avsc"}, "is protobuf, and message.payload = 'avro'"),
    ],
)
def test_the_topic_s_schema_is_compared_with_what_the_settings_say_of_payloads(
    world: World, kind: Any, encoding: str, message: dict[str, Any], said: str | None
) -> None:
    world.provision()
    findings = with_schema(world, kind, encoding, **message)
    assert [one.level for one in findings] == [Level.BROKEN] * (said is not None)
    assert said is None or said in findings[0].said


def test_a_topic_without_a_schema_is_broken_only_where_messages_are_read_by_it(world: World) -> None:
    world.provision()
    for message, levels in (({"schema": "/beat.avsc"}, []), ({}, [Level.BROKEN])):
        settings = world.settings.model_copy(update={"message": MessageSettings(payload="avro", **message)})
        findings = [one for one in examine(replace(world.setup(), settings=settings), CHECKS) if one.level != Level.OK]
        assert [one.level for one in findings] == levels
    assert "has no schema, but message.payload = 'avro' with an empty message.schema" in findings[0].said


def test_a_schema_that_may_not_be_looked_at_breaks_only_what_reads_by_it() -> None:
    denying = Denying(schemas=("/beat",))
    with served_world(interceptors=[denying]) as world:
        world.grant_all()
        world.provision()
        (finding,) = with_schema(world, AVRO, "BINARY", payload="avro")
        assert finding.level is Level.BROKEN
        assert "grant pubsub.schemas.listRevisions on it" in finding.said
        settings = world.settings.model_copy(update={"message": MessageSettings(payload="avro", schema="/beat.avsc")})
        found = examine(replace(world.setup(), settings=settings), CHECKS)
        assert {one.level for one in found} == {Level.OK}
        assert "this requires pubsub.schemas.listRevisions on it" in found[0].said


OF_PERMISSIONS = [check for check in checks.CHECKS if check.subject == checks.PERMISSIONS]
ONLY_WARNED = {"monitoring.timeSeries.list", "pubsub.subscriptions.get"}


def lacking(world: World, *components: Component) -> list[CheckFinding]:
    return [one for one in examine(world.setup(*components), OF_PERMISSIONS) if one.level is not Level.OK]


def test_each_permission_that_a_part_that_runs_lacks_is_named(world: World) -> None:
    world.provision()
    assert lacking(world) == []
    for permission, parts in permissions_of(RUNNING).items():
        world.take_away(permission)
        findings = lacking(world)
        world.grant_all()
        for finding, resource in zip(findings, world.resources(permission.on), strict=True):
            assert f"lack {permission.name} on " in finding.said
            assert resource in finding.said
            assert finding.level is (Level.WARNING if permission.name in ONLY_WARNED else Level.BROKEN)
            assert all(f"tidemark.{part}.{permission.on}" in finding.said for part in parts)


@pytest.mark.parametrize("reading", ["auto", "snapshot"])
def test_what_attach_lacks_is_named_and_consume_on_base_is_wanted_on_purpose_alone(world: World, reading: str) -> None:
    world.provision()
    world.pubsub = world.pubsub.model_copy(update={"attach": True, "reading": reading})
    ours = permissions_of([Component.ATTACH], reading)
    world.granted = {}
    for permission in ours:
        for resource in world.resources(permission.on):
            world.granted.setdefault(resource, set()).add(permission.name)
    assert lacking(world, Component.ATTACH) == []
    assert ("pubsub.subscriptions.consume" in world.granted[world.pubsub.base_path]) == (reading == "snapshot")
    for permission in ours:
        (resource,) = world.resources(permission.on)
        world.granted[resource].discard(permission.name)
        (finding,) = lacking(world, Component.ATTACH)
        assert finding.level is Level.BROKEN
        assert f"lack {permission.name} on " in finding.said
        world.granted[resource].add(permission.name)


def test_publishing_is_asked_for_on_the_topic_of_the_signal_where_there_is_one(world: World) -> None:
    world.provision()
    world.publish_to = "signal"
    (finding,) = lacking(world)
    path = f"projects/{world.pubsub.project}/topics/signal"
    assert f"lack pubsub.topics.publish on {path} (it grants no permission, or does not exist)" in finding.said
    assert (finding.level, "tidemark.tracker.signal" in finding.said) == (Level.BROKEN, True)
    world.granted[path] = {"pubsub.topics.publish"}
    assert lacking(world) == []

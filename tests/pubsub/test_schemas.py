"""Schemas from Pub/Sub: each message is read by the revision that it was published with."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.pubsub_v1 import SchemaServiceClient, types

from tests.contract.payloads.schemas import AVRO, BEAT, PROTO, avro
from tests.fixtures_emulator import unique_pubsub
from tests.identity.documented import permissions_of_rpc
from tests.identity.recording import Recorder
from tests.ingest.judged import Judged, histogram_of, judged
from tests.lake.builders import InMemory
from tests.pubsub.builders import Denying
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import from_us
from tidemark.pipeline.contract.heartbeat import Asking
from tidemark.pipeline.contract.payloads.schemas import Encoding
from tidemark.pipeline.doctor.identity import SCHEMA
from tidemark.pipeline.lake.owner import AcceptedSchemas
from tidemark.pipeline.pubsub.connection import client_of, publisher_client, subscriber_client
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import PubSubSettings

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
BY_AVRO = MessageSettings(
    payload="avro",
    event_time="payload:at",
    stream_id="payload:device",
    fields={"temp": "number"},
    max_future_skew=timedelta(days=36_500),
)
NAME = "beats-schema"


class Topic:
    """A topic with a schema, on a server of either kind."""

    def __init__(self, pubsub: PubSubSettings) -> None:
        self.pubsub = pubsub
        self.schema = f"projects/{pubsub.project}/schemas/{NAME}"
        self.publisher, self.subscriber = publisher_client(*pubsub.server), subscriber_client(*pubsub.server)
        self.schemas = client_of(SchemaServiceClient, *pubsub.server)

    def create(
        self, definition: Any, kind: Any = types.Schema.Type.AVRO, encoding: Any = types.Encoding.BINARY
    ) -> None:
        project = f"projects/{self.pubsub.project}"
        text = definition if isinstance(definition, str) else json.dumps(definition)
        self.schemas.create_schema(parent=project, schema=types.Schema(type_=kind, definition=text), schema_id=NAME)
        settings = types.SchemaSettings(schema=self.schema, encoding=encoding)
        self.publisher.create_topic(request=types.Topic(name=self.pubsub.topic_path, schema_settings=settings))
        self.subscriber.create_subscription(name=self.pubsub.base_path, topic=self.pubsub.topic_path)

    def commit(self, definition: Any) -> None:
        schema = types.Schema(name=self.schema, type_=types.Schema.Type.AVRO, definition=json.dumps(definition))
        self.schemas.commit_schema(name=self.schema, schema=schema)

    def publish(self, *payloads: bytes) -> None:
        messages = [types.PubsubMessage(data=payload) for payload in payloads]
        self.publisher.publish(topic=self.pubsub.topic_path, messages=messages)

    def pulled(self, at_least: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < at_least:
            answer = self.subscriber.pull(subscription=self.pubsub.base_path, max_messages=100)
            found += [received.message._pb for received in answer.received_messages]
        return sorted(found, key=lambda message: int(message.message_id))

    def close(self) -> None:
        for client in (self.publisher, self.subscriber, self.schemas):
            client.transport.close()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def denying() -> Denying:
    return Denying()


@pytest.fixture
def topic(recorder: Recorder, denying: Denying) -> Iterator[Topic]:
    """On our own server, whose calls are recorded."""
    model = PubSubModel(rng=random.Random(0))
    with served(model, interceptors=[recorder, denying]) as address, closing(Topic(unique_pubsub(address))) as found:
        yield found


def landed(topic: Topic, message: MessageSettings, messages: Sequence[Any]) -> Judged:
    return judged(messages, reader_of(message.contract_from(FIRST), topic.pubsub), None)


def without_temp() -> dict[str, Any]:
    return {**AVRO, "fields": [field for field in AVRO["fields"] if field["name"] != "temp"]}


def test_revisions_change_in_mid_stream_and_are_listed_once(topic: Topic, recorder: Recorder) -> None:
    topic.create(without_temp())
    topic.publish(avro(without_temp(), BEAT))
    topic.commit(AVRO)
    topic.publish(avro(AVRO, BEAT), avro(AVRO, {**BEAT, "device": "d2"}))
    messages = topic.pulled(3)
    batch = landed(topic, BY_AVRO, messages)
    assert batch.rejected["detail"].to_pylist() == []
    assert batch.heartbeats["stream_id"].to_pylist() == ["d1", "d1", "d2"]
    assert batch.heartbeats["temp"].to_pylist() == [None, 21.5, 21.5]
    assert batch.heartbeats["event_time"].to_pylist() == [BEAT["at"]] * 3
    oldest = histogram_of(messages, reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub)).oldest_event_us
    assert from_us(oldest) == min(BEAT["at"], *(message.publish_time.ToDatetime(UTC) for message in messages))
    asked = listed(recorder)
    assert len(asked) == 2  # landing and tracking, each once for all revisions
    assert set(permissions_of_rpc(asked[0])) == {SCHEMA.permission}


def listed(recorder: Recorder) -> list[str]:
    return [method for method in recorder.methods if method.endswith("/ListSchemaRevisions")]


def test_a_protobuf_schema_is_compiled_from_the_text_that_pubsub_keeps(topic: Topic) -> None:
    topic.create(PROTO, types.Schema.Type.PROTOCOL_BUFFER, types.Encoding.JSON)
    topic.publish(b'{"at": "2026-11-21T05:20:00Z", "device": "d1", "temp": 21.5}')
    batch = landed(topic, BY_AVRO.model_copy(update={"payload": Encoding.PROTOBUF}), topic.pulled(1))
    assert batch.heartbeats["temp"].to_pylist() == [21.5]


def test_what_names_no_schema_or_one_that_is_not_there_is_rejected_whole(topic: Topic) -> None:
    topic.create(AVRO)
    topic.publish(avro(AVRO, BEAT))
    (message,) = topic.pulled(1)
    wrong = {
        "deadbeef' does not exist": {"googclient_schemarevisionid": "deadbeef"},
        "deleted": {"googclient_schemaname": "_deleted-schema_"},
        "not of the form projects/": {"googclient_schemaname": "projects/p/schemas/../../secret"},
        "is missing": {"googclient_schemaname": ""},
        "revision of the message's schema was": {"googclient_schemarevisionid": "_deleted-schema-revision_"},
    }
    messages = [copy_of(message, str(number), **change) for number, change in enumerate(wrong.values())]
    rejected = landed(topic, BY_AVRO, messages).rejected
    assert rejected["payload"].to_pylist() == [message.data] * len(wrong)
    assert set(rejected["reason"].to_pylist()) == {"UNREADABLE_PAYLOAD"}
    for detail, said in zip(rejected["detail"].to_pylist(), wrong, strict=True):
        assert said in detail


@pytest.fixture
def guarded(topic: Topic, denying: Denying) -> tuple[Topic, Denying, Any]:
    """A topic whose server refuses what the test says, and a message of it."""
    topic.create(AVRO)
    topic.publish(avro(AVRO, BEAT))
    (message,) = topic.pulled(1)
    return topic, denying, message


def copy_of(message: Any, message_id: str = "forged", **attributes: str) -> Any:
    """A copy of a message with other attributes."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.message_id = message_id
    copy.attributes.update(attributes)
    return copy


SECRETS = ("projects/others/schemas/secret", "projects/{own}/schemas/secret")
"""Schemas that a message may name: somebody else's, and one of the project that is not the topic's."""


@pytest.mark.parametrize("secret", SECRETS)
def test_a_message_with_a_schema_of_others_stops_only_itself(guarded: tuple[Topic, Denying, Any], secret: str) -> None:
    topic, denying, message = guarded
    denying.schemas = ("/secret",)
    secret = secret.format(own=topic.pubsub.project)
    forged = [copy_of(message, str(number), googclient_schemaname=secret) for number in range(2)]
    reader = reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub, AcceptedSchemas(InMemory({}), [topic.schema]))
    batch = judged([*forged, message], reader, None)
    assert batch.heartbeats["stream_id"].to_pylist() == ["d1"]
    assert batch.rejected["message_id"].to_pylist() == ["0", "1"]
    for detail in batch.rejected["detail"].to_pylist():
        assert f"its schema '{secret}' is not accepted" in detail
        assert f"the pipeline reads {topic.schema}" in detail
        assert "message.schema, and requeue" in detail


def test_the_first_schema_found_is_accepted_and_an_unreadable_one_is_not(guarded: tuple[Topic, Denying, Any]) -> None:
    topic, denying, message = guarded
    denying.schemas = ("/secret",)
    accepted = AcceptedSchemas(InMemory({}))
    reader = reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub, accepted)
    forged = copy_of(message, googclient_schemaname=SECRETS[0])
    batch = judged([forged, message], reader, None)
    assert (len(batch.heartbeats), len(batch.rejected), [*batch.undecided]) == (1, 0, [0])
    assert accepted.names() == {topic.schema}
    assert judged([forged], reader, None).rejected["reason"].to_pylist() == ["UNREADABLE_PAYLOAD"]


def later(message: Any, seconds: float) -> Asking:
    """So long after a message was published; it waits for an hour."""
    return Asking(message.publish_time.ToMicroseconds() + round(seconds * 1e6), 3_600_000_000)


def first_of(topic: Topic) -> tuple[Any, Any]:
    """A message of the schema's first revision, and a reader."""
    topic.create(without_temp())
    topic.publish(avro(without_temp(), BEAT))
    return topic.pulled(1)[0], reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub)


def test_one_listing_answers_for_a_second_and_then_a_new_revision_is_read(topic: Topic, recorder: Recorder) -> None:
    message, reader = first_of(topic)
    assert len(judged([message], reader, None, later(message, 0)).heartbeats) == 1
    topic.commit(AVRO)
    topic.publish(avro(AVRO, BEAT))
    (newer,) = topic.pulled(1)
    forged = [copy_of(message, googclient_schemarevisionid=f"{number:08x}") for number in range(200)]
    assert len(judged([*forged, newer], reader, None, later(message, 0.5)).undecided) == 201
    assert len(listed(recorder)) == 1
    assert judged([newer], reader, None, later(message, 1)).heartbeats["temp"].to_pylist() == [21.5]


def test_a_new_revision_is_read_after_the_clock_was_set_back(topic: Topic) -> None:
    message, reader = first_of(topic)
    assert len(judged([message], reader, None, later(message, 7200)).heartbeats) == 1
    topic.commit(AVRO)
    topic.publish(avro(AVRO, BEAT))
    assert judged(topic.pulled(1), reader, None, later(message, 2)).heartbeats["temp"].to_pylist() == [21.5]


def test_a_listing_that_was_refused_is_not_tried_again_for_half_a_minute(guarded: tuple[Topic, Denying, Any]) -> None:
    topic, denying, message = guarded
    denying.schemas = (f"/{NAME}",)
    reader = reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub)
    for seconds, refused in ((0.0, 1), (29.0, 1), (30.0, 2), (10.0, 3)):  # at last by a clock that was set back
        assert len(judged([message] * 3, reader, None, later(message, seconds)).undecided) == 3
        assert denying.refused == refused
    denying.schemas = ()
    assert len(judged([message], reader, None, later(message, 60)).heartbeats) == 1

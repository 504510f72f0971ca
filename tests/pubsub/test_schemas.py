"""Schemas from Pub/Sub: each message is read by the revision that it was published with."""

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from google.pubsub_v1 import SchemaServiceClient, types

from tests.contract.payloads.schemas import AVRO, BEAT, PLAIN, PROTO, avro, avro_text
from tests.fixtures_emulator import unique_pubsub
from tests.identity.recording import Recorder
from tests.pubsub.denying import Denying
from tidemark.pipeline.clock import from_us
from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.emulator.model import PubSubModel
from tidemark.pipeline.emulator.server import served
from tidemark.pipeline.errors import PermissionMissing, PubSubUnreachable
from tidemark.pipeline.identity.components import SCHEMA
from tidemark.pipeline.identity.methods import permissions_of_rpc
from tidemark.pipeline.ingest.judging import JudgedBatch
from tidemark.pipeline.ingest.tracking import histogram_of
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
        schema = types.Schema(type_=kind, definition=text)
        self.schemas.create_schema(parent=project, schema=schema, schema_id=NAME)
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
def topic(recorder: Recorder) -> Iterator[Topic]:
    """On our own server, whose calls are recorded."""
    model = PubSubModel(rng=random.Random(0))
    with served(model, interceptors=[recorder]) as address, closing(Topic(unique_pubsub(address))) as found:
        yield found


@pytest.fixture
def official(official_emulator: str) -> Iterator[Topic]:
    with closing(Topic(unique_pubsub(official_emulator))) as found:
        yield found


def landed(topic: Topic, message: MessageSettings, messages: Sequence[Any]) -> JudgedBatch:
    reader = reader_of(message.contract_from(FIRST), topic.pubsub)
    return JudgedBatch.of(messages, reader, None, FIRST)


def without_temp() -> dict[str, Any]:
    return {**AVRO, "fields": [field for field in AVRO["fields"] if field["name"] != "temp"]}


def check_revisions_in_mid_stream(topic: Topic) -> None:
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
    reader = reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub)
    oldest = histogram_of(messages, reader).oldest_event_us
    assert oldest is not None
    assert from_us(oldest) == min(BEAT["at"], *(message.publish_time.ToDatetime(UTC) for message in messages))


def test_revisions_change_in_mid_stream(topic: Topic, recorder: Recorder) -> None:
    check_revisions_in_mid_stream(topic)
    asked = [method for method in recorder.methods if method.endswith("/GetSchema")]
    assert len(asked) == 2 * 2  # landing and tracking, each once for each revision
    assert set(permissions_of_rpc(asked[0])) == {SCHEMA.permission}


def test_revisions_change_in_mid_stream_on_the_official_emulator(official: Topic) -> None:
    check_revisions_in_mid_stream(official)


def test_the_official_emulator_s_json_encoding_is_read(official: Topic) -> None:
    official.create(AVRO, encoding=types.Encoding.JSON)
    official.publish(avro_text(AVRO, BEAT))
    batch = landed(official, BY_AVRO, official.pulled(1))
    assert batch.heartbeats["temp"].to_pylist() == [PLAIN["temp"]]


def test_a_protobuf_schema_is_compiled_from_the_text_that_pubsub_keeps(topic: Topic) -> None:
    topic.create(PROTO, types.Schema.Type.PROTOCOL_BUFFER, types.Encoding.JSON)
    topic.publish(b'{"at": "2026-11-21T05:20:00Z", "device": "d1", "temp": 21.5}')
    batch = landed(topic, BY_AVRO.model_copy(update={"payload": Encoding.PROTOBUF}), topic.pulled(1))
    assert batch.heartbeats["temp"].to_pylist() == [21.5]


def test_what_names_no_schema_or_one_that_is_not_there_is_rejected_whole(topic: Topic) -> None:
    topic.create(AVRO)
    topic.publish(avro(AVRO, BEAT))
    (message,) = topic.pulled(1)
    changes = [
        {"googclient_schemarevisionid": "deadbeef"},
        {"googclient_schemaname": "_deleted-schema_"},
        {"googclient_schemaname": "projects/p/schemas/../../secret"},
        {"googclient_schemaname": ""},
        {"googclient_schemarevisionid": "_deleted-schema-revision_"},
    ]
    messages = []
    for number, change in enumerate(changes):
        copy = type(message)()
        copy.CopyFrom(message)
        copy.message_id = str(number)
        copy.attributes.update(change)
        messages.append(copy)
    rejected = landed(topic, BY_AVRO, messages).rejected
    assert rejected["payload"].to_pylist() == [message.data] * len(changes)
    assert set(rejected["reason"].to_pylist()) == {"UNREADABLE_PAYLOAD"}
    for detail, said in zip(
        rejected["detail"].to_pylist(),
        ("deadbeef' does not exist", "deleted", "not of the form projects/", "is absent", "revision of its schema was"),
        strict=True,
    ):
        assert said in detail


@pytest.fixture
def guarded() -> Iterator[tuple[Topic, Denying, Any]]:
    """A topic whose server refuses what the test says, and a message of it."""
    denying = Denying()
    with (
        served(PubSubModel(rng=random.Random(0)), interceptors=[denying]) as address,
        closing(Topic(unique_pubsub(address))) as topic,
    ):
        topic.create(AVRO)
        topic.publish(avro(AVRO, BEAT))
        (message,) = topic.pulled(1)
        yield topic, denying, message


def naming(message: Any, schema: str, message_id: str = "forged") -> Any:
    """A copy of a message that names another schema."""
    copy = type(message)()
    copy.CopyFrom(message)
    copy.message_id = message_id
    copy.attributes["googclient_schemaname"] = schema
    return copy


@pytest.mark.parametrize("may_look_at_topic", [True, False])
def test_a_message_that_names_a_schema_of_others_stops_only_itself(
    guarded: tuple[Topic, Denying, Any], may_look_at_topic: bool
) -> None:
    topic, denying, message = guarded
    denying.schemas = ("/secret",)
    denying.methods = set() if may_look_at_topic else {"GetTopic"}
    forged = [naming(message, "projects/others/schemas/secret", str(number)) for number in range(2)]
    batch = landed(topic, BY_AVRO, [*forged, message])
    assert batch.heartbeats["stream_id"].to_pylist() == ["d1"]
    assert batch.rejected["message_id"].to_pylist() == ["0", "1"]
    for detail in batch.rejected["detail"].to_pylist():
        assert "'projects/others/schemas/secret@" in detail
        assert "may not be read with these credentials" in detail
        assert "grant pubsub.schemas.get on it" in detail


def test_a_schema_of_the_own_project_that_is_not_the_topic_s_stops_only_its_message(
    guarded: tuple[Topic, Denying, Any],
) -> None:
    topic, denying, message = guarded
    denying.schemas = ("/secret",)
    forged = naming(message, f"projects/{topic.pubsub.project}/schemas/secret")
    batch = landed(topic, BY_AVRO, [forged, message])
    assert (len(batch.heartbeats), batch.rejected["message_id"].to_pylist()) == (1, ["forged"])


@pytest.mark.parametrize("may_look_at_topic", [True, False])
def test_a_pipeline_that_may_not_read_its_own_topic_s_schema_is_told_so(
    guarded: tuple[Topic, Denying, Any], may_look_at_topic: bool
) -> None:
    topic, denying, message = guarded
    denying.schemas = (f"/{NAME}",)
    denying.methods = set() if may_look_at_topic else {"GetTopic"}
    with pytest.raises(PermissionMissing, match=rf"read the schema .*/{NAME}@.*grant pubsub.schemas.get on it"):
        landed(topic, BY_AVRO, [message])


def test_a_topic_whose_schema_was_replaced_by_one_that_may_not_be_read_is_told_although_another_was_read(
    guarded: tuple[Topic, Denying, Any],
) -> None:
    topic, denying, message = guarded
    reader = reader_of(BY_AVRO.contract_from(FIRST), topic.pubsub)
    assert len(JudgedBatch.of([message], reader, None, FIRST).heartbeats) == 1
    topic.commit(without_temp())
    topic.publish(avro(without_temp(), BEAT))
    denying.schemas = (f"/{NAME}",)
    with pytest.raises(PermissionMissing):
        JudgedBatch.of(topic.pulled(1), reader, None, FIRST)


def test_a_service_that_does_not_answer_is_an_error_and_no_rejection(topic: Topic) -> None:
    topic.create(AVRO)
    topic.publish(avro(AVRO, BEAT))
    messages = topic.pulled(1)
    gone = topic.pubsub.model_copy(update={"emulator_host": "127.0.0.1:1", "call_timeout": timedelta(seconds=1)})
    reader = reader_of(BY_AVRO.contract_from(FIRST), gone)
    with pytest.raises(PubSubUnreachable, match=r"read the schema projects/.*/schemas/beats-schema@"):
        JudgedBatch.of(messages, reader, None, FIRST)

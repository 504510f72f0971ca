"""The schemas that Pub/Sub keeps: each message of a topic with a schema names the revision that it was written with."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol

from google.api_core import exceptions as api
from google.pubsub_v1 import PublisherClient, SchemaServiceClient, types

from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract
from tidemark.pipeline.contract.payloads.definitions import (
    DELETED_SCHEMA,
    SCHEMA_NAME,
    Definition,
    revision_of,
)
from tidemark.pipeline.contract.payloads.formats import Encoding
from tidemark.pipeline.contract.payloads.rejections import Unreadable, quoted
from tidemark.pipeline.errors import PermissionMissing, SubscriptionMissing
from tidemark.pipeline.pubsub.connection import client_of, publisher_client, reported, retrying
from tidemark.pipeline.settings_sections import PubSubSettings, Server

NAME = re.compile(r"projects/[A-Za-z0-9][A-Za-z0-9:.-]{0,99}/schemas/[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")

ENCODINGS: Mapping[Any, Encoding] = {
    types.Schema.Type.AVRO: Encoding.AVRO,
    types.Schema.Type.PROTOCOL_BUFFER: Encoding.PROTOBUF,
}

GET = "pubsub.schemas.get"
GET_TOPIC = "pubsub.topics.get"


class PubSubSchemas:
    """Looks schemas up in Pub/Sub, for the messages of a topic in a project; the topic's name may be unknown. Each
    client is made when it is first needed."""

    def __init__(self, server: Server, call_timeout: timedelta, project: str, topic_path: str | None = None) -> None:
        self._server = server
        self._bounds: dict[str, Any] = {"retry": retrying(call_timeout), "timeout": call_timeout.total_seconds()}
        self._project, self._topic_path = project, topic_path
        self._client: SchemaServiceClient | None = None
        self._topics: PublisherClient | None = None
        self._has_read = False

    def name(self, attributes: Mapping[str, str]) -> str:
        """The schema's full name with its revision. Raises Unreadable."""
        schema = attributes.get(SCHEMA_NAME)
        if not schema:
            raise Unreadable(f"the attribute {SCHEMA_NAME}, which names the schema, is absent: has its topic a schema?")
        if schema.rpartition("/")[2] == DELETED_SCHEMA:
            raise Unreadable("its schema was deleted in Pub/Sub")
        if not NAME.fullmatch(schema):
            raise Unreadable(f"{SCHEMA_NAME} = {quoted(schema)} is not of the form projects/PROJECT/schemas/NAME")
        return f"{schema}@{revision_of(attributes)}"

    def find(self, name: str) -> Definition | None:
        """The revision of that name, or None if there is none.

        Raises PermissionMissing if the topic's own schema may not be read, Unreadable if another one may not (a message
        may name any), and PubSubUnreachable.
        """
        if self._client is None:
            self._client = client_of(SchemaServiceClient, *self._server)
        try:
            with reported("read the schema", name, f"{GET} on it"):
                try:
                    found = self._client.get_schema(
                        request={"name": name, "view": types.SchemaView.FULL}, **self._bounds
                    )
                except (api.NotFound, api.InvalidArgument):
                    return None
        except PermissionMissing as error:
            is_of_schema = isinstance(error.__cause__, api.PermissionDenied)  # otherwise there are no credentials
            if not is_of_schema or self._is_own(name.partition("@")[0]):
                raise
            raise Unreadable(
                f"its schema {quoted(name)} may not be read with these credentials, and is not known as the topic's "
                f"own: grant {GET} on it, and requeue"
            ) from error
        self._has_read = True
        encoding = ENCODINGS.get(found.type_)
        return None if encoding is None else Definition(name, encoding, found.definition.encode())

    def _is_own(self, schema: str) -> bool:
        """Whether a schema that may not be read is the topic's, so that no message can be read by it until that is
        mended; otherwise one message alone is to blame.

        The topic says it, where these credentials may look at it. Where they may not, the settings do: the roles grant
        reading all schemas of the pipeline's project, so one of that project is the pipeline's concern, unless another
        has been read, which shows that the grant is narrower.
        """
        of_topic = self._of_topic()
        if of_topic is not None:
            return schema == of_topic
        return not self._has_read and schema.split("/")[1] == self._project

    def _of_topic(self) -> str | None:
        """The name of the topic's schema now, empty if it has none; None if that cannot be known."""
        if self._topic_path is None:
            return None
        if self._topics is None:
            self._topics = publisher_client(*self._server)
        try:
            with reported("look up", self._topic_path, f"{GET_TOPIC} on it"):
                return str(self._topics.get_topic(topic=self._topic_path, **self._bounds).schema_settings.schema)
        except (PermissionMissing, SubscriptionMissing):
            return None


class Asked(Protocol):
    """Settings that say where Pub/Sub is asked, and in which project."""

    @property
    def server(self) -> Server: ...

    @property
    def call_timeout(self) -> timedelta: ...

    @property
    def project(self) -> str: ...


def reader_of(contract: MessageContract, asked: Asked) -> HeartbeatReader:
    """The reader of a contract. It asks Pub/Sub for schemas where the contract needs them, and names no file."""
    topic_path = asked.topic_path if isinstance(asked, PubSubSettings) else None
    return HeartbeatReader(contract, PubSubSchemas(asked.server, asked.call_timeout, asked.project, topic_path))

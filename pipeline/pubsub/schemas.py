"""The schemas that Pub/Sub keeps: each message of a topic with a schema names the revision that it was written with."""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import SchemaServiceClient, types

from tidemark.pipeline.errors import PermissionMissing
from tidemark.pipeline.heartbeat import HeartbeatReader, MessageContract
from tidemark.pipeline.payloads.definitions import (
    DELETED_SCHEMA,
    SCHEMA_NAME,
    Definition,
    revision_of,
)
from tidemark.pipeline.payloads.formats import Encoding
from tidemark.pipeline.payloads.rejections import Unreadable, quoted
from tidemark.pipeline.pubsub.connection import client_of, reported, retrying
from tidemark.pipeline.settings_sections import PullSettings, Server

NAME = re.compile(r"projects/[A-Za-z0-9][A-Za-z0-9:.-]{0,99}/schemas/[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}")

ENCODINGS: Mapping[Any, Encoding] = {
    types.Schema.Type.AVRO: Encoding.AVRO,
    types.Schema.Type.PROTOCOL_BUFFER: Encoding.PROTOBUF,
}

GET = "pubsub.schemas.get"


class PubSubSchemas:
    """Looks schemas up in Pub/Sub. The client is made when the first one is asked for."""

    def __init__(self, server: Server, call_timeout: timedelta) -> None:
        self._server = server
        self._bounds = {"retry": retrying(call_timeout), "timeout": call_timeout.total_seconds()}
        self._client: SchemaServiceClient | None = None
        self._has_read = False

    def name(self, attributes: Mapping[str, str]) -> str:
        """The schema's full name with its revision. Raises Unreadable."""
        schema = attributes.get(SCHEMA_NAME)
        if not schema:
            raise Unreadable(f"the attribute {SCHEMA_NAME}, which names the schema, is absent: has its topic a schema?")
        if schema.rpartition("/")[2] == DELETED_SCHEMA:
            raise Unreadable("its schema was deleted in Pub/Sub")
        if not NAME.fullmatch(schema):
            raise Unreadable(f"{SCHEMA_NAME} = {quoted(schema)} is no schema of Pub/Sub's")
        return f"{schema}@{revision_of(attributes)}"

    def find(self, name: str) -> Definition | None:
        """The revision of that name. A message may name any schema, so one that may not be read counts as absent once
        another one has been read. Raises PubSubUnreachable, PermissionMissing."""
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
        except PermissionMissing:
            if self._has_read:
                return None
            raise
        self._has_read = True
        encoding = ENCODINGS.get(found.type_)
        return None if encoding is None else Definition(name, encoding, found.definition.encode())


def reader_of(contract: MessageContract, pull: PullSettings) -> HeartbeatReader:
    """The reader of a contract. It asks Pub/Sub for schemas where the contract needs them, and names no file."""
    return HeartbeatReader(contract, PubSubSchemas(pull.server, pull.call_timeout))

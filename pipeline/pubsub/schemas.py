"""Looks up schemas that are stored in Pub/Sub. If a topic has a schema, each message names the schema and the revision
with which it was encoded."""

from collections.abc import Mapping
from typing import Any, Protocol

from cachetools import LRUCache
from google.api_core import exceptions as api
from google.pubsub_v1 import SchemaServiceClient, types

from tidemark.pipeline.contract.heartbeat import HeartbeatReader, MessageContract
from tidemark.pipeline.contract.payloads.parsing import quoted
from tidemark.pipeline.contract.payloads.rejections import Unknown, Unreadable
from tidemark.pipeline.contract.payloads.schemas import Definition, Encoding, revision_of, schema_of
from tidemark.pipeline.errors import PubSubError
from tidemark.pipeline.pubsub.connection import ONCE_MORE, ONE_TRY, TICKS_GO_ON, bounded, client_of, reported
from tidemark.pipeline.settings_sections import Server, ServerSettings

ENCODINGS: Mapping[Any, Encoding] = {
    types.Schema.Type.AVRO: Encoding.AVRO,
    types.Schema.Type.PROTOCOL_BUFFER: Encoding.PROTOBUF,
}

LIST = "pubsub.schemas.listRevisions"

AGAIN_US, AFTER_FAILURE_US = 1_000_000, 30_000_000
"""Minimum times in microseconds before a schema's revisions are listed again: AGAIN_US after a success,
AFTER_FAILURE_US after a failure. If the clock was set back, they are listed again immediately."""

MOST_SCHEMAS = 20
"""Maximum number of schemas that are looked up per batch, and that are cached. Usually there is only one: several are
looked up only if the settings name several, or before the first schema is accepted."""


class Accepted(Protocol):
    """The schemas with which the pipeline reads messages. Schemas are added, never removed."""

    def names(self) -> frozenset[str]:
        """Return the full names of the accepted schemas. If there are none, the first schema found will be accepted."""

    def accept(self, name: str) -> None:
        """Accept this schema, unless another process has already accepted a schema."""


class PubSubSchemas:
    """Looks up schemas in Pub/Sub: only the `accepted` ones, or any schema if `accepted` is None. One request lists all
    revisions of a schema, so it also shows that a revision does not exist. The client is created on first use. With
    `once`, for a command, requests are not retried."""

    def __init__(self, server: Server, accepted: Accepted | None = None, *, once: bool = False) -> None:
        self._server = server
        self._bounds, self._then = (ONE_TRY, ONCE_MORE) if once else (bounded(), TICKS_GO_ON)
        self._accepted = accepted
        self._client: SchemaServiceClient | None = None
        self._listed: LRUCache[str, tuple[int, Mapping[str, Definition | None]]] = LRUCache(MOST_SCHEMAS)
        self._failed: LRUCache[str, tuple[int, str]] = LRUCache(MOST_SCHEMAS)
        self._asked_at_us = self._asked = 0

    def name(self, attributes: Mapping[str, str]) -> str:
        """Return the full name and the revision of a message's schema, joined by `@`, from the message's attributes.
        Raises Unreadable if the attributes do not name an accepted schema."""
        schema = schema_of(attributes)
        self._refuse_others(schema)
        return f"{schema}@{revision_of(attributes)}"

    def _refuse_others(self, schema: str) -> None:
        accepted = self._accepted.names() if self._accepted is not None else ()
        if accepted and schema not in accepted:
            raise Unreadable(
                f"its schema {quoted(schema)} is not accepted: the pipeline reads {', '.join(sorted(accepted))}. If "
                "the topic has a new schema, name both schemas in message.schema, and requeue"
            )

    def find(self, name: str, at_us: int) -> tuple[Definition | None, int]:
        """Return the definition of a schema's revision, and the time in microseconds at which Pub/Sub was asked. The
        definition is None if the revision does not exist or has an unknown type. If no schema is accepted yet, accepts
        this one if it exists. Raises Unknown if Pub/Sub gave no list or the batch has more than MOST_SCHEMAS schemas to
        look up. Raises Unreadable if another process has accepted a different schema."""
        schema, _, revision = name.partition("@")
        asked_us, found = self._listed.get(schema, (0, {}))
        if revision not in found and not 0 <= at_us - asked_us < AGAIN_US:
            asked_us, found = self._listed[schema] = at_us, self._revisions(schema, at_us)
        if found and self._accepted is not None and not self._accepted.names():
            self._accepted.accept(schema)
            self._refuse_others(schema)
        return found.get(revision), asked_us

    def _revisions(self, schema: str, at_us: int) -> Mapping[str, Definition | None]:
        failed_us, why = self._failed.get(schema, (0, ""))
        if 0 <= at_us - failed_us < AFTER_FAILURE_US:
            raise Unknown(why)
        self._asked_at_us, self._asked = at_us, self._asked + 1 if self._asked_at_us == at_us else 1
        if self._asked > MOST_SCHEMAS:
            raise Unknown(f"its schema {quoted(schema)} waits for a later batch: the limit is {MOST_SCHEMAS} per batch")
        if self._client is None:
            self._client = client_of(SchemaServiceClient, *self._server)
        request = {"name": schema, "view": types.SchemaView.FULL}
        try:
            with reported("list the revisions of the schema", schema, f"{LIST} on it", then=self._then):
                try:
                    listed = list(self._client.list_schema_revisions(request=request, **self._bounds))
                except (api.NotFound, api.InvalidArgument):
                    return {}
        except PubSubError as error:
            self._failed[schema] = at_us, str(error)
            raise Unknown(str(error)) from error
        return {one.revision_id: _definition(f"{schema}@{one.revision_id}", one) for one in listed}


def _definition(name: str, schema: Any) -> Definition | None:
    encoding = ENCODINGS.get(schema.type_)
    return None if encoding is None else Definition(name, encoding, schema.definition.encode())


def reader_of(
    contract: MessageContract, asked: ServerSettings, accepted: Accepted | None = None, *, once: bool = False
) -> HeartbeatReader:
    """Create the reader of a message contract. If the contract needs schemas and names no schema file, the reader looks
    up the `accepted` schemas in Pub/Sub, with the connection settings in `asked`. `once` is that of PubSubSchemas."""
    return HeartbeatReader(contract, PubSubSchemas(asked.server, accepted, once=once))

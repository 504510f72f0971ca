"""The topic's schema in Pub/Sub, its type and its encoding, against `message.payload` and `message.schema`."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from google.api_core import exceptions as api
from google.pubsub_v1 import SchemaServiceClient, types

from tidemark.pipeline.contract.payloads.definitions import DELETED_SCHEMA
from tidemark.pipeline.contract.payloads.formats import Encoding, PayloadFormat
from tidemark.pipeline.doctor.finding import Said, Setup, broken, ok, warning
from tidemark.pipeline.errors import PermissionMissing, PubSubUnreachable, SubscriptionMissing
from tidemark.pipeline.identity import SCHEMA, permissions_of
from tidemark.pipeline.pubsub.connection import client_of, reported
from tidemark.pipeline.pubsub.drift import LOOKS_WITHIN
from tidemark.pipeline.pubsub.requirements import lacks_schema
from tidemark.pipeline.pubsub.schemas import ENCODINGS, LIST

ALL_REJECTED = "all of them would go to quarantine (UNREADABLE_PAYLOAD)"


def look_at_schema(setup: Setup, topic: Any) -> Iterator[Said]:
    """Whether messages by the topic's schema can be read. Nothing is said of one that is as it should be."""
    written, schema = setup.settings.contract.payload, topic.schema_settings
    if schema.schema == DELETED_SCHEMA:
        yield warning(
            f"the schema of {topic.name} was deleted, so nobody can publish to it: take it off with `gcloud pubsub "
            f"topics update {_short(topic.name)} --clear-schema-settings`"
        )
    elif not schema.schema:
        if written.asks_for_schemas:
            yield broken(lacks_schema(topic.name, setup.settings.contract))
    elif written.encoding is Encoding.JSON and schema.encoding == types.Encoding.BINARY:
        yield broken(
            f"the schema {schema.schema} of {topic.name} has binary messages, and message.payload = 'json' reads JSON: "
            f"{ALL_REJECTED}. Set message.payload to the schema's type, 'avro' or 'protobuf'"
        )
    elif written.has_schema:
        yield from _type(setup, schema.schema, topic.name, written)


def _type(setup: Setup, name: str, topic: str, written: PayloadFormat) -> Iterator[Said]:
    """Whether the schema's type is that of the payload."""
    pubsub = setup.settings.pubsub
    client = client_of(SchemaServiceClient, *pubsub.server)
    request = {"name": name, "view": types.SchemaView.BASIC}
    try:
        with closing(client.transport), reported("list the revisions of the schema", name, f"{LIST} on it"):
            listed = client.list_schema_revisions(request=request, retry=None, timeout=LOOKS_WITHIN.total_seconds())
            kind = next(iter(listed)).type_
    except PermissionMissing as error:
        parts = permissions_of(setup.components, pubsub.reading, asks_for_schemas=written.asks_for_schemas)
        if SCHEMA.permission in parts:
            yield broken(f"{error}: messages of {topic} are read by this schema")
        else:
            yield ok(
                f"the schema {name} of {topic} cannot be looked at without {LIST} on it, which nothing here needs; "
                f"whether it is {written.encoding} is not known"
            )
        return
    except PubSubUnreachable:  # the check of the subscriptions says it
        return
    except SubscriptionMissing as error:
        if not isinstance(error.__cause__, api.NotFound):
            raise
        yield warning(f"the schema {name} of {topic} does not exist (any more): give the topic another one")
        return
    found = ENCODINGS.get(kind)
    if found is not written.encoding:
        is_read = "" if found is None else f", or set message.payload = {found.value!r}"
        yield broken(
            f"the schema {name} of {topic} is {'of an unknown type' if found is None else found.value}, and "
            f"message.payload = {written.encoding.value!r}: {ALL_REJECTED}. Name another topic{is_read}"
        )


def _short(name: str) -> str:
    _, project, _, short = name.split("/")
    return f"{short} --project={project}"

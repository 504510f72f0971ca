"""Checks that the topic, its schema and the two subscriptions meet the watermark's requirements."""

import re
from collections.abc import Iterator
from typing import Any

from google.pubsub_v1 import SchemaServiceClient, types

from tidemark.local.services.stack import emulator_is_absent
from tidemark.pipeline.contract.payloads.schemas import DELETED_SCHEMA, Encoding, PayloadFormat
from tidemark.pipeline.doctor.finding import Setup, Statement, broken, ok, warning
from tidemark.pipeline.doctor.identity import SCHEMA, permissions_of
from tidemark.pipeline.errors import PermissionMissing, SubscriptionMissing
from tidemark.pipeline.pubsub import connection
from tidemark.pipeline.pubsub.requirements import ignored, lacks_schema, look_at_subscriptions, named
from tidemark.pipeline.pubsub.schemas import ENCODINGS, LIST


def check_subscriptions(setup: Setup) -> Iterator[Statement]:
    """Check that Pub/Sub answers, and that both subscriptions meet the requirements."""
    pubsub = setup.settings.pubsub
    if emulator_is_absent(setup.settings):
        unchecked = "topic and subscriptions were not checked: `tidemark up` starts an emulator there"
        yield warning(f"nothing answers at {pubsub.emulator_host}, so {unchecked}")
        return
    connection.refuse_foreign_server(pubsub.emulator_host)
    try:
        with connection.subscriber_client(*pubsub.server) as client:
            drift = look_at_subscriptions(client, pubsub, setup.settings.contract)
    except PermissionMissing as error:
        if pubsub.attach:
            raise
        yield warning(f"{error}; without this permission, changes to a subscription go unnoticed")
        return
    yield from (broken(sentence) for sentence in drift.breaks)
    yield from (warning(sentence) for sentence in (*drift.dangers, *drift.differences))
    yield from (ok(sentence) for sentence in drift.promises)
    yield from map(warning, ignored(pubsub))
    if not drift.breaks:
        both = f", both with the filter {pubsub.filter!r}" if pubsub.filter else ""
        yield ok(f"{pubsub.tracking_path} and {pubsub.base_path} meet the watermark's requirements{both}")


def check_topic(setup: Setup) -> Iterator[Statement]:
    """Check that the topic exists, and that its schema and regions fit the settings. Raises PubSubUnreachable."""
    pubsub = setup.settings.pubsub
    if emulator_is_absent(setup.settings):
        return
    try:
        with connection.publisher_client(*pubsub.server) as client:
            topic = connection.Resources(publisher=client, look=True).find("topic", pubsub.topic_path)
    except PermissionMissing:
        requires = "pubsub.topics.get on it, which only `tidemark provision` needs"
        yield ok(f"the topic {pubsub.topic_path} and its schema were not checked: this requires {requires}")
        return
    if topic is None:
        remedy = "run `tidemark provision`, or correct pubsub.topic and pubsub.project"
        yield broken(f"the topic {pubsub.topic_path} does not exist: {remedy}")
        return
    yield from _schema(setup, topic)
    yield from _regions(topic, pubsub.endpoint)
    yield ok(f"the topic {pubsub.topic_path} exists")


def _regions(topic: Any, endpoint: str | None) -> Iterator[Statement]:
    policy = topic.message_storage_policy
    regions = list(policy.allowed_persistence_regions)
    is_in = any(re.search(rf"\b{region}(-pubsub)?\.", endpoint or "") for region in regions)
    if policy.enforce_in_transit and regions and not is_in:
        yield broken(
            f"{topic.name} accepts requests only in {', '.join(regions)}, but pubsub.endpoint is "
            f"{endpoint or 'empty'}: set it to {regions[0]}-pubsub.googleapis.com:443"
        )


ALL_REJECTED = "all messages would go to quarantine (UNREADABLE_PAYLOAD)"


def _schema(setup: Setup, topic: Any) -> Iterator[Statement]:
    written, schema = setup.settings.contract.payload, topic.schema_settings
    if schema.schema == DELETED_SCHEMA:
        remove = f"gcloud pubsub topics update {named(topic.name)} --clear-schema-settings"
        yield warning(f"the schema of {topic.name} was deleted, so publishing fails: remove it with `{remove}`")
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


def _type(setup: Setup, name: str, topic: str, written: PayloadFormat) -> Iterator[Statement]:
    pubsub = setup.settings.pubsub
    client = connection.client_of(SchemaServiceClient, *pubsub.server)
    request = {"name": name, "view": types.SchemaView.BASIC}
    try:
        with client, connection.reported("list the revisions of the schema", name, f"{LIST} on it"):
            kind = next(iter(client.list_schema_revisions(request=request, **connection.ONE_TRY))).type_
    except PermissionMissing as error:
        parts = permissions_of(setup.components, pubsub.reading, asks_for_schemas=written.asks_for_schemas)
        if SCHEMA.permission in parts:
            yield broken(f"{error}: messages of {topic} are read with this schema")
        else:
            requires = f"{LIST} on it, which the checked parts do not need"
            yield ok(f"the type of the schema {name} of {topic} was not checked: this requires {requires}")
        return
    except SubscriptionMissing:
        yield warning(f"the schema {name} of {topic} does not exist: give the topic another schema")
        return
    if (found := ENCODINGS.get(kind)) is not written.encoding:
        is_read = "" if found is None else f", or set message.payload = {found.value!r}"
        yield broken(
            f"the schema {name} of {topic} is {'of an unknown type' if found is None else found.value}, and "
            f"message.payload = {written.encoding.value!r}: {ALL_REJECTED}. Name another topic{is_read}"
        )

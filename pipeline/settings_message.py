"""The section `[message]`: how a message is encoded, and where its values are."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import orjson
from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, ValidationInfo

from tidemark.pipeline.contract.heartbeat import (
    FIELD_NAME,
    RESERVED_FIELD_NAMES,
    ComparedField,
    EventTimeUnit,
    FieldKind,
    MessageContract,
    compared_columns,
    field_place,
)
from tidemark.pipeline.contract.payloads.schemas import NAME, Compression, Encoding, Envelope, PayloadFormat
from tidemark.pipeline.contract.places import Place, PlaceKind
from tidemark.pipeline.settings_sections import Effect, EmptyIsNone, NotNegative, OptionalBound, Section

IN_MESSAGE = (PlaceKind.ATTRIBUTE, PlaceKind.PAYLOAD, PlaceKind.EACH)
"""Kinds of path for values that the publisher sets. The publish time is left out, since Pub/Sub sets it."""

MOST_PARTS = 10
"""Maximum number of parts in a stream's id."""


def _place(*among: PlaceKind) -> AfterValidator:
    """Return a validator that accepts a path only if it names one of these kinds of place."""

    def checked(text: str) -> str:
        Place.of(text, among)
        return text

    return AfterValidator(checked)


def _listed(places: str | list[str]) -> list[str]:
    return [places] if isinstance(places, str) else places


def _taken_from(kind: PlaceKind, data: Mapping[str, Any]) -> list[str]:
    """Return the names of the settings that take a value from a place of this kind."""
    paths = {name: _listed(data.get(name, "")) for name in ("event_time", "stream_id", "publisher_id")}
    for name, compared in data.get("fields", {}).items():
        place = field_place(compared.path or name, PlaceKind.PAYLOAD)
        paths[f"fields.{name}"] = [f"{place.kind}:{place.name}"]
    return [name for name, places in paths.items() if any(place.startswith(f"{kind}:") for place in places)]


def _stream_parts(places: str | list[str]) -> str | list[str]:
    if not 1 <= len(_listed(places)) <= MOST_PARTS:
        raise ValueError(f"write one path, or a list of at most {MOST_PARTS} paths")
    for place in _listed(places):
        Place.of(place, IN_MESSAGE)
    return places


def _compared(value: object) -> object:
    if isinstance(value, ComparedField):
        return value
    path, kind = None, value
    if isinstance(value, dict):
        path, kind = value.get("path"), value.get("kind")
        if value.keys() != {"path", "kind"} or not isinstance(path, str | None):
            raise ValueError('write a kind, such as "number", or { path = "metrics.temp", kind = "number" }')
        if path is not None:
            place = field_place(path, PlaceKind.PAYLOAD)
            if not place.name:
                raise ValueError("write PATH, attribute:NAME, payload:PATH or each:PATH, such as metrics.temp")
            Place.of(f"{place.kind}:{place.name}", IN_MESSAGE)
    if not isinstance(kind, str) or kind not in list(FieldKind):
        raise ValueError("a field's kind must be 'number', 'text', 'boolean' or 'json'")
    return ComparedField(FieldKind(kind), path)


def _zone(name: str) -> str:
    try:
        return ZoneInfo(name).key
    except (LookupError, OSError, ValueError) as error:
        raise ValueError("write a time zone's IANA name, such as Europe/Berlin") from error


def _read_list(written: object) -> object:
    """Parse a list that is written as JSON text, as in a Spark option. Return other values unchanged."""
    return orjson.loads(written) if isinstance(written, str) and written.startswith("[") else written


def _usable_as_columns(value: dict[str, ComparedField]) -> dict[str, ComparedField]:
    for name in value:
        if not FIELD_NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a column: use letters, digits and _, starting with a letter")
        if name.lower() in RESERVED_FIELD_NAMES:  # Spark and others ignore the case of names
            raise ValueError(f"{name!r} cannot be a field's name: the tables already have a column of this name")
    columns = [one.lower() for name, compared in value.items() for one in compared_columns(name, compared.kind)]
    twice = sorted({column for column in columns if columns.count(column) > 1 or column in RESERVED_FIELD_NAMES})
    if twice:
        raise ValueError(f"two columns would be named {twice[0]!r}; give one of the fields another name")
    return value


def _encoding_for_paths(value: Encoding, info: ValidationInfo) -> Encoding:
    taken = _taken_from(PlaceKind.PAYLOAD, info.data)
    if not PayloadFormat(value).is_read and taken:
        raise ValueError(f"{taken[0]} takes values from the payload, so `payload` must be json, avro or protobuf")
    return value


def _schema_for_encoding(value: str | list[str], info: ValidationInfo) -> str | list[str]:
    if isinstance(value, list) and not all(map(NAME.fullmatch, value)):
        raise ValueError("write a list of Pub/Sub schemas, each as projects/PROJECT/schemas/NAME")
    if value and "payload" in info.data and not PayloadFormat(info.data["payload"]).has_schema:
        raise ValueError("only avro and protobuf have a schema; leave `schema` empty or change `payload`")
    return value


def _array_for_paths(value: str | None, info: ValidationInfo) -> str | None:
    if value is not None and not PayloadFormat(info.data.get("payload", Encoding.JSON)).is_read:
        raise ValueError("`each` names an array in the payload, so `payload` must be json, avro or protobuf")
    taken = _taken_from(PlaceKind.EACH, info.data)
    if taken and value is None:
        raise ValueError(
            f"{taken[0]} is in the elements of an array; set message.each to the array's path, such as "
            "payload:readings[]"
        )
    return value


ArrayPlace = Annotated[str, _place(PlaceKind.PAYLOAD)]
OptionalArray = Annotated[ArrayPlace | None, EmptyIsNone, AfterValidator(_array_for_paths)]
StreamParts = Annotated[str | list[str], AfterValidator(_stream_parts), BeforeValidator(_read_list)]
SchemaPlace = Annotated[str | list[str], AfterValidator(_schema_for_encoding), BeforeValidator(_read_list)]
ComparedFields = Annotated[
    dict[str, Annotated[ComparedField, BeforeValidator(_compared)]], AfterValidator(_usable_as_columns)
]


class MessageSettings(Section):
    """The message contract: the paths of event time and stream id, the compared fields, and the payload's encoding."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)
    effect = Effect.REQUEUE

    event_time: Annotated[str, _place(*PlaceKind)] = "attribute:event_time"
    """Path of the event time: `attribute:NAME`, `payload:PATH`, `each:PATH` or `publish_time`. With `publish_time`
    nothing is ever late, and a message that was published twice counts as two heartbeats."""
    event_time_unit: EventTimeUnit = EventTimeUnit.AUTO
    """Format of the event time. `auto`: whole milliseconds, or RFC 3339."""
    timezone: Annotated[Annotated[str, AfterValidator(_zone)] | None, EmptyIsNone] = None
    """IANA name of the time zone for times that are written without one, such as `Europe/Berlin`. Empty: such times are
    rejected."""
    stream_id: StreamParts = "attribute:stream_id"
    """Path of the stream's id, or a list of at most 10 paths whose values are joined by `/`. If several of the values
    contain `/`, different streams may get the same id."""
    publisher_id: Annotated[str, _place(*IN_MESSAGE), Effect.NEXT] = "attribute:heartbeat_id"
    """Path of the id that the publisher gives a message. Copies of a message share it. Without an id, a message that
    was published twice counts as two heartbeats. So does a message that lands both before and after a change of this
    path, such as after a seek."""
    max_future_skew: NotNegative = timedelta(minutes=5)
    """A message whose event time is more than this after its publish time is rejected. Smaller: fewer heartbeats of
    fast clocks get into wrong windows, and more messages are rejected."""
    max_age: OptionalBound = None
    """A message whose event time is more than this before its publish time is rejected, and does not hold the
    watermark. Set it longer than the longest time for which a source may buffer messages, such as `7d`. Empty: no
    message is rejected for its age. Leave it empty to publish historical messages."""
    fields: Annotated[ComparedFields, Effect.NEXT] = Field(default_factory=dict)
    """Fields to compare, keyed by name: the section `[message.fields]`."""
    payload: Annotated[Encoding, AfterValidator(_encoding_for_paths)] = Encoding.JSON
    """Encoding of the payload (docs/how-to/encodings.md). With `none` and `bytes`, the payload is never decoded and may
    be empty."""
    schema_: SchemaPlace = Field("", alias="schema")  # pydantic has a method of that name
    """Schema of `avro` and `protobuf` (docs/how-to/encodings.md): a file, a folder with a file for each revision,
    `projects/PROJECT/schemas/NAME`, or a list of these names. Empty: the first schema in Pub/Sub that a message
    names."""
    compression: Compression = Compression.AUTO
    """Which payloads are decompressed. `auto`: payloads that are marked or recognized as gzip."""
    envelope: Envelope = Envelope.NONE
    """`cloudevents`: the path of an event's context attribute is `attribute:ce-NAME` (docs/how-to/encodings.md)."""
    each: OptionalArray = Field(None, validate_default=True)
    """Path of an array whose elements are heartbeats, as `payload:PATH`
    (docs/reference/settings.md#several-heartbeats-in-a-message). Empty: a message is one heartbeat."""

    @property
    def schema_names(self) -> list[str]:
        """The schemas in Pub/Sub that messages may name. If empty, only the first schema that a message names is
        accepted."""
        written = [self.schema_] if isinstance(self.schema_, str) else self.schema_
        return [name for name in written if NAME.fullmatch(name)]

    @property
    def schema_path(self) -> str:
        """The schema's file or folder; empty if there is no schema, or if it is in Pub/Sub."""
        return self.schema_ if isinstance(self.schema_, str) and not self.schema_names else ""

    @cached_property
    def schema_content(self) -> bytes:
        """The bytes that stand for the schema in a digest: the content of the schema's file, or the path of its folder.
        Empty if `schema_path` is empty or cannot be read. Read once, so that the digest and all decoders agree."""
        path = self.schema_path
        with suppress(OSError):
            return path.encode() if path and Path(path).is_dir() else Path(path).read_bytes()
        return b""

    @property
    def kinds(self) -> dict[str, FieldKind]:
        return {name: compared.kind for name, compared in self.fields.items()}

    def contract_from(self, first_event_time: datetime) -> MessageContract:
        """Return the contract for judging messages. The contract rejects event times before `first_event_time`."""
        return MessageContract(
            event_time=Place.of(self.event_time),
            stream_id=tuple(map(Place.of, _listed(self.stream_id))),
            publisher_id=Place.of(self.publisher_id),
            first_event_time=first_event_time,
            max_future_skew=self.max_future_skew,
            fields=self.kinds,
            paths={name: compared.path for name, compared in self.fields.items() if compared.path is not None},
            event_time_unit=self.event_time_unit,
            timezone=None if self.timezone is None else ZoneInfo(self.timezone),
            payload=PayloadFormat(self.payload, self.compression, self.envelope, self.schema_path, self.schema_content),
            max_age=self.max_age,
            each=None if self.each is None else Place.of(self.each),
        )

"""The names of the message shapes."""

from enum import StrEnum


class ShapeName(StrEnum):
    """How messages are written. `docs/shapes.md` says it of each."""

    JSON = "json"
    NESTED = "nested"
    SECONDS = "seconds"
    ATTRIBUTES = "attributes"
    GZIP = "gzip"
    CLOUDEVENTS = "cloudevents"
    AVRO = "avro"
    PROTOBUF = "protobuf"

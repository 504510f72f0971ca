"""The names of the message shapes."""

from enum import StrEnum


class ShapeName(StrEnum):
    """How messages are written. Each name has a module of this folder."""

    JSON = "json"
    NESTED = "nested"
    SECONDS = "seconds"
    ATTRIBUTES = "attributes"
    ARRAYS = "arrays"
    GZIP = "gzip"
    CLOUDEVENTS = "cloudevents"
    AVRO = "avro"
    PROTOBUF = "protobuf"

"""The formats of a topic's payloads."""

from dataclasses import dataclass
from enum import StrEnum

CONTAINER = b"Obj\x01"
"""The first bytes of an Avro object container file. A record of a message may begin so too, but hardly ever does."""


class Encoding(StrEnum):
    """The encoding of a payload's values. From NONE and BYTES nothing is read."""

    NONE = "none"
    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compression(StrEnum):
    """Which payloads are compressed. AUTO: those that say or show it."""

    NONE = "none"
    GZIP = "gzip"
    AUTO = "auto"


class Envelope(StrEnum):
    """The envelope around the values."""

    NONE = ""
    CLOUDEVENTS = "cloudevents"


@dataclass(frozen=True, slots=True)
class PayloadFormat:
    """The format of payloads. `schema` is a file or a folder, or empty: the topic's own schema in Pub/Sub."""

    encoding: Encoding = Encoding.JSON
    compression: Compression = Compression.AUTO
    envelope: Envelope = Envelope.NONE
    schema: str = ""

    @property
    def is_read(self) -> bool:
        """True if payloads are decoded at all."""
        return self.encoding not in (Encoding.NONE, Encoding.BYTES)

    @property
    def has_schema(self) -> bool:
        """True if payloads can be read by a schema alone."""
        return self.encoding in (Encoding.AVRO, Encoding.PROTOBUF)

    @property
    def asks_for_schemas(self) -> bool:
        """True if payloads are read by the schema that the topic has in Pub/Sub."""
        return self.has_schema and not self.schema

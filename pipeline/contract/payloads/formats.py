"""The formats of a topic's payloads."""

from dataclasses import dataclass
from enum import StrEnum

CONTAINER = b"Obj\x01"
"""The first bytes of an Avro object container file. A message's record may begin with them too, but hardly ever
does."""


class Encoding(StrEnum):
    """The encoding of a payload's values. NONE and BYTES are not decoded."""

    NONE = "none"
    BYTES = "bytes"
    JSON = "json"
    AVRO = "avro"
    PROTOBUF = "protobuf"


class Compression(StrEnum):
    """The compression of payloads. AUTO detects it from a message's attribute or a payload's first bytes."""

    NONE = "none"
    GZIP = "gzip"
    AUTO = "auto"


class Envelope(StrEnum):
    """The envelope around the values."""

    NONE = ""
    CLOUDEVENTS = "cloudevents"


@dataclass(frozen=True, slots=True)
class PayloadFormat:
    """The format of payloads. `schema` is a file or a folder; if empty, the topic's own schema in Pub/Sub is used."""

    encoding: Encoding = Encoding.JSON
    compression: Compression = Compression.AUTO
    envelope: Envelope = Envelope.NONE
    schema: str = ""

    @property
    def is_read(self) -> bool:
        """True if payloads are decoded."""
        return self.encoding not in (Encoding.NONE, Encoding.BYTES)

    @property
    def has_schema(self) -> bool:
        """True if payloads can be read only with a schema."""
        return self.encoding in (Encoding.AVRO, Encoding.PROTOBUF)

    @property
    def asks_for_schemas(self) -> bool:
        """True if payloads are read with the schema that the topic has in Pub/Sub."""
        return self.has_schema and not self.schema

"""Schemas and their revisions, and the attributes by which Pub/Sub says which one a message was written with."""

import random
from datetime import datetime
from typing import Any

from google.pubsub_v1 import types

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.emulator.refusals import AlreadyExists, Invalid, NotFound

ENCODINGS = {int(types.Encoding.JSON): "JSON", int(types.Encoding.BINARY): "BINARY"}


class Schemas:
    """Keeps schemas by name, each with its revisions in order. It does not look into a definition."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._revisions: dict[str, list[Any]] = {}

    def create(self, name: str, schema: Any, at: datetime) -> Any:
        """Keep a new schema's first revision. Raises AlreadyExists."""
        if name in self._revisions:
            raise AlreadyExists(f"schema {name} exists already")
        self._revisions[name] = []
        return self._add(name, schema, at)

    def commit(self, name: str, schema: Any, at: datetime) -> Any:
        """Add a revision. Raises NotFound, and Invalid for another type of schema."""
        if schema.type_ != self.of(name)[-1].type_:
            raise Invalid(f"a revision of {name} has the type of its schema")
        return self._add(name, schema, at)

    def of(self, name: str) -> list[Any]:
        """A schema's revisions. Raises NotFound."""
        if name not in self._revisions:
            raise NotFound(f"there is no schema {name}")
        return self._revisions[name]

    def get(self, name: str) -> Any:
        """The newest revision of `projects/…/schemas/ID`, or the one of `…/ID@REVISION`. Raises NotFound."""
        schema, _, revision = name.partition("@")
        for found in reversed(self.of(schema)):
            if revision in ("", found.revision_id):
                return found
        raise NotFound(f"there is no revision {name}")

    def attributes(self, settings: Any) -> dict[str, str]:
        """What Pub/Sub adds to each message of a topic with these schema settings. Raises NotFound."""
        if not settings.schema:
            return {}
        return {
            "googclient_schemaname": settings.schema,
            "googclient_schemaencoding": ENCODINGS.get(settings.encoding, "BINARY"),
            "googclient_schemarevisionid": self.get(settings.schema).revision_id,
        }

    def _add(self, name: str, schema: Any, at: datetime) -> Any:
        kept = type(schema)()
        kept.CopyFrom(schema)
        kept.name, kept.revision_id = name, f"{self._rng.getrandbits(32):08x}"
        kept.revision_create_time.FromMicroseconds(to_us(at))
        self._revisions[name].append(kept)
        return kept

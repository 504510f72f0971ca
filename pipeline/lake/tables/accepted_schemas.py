"""`schemas/accepted.json`: the schema that the pipeline accepted first, create-only. All of its processes use it."""

import json
from collections.abc import Iterable
from contextlib import suppress

from tidemark.pipeline.errors import CorruptObject, ObjectExists, ObjectMissing
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import marks, refuse_newer

NAME = "schemas/accepted.json"


class AcceptedSchemas:
    """Which schemas messages may name: those of the settings, and the first one that a message named and that was
    there. The note is looked for once; it is never replaced."""

    def __init__(self, objects: ObjectStore, of_settings: Iterable[str] = ()) -> None:
        self._objects = objects
        self._names = frozenset(of_settings)
        self._has_read = False

    def names(self) -> frozenset[str]:
        """Full names. Raises CorruptObject, NewerFormat, LakeError."""
        if not self._has_read:
            self._read()
        return self._names

    def accept(self, name: str) -> None:
        """Note the first schema, unless there is one already. Raises LakeError."""
        with suppress(ObjectExists):
            self._objects.create(NAME, json.dumps({"schema": name, **marks()}).encode() + b"\n")
        self._read()

    def _read(self) -> None:
        where = f"{self._objects.uri}/{NAME}"
        with suppress(ObjectMissing):
            content = self._objects.read(NAME)
            try:
                facts = json.loads(content)
                refuse_newer(where, facts)
                self._names |= {str(facts["schema"])}
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptObject(f"{where} is damaged ({error!r}); put back a copy, or delete it") from error
        self._has_read = True

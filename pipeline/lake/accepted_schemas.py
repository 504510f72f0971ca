"""`schemas/accepted.json`: the schema that the pipeline accepted first, create-only. All of its processes use it."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """Its full name."""

    schema: str


ACCEPTED = JsonKind("schemas/", "put back a copy, or delete it", key="accepted", holds=AcceptedSchema)


class AcceptedSchemas:
    """The schemas that messages may name: those of the settings, and the first existing one that a message named. The
    note is looked for once; it is never replaced."""

    def __init__(self, objects: ObjectStore, of_settings: Iterable[str] = ()) -> None:
        self._notes = Notes(objects, ACCEPTED)
        self._names = frozenset(of_settings)
        self._has_read = False

    def names(self) -> frozenset[str]:
        """Full names. Raises DamagedNote, NewerFormat, LakeError."""
        if not self._has_read:
            self._read()
        return self._names

    def accept(self, name: str) -> None:
        """Note the first schema, unless there is one already. Raises LakeError."""
        self._notes.ensure(ACCEPTED.key, AcceptedSchema(name))
        self._read()

    def _read(self) -> None:
        if (accepted := self._notes.find(ACCEPTED.key)) is not None:
            self._names |= {accepted.schema}
        self._has_read = True

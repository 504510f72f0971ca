"""`schemas/accepted.json`: the first schema that the pipeline accepted. Create-only; all its processes use it."""

from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class AcceptedSchema:
    """The full name of the accepted schema."""

    schema: str


ACCEPTED = JsonKind("schemas/", "restore a copy, or delete it", key="accepted", holds=AcceptedSchema)


class AcceptedSchemas:
    """The schemas that messages may name: those in the settings, and the first existing one that a message named. The
    note is read once and never replaced."""

    def __init__(self, objects: ObjectStore, of_settings: Iterable[str] = ()) -> None:
        self._notes = Notes(objects, ACCEPTED)
        self._names = frozenset(of_settings)
        self._has_read = False

    def names(self) -> frozenset[str]:
        """Return the full names. Raises DamagedNote, NewerFormat, LakeError."""
        if not self._has_read:
            self._read()
        return self._names

    def accept(self, name: str) -> None:
        """Note the first schema, unless one is noted already. Raises LakeError."""
        self._notes.ensure(ACCEPTED.key, AcceptedSchema(name))
        self._read()

    def _read(self) -> None:
        if (accepted := self._notes.find(ACCEPTED.key)) is not None:
            self._names |= {accepted.schema}
        self._has_read = True

"""The lake's own mark: in which formats it has been written, so that an older program refuses it before it writes.

Each format has an object, `format/<number>.json`, created by the first program that writes in it and never deleted. The
other marks stop an older program that runs on beside a newer one; this one stops it wherever it begins.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Lock

from tidemark.pipeline import version
from tidemark.pipeline.errors import DamagedNote
from tidemark.pipeline.lake.store.notes import JsonKind, NoContent, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import WRITTEN_IN, refuse_newer

FORMATS = JsonKind("format/", key=r"\d{6}", holds=NoContent)
"""Their keys are the formats."""


class Admission:
    """The formats of one lake, as a process knows them. It looks once: after that, neither call makes a request. Safe
    from several threads."""

    def __init__(self, open_objects: Callable[[], ObjectStore]) -> None:
        self._open_objects = open_objects
        self._lock = Lock()
        self._is_admitted = self._has_claimed = False
        self._formats: list[str] = []

    def admit(self) -> None:
        """Raise NewerFormat if a later version has written the lake, LakeError if it cannot be asked. One listing, at
        the first call."""
        with self._lock:
            if not self._is_admitted:
                self._admit(Notes(self._open_objects(), FORMATS))

    def claim(self) -> None:
        """Make sure that the lake has the mark of this version's format, before something is written in it. Raises
        NewerFormat, LakeError."""
        with self._lock:
            if self._has_claimed:
                return
            notes, own = Notes(self._open_objects(), FORMATS), f"{version.FORMAT:06d}"
            if not self._is_admitted:
                self._admit(notes)
            if own not in self._formats:
                notes.ensure(own, NoContent())
            self._has_claimed = True

    def _admit(self, notes: Notes[NoContent]) -> None:
        self._formats = notes.listed()
        newest = max(self._formats, default="")
        if newest and int(newest) > version.FORMAT:
            with suppress(DamagedNote):  # a damaged mark still tells its format, by its name
                notes.read(newest)
            refuse_newer(notes.place(newest), {WRITTEN_IN: str(int(newest))})
        self._is_admitted = True


class AdmittedObjects:
    """A lake's objects, for a program that the lake admits: every call raises NewerFormat where it does not."""

    def __init__(self, objects: ObjectStore, admission: Admission) -> None:
        self._objects = objects
        self._admission = admission
        self.uri = objects.uri

    def create(self, name: str, content: bytes) -> None:
        self._admission.claim()
        self._objects.create(name, content)

    def read(self, name: str) -> bytes:
        self._admission.admit()
        return self._objects.read(name)

    def read_generation(self, name: str) -> tuple[bytes, int]:
        self._admission.admit()
        return self._objects.read_generation(name)

    def replace(self, name: str, content: bytes, generation: int) -> int:
        self._admission.claim()
        return self._objects.replace(name, content, generation)

    def names(self, prefix: str) -> Iterator[str]:
        self._admission.admit()
        yield from self._objects.names(prefix)

    def delete(self, name: str) -> None:
        self._admission.admit()
        self._objects.delete(name)

"""Checks which versions of tidemark have written a lake, by the lake's format marks.

A program that writes in a new format first creates the object `format/<number>.json`, which is never deleted. When an
older program starts, it finds that object and refuses the lake. An older program that is already running stops when it
reads an object in the new format, because every object that tidemark reads back contains its format number.
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from threading import Lock

from tidemark.pipeline import version
from tidemark.pipeline.errors import DamagedNote
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.notes import JsonKind, NoContent, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import WRITTEN_IN, refuse_newer

FORMATS = JsonKind("format/", key=r"\d{6}", holds=NoContent)
"""Stores format marks. The key is the number of the format."""


@cache
def admission_to(settings: LakeSettings) -> "Admission":
    """Return the Admission that checks the formats of this lake. A process has one Admission per lake, so that the
    formats are read only once."""
    return Admission(lambda: open_objects(settings))


class Admission:
    """Checks the formats of one lake. The first call lists them, and later calls make no request. Thread-safe."""

    def __init__(self, open_objects: Callable[[], ObjectStore]) -> None:
        self._open_objects = open_objects
        self._lock = Lock()
        self._formats: list[str] | None = None
        self._has_claimed = False

    def claim(self) -> None:
        """Create the mark of the format in which this version writes, if the lake lacks it. Call this before a
        write. Raises NewerFormat, LakeError."""
        own = f"{version.FORMAT:06d}"
        if not self._has_claimed and own not in self.admit():
            Notes(self._open_objects(), FORMATS).ensure(own, NoContent())
        self._has_claimed = True

    def admit(self) -> list[str]:
        """Return the marks of the formats in which the lake was written. Raise NewerFormat if a later version of
        tidemark has written it. Raise LakeError if the lake is unreachable."""
        with self._lock:
            if self._formats is None:
                notes = Notes(self._open_objects(), FORMATS)
                formats = notes.listed()
                newest = max(formats, default="")
                if newest and int(newest) > version.FORMAT:
                    with suppress(DamagedNote):  # the name of a damaged mark still contains the format number
                        notes.read(newest)
                    refuse_newer(notes.place(newest), {WRITTEN_IN: str(int(newest))})
                self._formats = formats
            return self._formats


class AdmittedObjects:
    """An ObjectStore that checks the lake's formats before each call. Every method raises NewerFormat if a later
    version of tidemark has written the lake."""

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

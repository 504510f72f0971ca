"""Archives: old entries of the tracking log, about a thousand to an object, read under their numbers as before.

An archive is durable before its entries are deleted, and they are deleted from the oldest on. So an archive is right
about every number that it covers, whatever object may stand under that number's own name.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock

import pyarrow as pa

from tidemark.pipeline.lake.store.notes import Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore

ARCHIVES = ParquetKind("tracking/archive/", "put back a backup", r"\d{12}-\d{12}", columns=("number", "entry"))
"""Keys are the first and the last number."""

KEPT_OPEN = 4
"""Archives held in memory. Readers go through a log in order, a few entries at a time."""


class LogArchive:
    """Keeps the archives of one log, each known by the range of its entries' numbers. Safe from several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, ARCHIVES)
        self._lock = Lock()
        self._known: list[range] | None = None
        self._open = lru_cache(KEPT_OPEN)(self.read)

    def ranges(self) -> list[range]:
        """The archives that exist now, in order."""
        self._known = list(map(archived_numbers, self._notes.listed()))
        return self._known

    def covers(self, number: int) -> bool:
        """Return whether an existing archive has this entry."""
        return any(number in numbers for numbers in self.ranges())

    def content(self, number: int) -> bytes | None:
        """An entry's content; None where no archive has it, as of the last listing. Raises CorruptObject."""
        with self._lock:
            known = self.ranges() if self._known is None else self._known
            numbers = next((numbers for numbers in known if number in numbers), None)
            return None if numbers is None else self._open(numbers)[number]

    def read(self, numbers: range) -> Mapping[int, bytes]:
        """All entries of an archive. Raises DamagedNote, NewerFormat, ObjectMissing."""
        rows = self._notes.read(_key(numbers))
        found = dict(zip(rows["number"].to_pylist(), rows["entry"].to_pylist(), strict=True))
        if list(found) != list(numbers):
            raise ARCHIVES.broken(self.place(numbers), f"it has {len(found)} entries, not those of its name")
        return found

    def create(self, entries: Mapping[int, bytes]) -> None:
        """Write consecutive entries as an archive. Raises ObjectExists, LakeError."""
        numbers = sorted(entries)
        rows = pa.table({"number": pa.array(numbers, pa.int64()), "entry": [entries[number] for number in numbers]})
        self._notes.create(_key(numbers), rows)

    def delete(self, numbers: range) -> None:
        """Delete an archive. Raises LakeError."""
        self._notes.delete(_key(numbers))

    def place(self, numbers: range) -> str:
        """The address of an archive, for people."""
        return self._notes.place(_key(numbers))


def archived_numbers(key: str) -> range:
    """The numbers of an archive's entries, by its key."""
    first, last = map(int, key.split("-"))
    return range(first, last + 1)


def _key(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:012d}-{numbers[-1]:012d}"

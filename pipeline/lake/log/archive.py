"""Archives: old entries of the tracking log, about a thousand per object, still read by their numbers.

An archive is durable before its entries are deleted, oldest first. So an archive is authoritative for every number that
it covers, even if the entry's own object still exists.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock

import pyarrow as pa

from tidemark.pipeline.lake.store.notes import Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore

ARCHIVES = ParquetKind("tracking/archive/", "restore a backup", r"\d{12}-\d{12}", columns=("number", "entry"))
"""The archives. A key consists of the numbers of the first and the last entry."""

KEPT_OPEN = 4
"""Number of archives held in memory. Readers go through a log in order, a few entries at a time."""


class LogArchive:
    """The archives of one log, each identified by the range of its entries' numbers. Thread-safe."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, ARCHIVES)
        self._lock = Lock()
        self._known: list[range] | None = None
        self._open = lru_cache(KEPT_OPEN)(self.read)

    def ranges(self) -> list[range]:
        """List the existing archives, in order."""
        self._known = list(map(archived_numbers, self._notes.listed()))
        return self._known

    def covers(self, number: int) -> bool:
        """True if an existing archive has this entry. Lists the archives."""
        return any(number in numbers for numbers in self.ranges())

    def content(self, number: int) -> bytes | None:
        """Return an entry's content; None if no archive of the last listing has it. Raises CorruptObject."""
        with self._lock:
            known = self.ranges() if self._known is None else self._known
            numbers = next((numbers for numbers in known if number in numbers), None)
            return None if numbers is None else self._open(numbers)[number]

    def read(self, numbers: range) -> Mapping[int, bytes]:
        """Return all entries of an archive, by number. Raises DamagedNote, NewerFormat, ObjectMissing."""
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
        """Return the human-readable address of an archive."""
        return self._notes.place(_key(numbers))


def archived_numbers(key: str) -> range:
    """Return the numbers of an archive's entries, given its key."""
    first, last = map(int, key.split("-"))
    return range(first, last + 1)


def _key(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:012d}-{numbers[-1]:012d}"

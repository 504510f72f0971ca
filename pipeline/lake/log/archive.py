"""Archives of the tracking log. An archive is one object with about a thousand old entries of the log. Archived entries
can still be read by number.

Once an archive is durable, the objects of its entries are deleted, the oldest first. If an entry still has its own
object, the archive is authoritative.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from threading import Lock

import pyarrow as pa

from tidemark.pipeline.lake.store.notes import Notes, ParquetKind
from tidemark.pipeline.lake.store.objects import ObjectStore

WITHOUT_BACKUP = "restore a backup or, without one, move it away: no tracker needs an archive"
ARCHIVES = ParquetKind("tracking/archive/", WITHOUT_BACKUP, r"\d{12}-\d{12}", columns=("number", "entry"))
"""Stores archives. The key of an archive has the numbers of its first and its last log entry."""

KEPT_OPEN = 4
"""Number of archives cached in memory. A few are enough, because a reader goes through the log in order."""


class LogArchive:
    """The archives of one tracking log. An archive is identified by the range of its entry numbers. Thread-safe."""

    def __init__(self, objects: ObjectStore) -> None:
        self._notes = Notes(objects, ARCHIVES)
        self._lock = Lock()
        self._known: list[range] | None = None
        self._open = lru_cache(KEPT_OPEN)(self.read)

    def ranges(self) -> list[range]:
        """Return the range of entry numbers of each archive, in order. Each call lists the archives again."""
        self._known = list(map(archived_numbers, self._notes.listed()))
        return self._known

    def covers(self, number: int) -> bool:
        """Return True if an archive has the log entry with this number. Each call lists the archives again."""
        return any(number in numbers for numbers in self.ranges())

    def content(self, number: int) -> bytes | None:
        """Return the content of the log entry with this number, or None if no archive in the last listing has it.
        Raises the errors of `read`."""
        with self._lock:
            known = self.ranges() if self._known is None else self._known
            numbers = next((numbers for numbers in known if number in numbers), None)
            return None if numbers is None else self._open(numbers)[number]

    def read(self, numbers: range) -> Mapping[int, bytes]:
        """Return the content of all log entries in an archive, by number. Raises ObjectMissing, DamagedNote,
        NewerFormat and LakeError."""
        rows = self._notes.read(_key(numbers))
        found = dict(zip(rows["number"].to_pylist(), rows["entry"].to_pylist(), strict=True))
        if list(found) != list(numbers):
            raise ARCHIVES.broken(self.place(numbers), f"its {len(found)} entries do not match its name")
        return found

    def create(self, entries: Mapping[int, bytes]) -> None:
        """Write an archive of consecutive log entries. `entries` has their content by number. Raises ObjectExists and
        LakeError."""
        numbers = sorted(entries)
        rows = pa.table({"number": pa.array(numbers, pa.int64()), "entry": [entries[number] for number in numbers]})
        self._notes.create(_key(numbers), rows)

    def delete(self, numbers: range) -> None:
        """Delete the archive of this range of entry numbers. Raises LakeError."""
        self._notes.delete(_key(numbers))

    def place(self, numbers: range) -> str:
        """Return the address of an archive, for error messages."""
        return self._notes.place(_key(numbers))


def archived_numbers(key: str) -> range:
    """Return the range of entry numbers of the archive with this key."""
    first, last = map(int, key.split("-"))
    return range(first, last + 1)


def _key(numbers: Sequence[int]) -> str:
    return f"{numbers[0]:012d}-{numbers[-1]:012d}"

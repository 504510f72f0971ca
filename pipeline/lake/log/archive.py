"""Archives: old entries of the tracking log, about a thousand to an object, read under their numbers as before.

An archive is durable before its entries are deleted, and they are deleted from the oldest on. So an archive is right
about every number that it covers, whatever object may stand under that number's own name.
"""

import io
import re
from collections.abc import Mapping
from functools import lru_cache
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import refuse_newer

FOLDER = "tracking/archive/"
NAME = re.compile(rf"{FOLDER}(\d{{12}})-(\d{{12}})\.parquet")

KEPT_OPEN = 4
"""Archives held in memory. Readers go through a log in order, a few entries at a time."""


def archive_name(numbers: range) -> str:
    """The object that holds the entries with these numbers."""
    return f"{FOLDER}{numbers[0]:012d}-{numbers[-1]:012d}.parquet"


def archived_numbers(name: str) -> range | None:
    """The numbers of an archive's entries, by its name; None for any other object."""
    match = NAME.fullmatch(name)
    return None if match is None else range(int(match[1]), int(match[2]) + 1)


class LogArchive:
    """Reads the archives of one log, each known by the range of its entries' numbers. Safe from several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = Lock()
        self._known: list[range] | None = None
        self._open = lru_cache(KEPT_OPEN)(self.read)

    def ranges(self) -> list[range]:
        """The archives that exist now, in order."""
        found = map(archived_numbers, self._objects.names(FOLDER))
        self._known = [numbers for numbers in found if numbers is not None]
        return self._known

    def covers(self, number: int) -> bool:
        """Whether an archive that exists now has this entry."""
        return any(number in numbers for numbers in self.ranges())

    def content(self, number: int) -> bytes | None:
        """An entry's content; None where no archive has it, as of the last listing. Raises CorruptObject."""
        with self._lock:
            known = self.ranges() if self._known is None else self._known
            numbers = next((numbers for numbers in known if number in numbers), None)
            return None if numbers is None else self._open(numbers)[number]

    def read(self, numbers: range) -> Mapping[int, bytes]:
        """All entries of an archive. Raises CorruptObject, NewerFormat, ObjectMissing."""
        place = f"{self._objects.uri}/{archive_name(numbers)}"
        try:
            rows = pq.read_table(io.BytesIO(self._objects.read(archive_name(numbers))), use_threads=False)
            refuse_newer(place, rows.schema.metadata)
            found = dict(zip(rows["number"].to_pylist(), rows["entry"].to_pylist(), strict=True))
        except (pa.ArrowException, KeyError, OSError) as error:
            raise CorruptObject(f"{place} is damaged ({error}); put back a backup") from error
        if list(found) != list(numbers):
            raise CorruptObject(f"{place} has {len(found)} entries, not those of its name; put back a backup")
        return found

"""Old entries of the tracking log, many to an object: what was said stays readable, and who lists the log lists little.

An archive is durable before the entries that it holds are deleted, and these are deleted from the oldest on. So an
entry whose number an archive covers was there, whatever stands under its own name by now.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from threading import Lock

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import CorruptObject, ObjectExists
from pipeline.lake.store.objects import ObjectStore

FOLDER = "tracking/archive/"
DIGITS = 12
NAME = re.compile(rf"{FOLDER}(\d{{{DIGITS}}})-(\d{{{DIGITS}}})\.parquet")

KEPT_OPEN = 4
"""Archives that are held in memory: who reads a log reads it in order, with several entries at a time."""


@dataclass(frozen=True, slots=True, order=True)
class Stretch:
    """An archive: the numbers of its first and its last entry, with all between."""

    first: int
    last: int

    @property
    def name(self) -> str:
        """The object that holds it."""
        return f"{FOLDER}{self.first:0{DIGITS}d}-{self.last:0{DIGITS}d}.parquet"

    @classmethod
    def named(cls, name: str) -> "Stretch | None":
        """The archive that an object is; None for any other object."""
        match = NAME.fullmatch(name)
        return None if match is None else cls(int(match[1]), int(match[2]))

    @property
    def numbers(self) -> range:
        """Of its entries."""
        return range(self.first, self.last + 1)


class LogArchive:
    """The archives of one log. Reading is safe from several threads."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._lock = Lock()
        self._known: list[Stretch] | None = None
        self._open: dict[str, Mapping[int, bytes]] = {}

    def stretches(self) -> list[Stretch]:
        """The archives that are there now, in order."""
        found = (Stretch.named(name) for name in self._objects.names(FOLDER))
        self._known = sorted(stretch for stretch in found if stretch is not None)
        return self._known

    def covers(self, number: int) -> bool:
        """Whether an archive that is there now has this entry."""
        return _covering(self.stretches(), number) is not None

    def content(self, number: int) -> bytes | None:
        """An entry's content; None where no archive that is known of has it. Raises CorruptObject.

        The archives are listed once; `covers` and `stretches` list them anew.
        """
        with self._lock:
            stretch = _covering(self.stretches() if self._known is None else self._known, number)
            if stretch is None:
                return None
            if stretch.name not in self._open:
                while len(self._open) >= KEPT_OPEN:
                    del self._open[next(iter(self._open))]
                self._open[stretch.name] = self._read(stretch)
            return self._open[stretch.name][number]

    def keep(self, entries: Mapping[int, bytes]) -> Stretch:
        """Put entries with consecutive numbers into one archive, durable on return. Safe to repeat.

        Raises CorruptObject where an archive of these numbers holds something else; LakeError.
        """
        stretch = Stretch(min(entries), max(entries))
        rows = pa.table(
            {"number": pa.array(sorted(entries), pa.int64()), "entry": [entries[n] for n in sorted(entries)]}
        )
        sink = io.BytesIO()
        pq.write_table(rows, sink, compression="zstd")
        try:
            self._objects.create(stretch.name, sink.getvalue())
        except ObjectExists:
            if self._read(stretch) != entries:
                raise CorruptObject(
                    f"{self._objects.uri}/{stretch.name} holds other entries than the log; move it away, and "
                    "`tidemark housekeep` makes it anew"
                ) from None
        return stretch

    def drop(self, stretch: Stretch) -> None:
        """Delete an archive. Safe to repeat."""
        self._objects.delete(stretch.name)

    def _read(self, stretch: Stretch) -> Mapping[int, bytes]:
        try:
            rows = pq.read_table(io.BytesIO(self._objects.read(stretch.name)), use_threads=False)
            found = dict(zip(rows["number"].to_pylist(), rows["entry"].to_pylist(), strict=True))
        except (pa.ArrowException, KeyError, OSError) as error:
            raise CorruptObject(
                f"{self._objects.uri}/{stretch.name} is damaged ({error}); put back a backup"
            ) from error
        if list(found) != list(stretch.numbers):
            raise CorruptObject(
                f"{self._objects.uri}/{stretch.name} has {len(found)} entries, not those of its name; put back a backup"
            )
        return found


def _covering(stretches: list[Stretch], number: int) -> Stretch | None:
    return next((stretch for stretch in stretches if number in stretch.numbers), None)

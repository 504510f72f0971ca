"""A note outside the lake, which may be full: a file of fixed size, allocated in advance and overwritten in place."""

import errno
import os
import re
from hashlib import blake2b
from pathlib import Path
from typing import Generic

from tidemark.pipeline.lake.store.notes import Content, NoteKind

SLOT, SLOTS = 16 << 10, 2
"""Size of a slot in bytes, and number of slots. They are written in turn, so a torn write leaves the other slot."""

WRITTEN = re.compile(rb'\{"sum":"([0-9a-f]{16})",("turn":([0-9]{1,18}),"said":(.*))\}', re.DOTALL)
"""A slot: the checksum of the rest, the turn number, and the note."""


class SlotFile(Generic[Content]):
    """One note, for any number of writers: if two writers garble a slot, its checksum fails, and the other slot is
    valid until the next write."""

    def __init__(self, path: Path, kind: NoteKind[Content], mode: int) -> None:
        self.path = path
        self._kind, self._mode = kind, mode

    def read(self) -> Content | None:
        """Return the newest note; None if the file is missing or has no intact slot. Raises NewerFormat, DamagedNote,
        OSError."""
        _, text = self._newest()
        return None if text is None else self._kind.decode(text, str(self.path))

    def write(self, *notes: Content, sync: bool = False) -> None:
        """Write the first of these notes that fits into a slot. With `sync`, it survives a crash of the machine. Raises
        OSError, also if no note fits."""
        turn = self._newest()[0] + 1
        line = next((line for note in notes if len(line := self._line(turn, note)) < SLOT), None)
        if line is None:
            raise OSError(errno.EFBIG, "the note does not fit", str(self.path))
        number = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, self._mode)
        try:
            if os.fstat(number).st_size != SLOT * SLOTS:  # real bytes: a sparse file would need space when disk is full
                self._put(number, b" " * (SLOT * SLOTS), 0)
                sync = True
            self._put(number, line.ljust(SLOT - 1) + b"\n", turn % SLOTS * SLOT)
            if sync:
                os.fsync(number)
        finally:
            os.close(number)

    def _newest(self) -> tuple[int, bytes | None]:
        """Return the turn and the note of the newest intact slot; -1 and None if there is none."""
        try:
            with self.path.open("rb") as file:
                written = file.read(SLOT * SLOTS)
        except FileNotFoundError:
            return -1, None
        slots = (WRITTEN.fullmatch(written[at : at + SLOT].rstrip()) for at in range(0, SLOT * SLOTS, SLOT))
        whole = [(int(slot[3]), slot[4]) for slot in slots if slot and slot[1] == _sum(slot[2])]
        return max(whole, default=(-1, None))

    def _line(self, turn: int, note: Content) -> bytes:
        text = b'"turn":%d,"said":%s' % (turn, self._kind.encode(note).strip())
        return b'{"sum":"%s",%s}' % (_sum(text), text)

    def _put(self, number: int, content: bytes, at: int) -> None:
        written = os.pwrite(number, content, at)
        if written != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))


def _sum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode()

"""`requeued/contract.json`: by which message contract the whole quarantine was judged last, as a digest of it."""

import json
from contextlib import suppress
from datetime import datetime

from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import ObjectMissing, ObjectReplaced
from tidemark.pipeline.lake.store.objects import ReplaceableObjects
from tidemark.pipeline.version import marks, refuse_newer

NAME = "requeued/contract.json"
UNREADABLE = ""
"""Stands for a damaged note. It is no contract's digest, so that quarantine is judged once more."""


class JudgedBy:
    """The note of one lake."""

    def __init__(self, objects: ReplaceableObjects) -> None:
        self._objects = objects

    def digest(self) -> str | None:
        """The digest of the contract, UNREADABLE if the note is damaged, or None if there is none. Raises NewerFormat,
        LakeError."""
        return self._read()[1]

    def note(self, digest: str, at: datetime) -> None:
        """Replace the note unless it says the same. If another writer is faster, its note stands. Raises LakeError."""
        generation, there = self._read()
        if there != digest:
            content = json.dumps({"contract": digest, "judged_at": iso(at), **marks()}).encode() + b"\n"
            with suppress(ObjectReplaced):
                self._objects.replace(NAME, content, generation)

    def _read(self) -> tuple[int, str | None]:
        try:
            content, generation = self._objects.read_generation(NAME)
        except ObjectMissing:
            return 0, None
        with suppress(ValueError, KeyError, TypeError):
            facts = json.loads(content)
            refuse_newer(f"{self._objects.uri}/{NAME}", facts)
            return generation, str(facts["contract"])
        return generation, UNREADABLE

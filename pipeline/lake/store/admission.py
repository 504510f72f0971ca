"""Checks a lake's format marks, which show the versions of tidemark that have written the lake.

A program that writes in a new format first creates the object `format/<number>.json`, which is never deleted. When an
older program starts, it finds that object and refuses the lake. An older program that is already running stops when it
reads an object in the new format, because every object that tidemark reads back contains its format number.
"""

from collections.abc import Container
from contextlib import suppress
from threading import Condition

from cachetools import cached

from tidemark.pipeline import version
from tidemark.pipeline.errors import DamagedNote
from tidemark.pipeline.lake.store.address import open_objects
from tidemark.pipeline.lake.store.notes import JsonKind, NoContent, Notes
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.version import WRITTEN_IN, refuse_newer

FORMATS = JsonKind("format/", key=r"\d{6}", holds=NoContent)
"""Stores format marks. The key is the number of the format."""


@cached({}, condition=Condition())
def admit(lake: LakeSettings) -> Container[str]:
    """Return the marks of the formats in which the lake was written. A process lists them once. Raises NewerFormat if a
    later version of tidemark has written the lake, and LakeError if the lake is unreachable."""
    notes = Notes(open_objects(lake), FORMATS)
    formats = notes.listed()
    newest = max(formats, default="")
    if newest and int(newest) > version.FORMAT:
        with suppress(DamagedNote):  # the name of a damaged mark still contains the format number
            notes.read(newest)
        refuse_newer(notes.place(newest), {WRITTEN_IN: str(int(newest))})
    return formats


@cached({}, condition=Condition())
def claim(lake: LakeSettings) -> None:
    """Create the mark of the format in which this version writes, if the lake lacks it. Call this before a write.
    Raises NewerFormat and LakeError."""
    own = f"{version.FORMAT:06d}"
    if own not in admit(lake):
        Notes(open_objects(lake), FORMATS).ensure(own, NoContent())


def check_format(lake: LakeSettings, call: str) -> None:
    """Call `claim` before a call that writes to the lake, and `admit` before any other call. `call` is a key of
    CLASSES. Raises NewerFormat and LakeError."""
    if call == "create":
        claim(lake)
    else:
        admit(lake)

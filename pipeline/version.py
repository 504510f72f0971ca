"""The running version, and the mark that it leaves in every object that tidemark reads back.

A mark is two short strings: the version that wrote an object, and the object's format. They are stored in the metadata
of a Parquet file, among the keys of a JSON object, and in the properties of a Delta table.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from typing import Any

from tidemark.pipeline.errors import NewerFormat

FORMAT = 1
"""The format that this version writes, and the newest that it reads. All objects share this number. Increase it for a
change that an earlier version would misread, not for an addition that an earlier version may ignore."""

DISTRIBUTION = "tidemark-pubsub"
"""The name of the installed distribution; the package and the command are named `tidemark`."""

WRITTEN_BY, WRITTEN_IN = "tidemark.version", "tidemark.format"
"""The keys of a mark: the version that wrote the object, and the object's format. An object without the second key is
in format 1."""


@cache
def own_version() -> str:
    """Return the installed version; "unknown" if the distribution is not installed."""
    with suppress(metadata.PackageNotFoundError):
        return metadata.version(DISTRIBUTION)
    return "unknown"


def marks() -> dict[str, str]:
    """Return the mark for objects written by this version."""
    return {WRITTEN_BY: own_version(), WRITTEN_IN: str(FORMAT)}


def without_marks(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys and values of an object without those of its mark."""
    return {name: value for name, value in facts.items() if name not in (WRITTEN_BY, WRITTEN_IN)}


def format_of(marked: Mapping[Any, Any]) -> int:
    """Return a mark's format: 1 if missing, FORMAT + 1 if unreadable. Keys and values are strings or bytes."""
    written = _value(marked, WRITTEN_IN) or "1"
    return int(written) if written.isdecimal() else FORMAT + 1


def refuse_newer(name: str, marked: object, what: str = "lake") -> None:
    """Raise NewerFormat if the mark in `marked` has a newer format. The error names the object, the version that wrote
    it, and what the object belongs to (`what`)."""
    if isinstance(marked, Mapping) and format_of(marked) > FORMAT:
        why = f"its format is {_value(marked, WRITTEN_IN)}, and this version reads formats up to {FORMAT}"
        raise newer_format(name, marked, why, what)


def newer_format(name: str, marked: Mapping[Any, Any], why: str, what: str = "lake") -> NewerFormat:
    """Return the error for the undamaged object `name`, which this version cannot read because of `why`."""
    written = _value(marked, WRITTEN_BY)
    writer, or_newer = (f"tidemark {written}", " or a newer one") if written else ("a later version of tidemark", "")
    return NewerFormat(
        f"this {what} was written by {writer}, and this is tidemark {own_version()}: {name} is undamaged, and cannot "
        f"be read here ({why}). Run {writer}{or_newer}; see docs/how-to/upgrading.md"
    )


def _value(marked: Mapping[Any, Any], key: str) -> str | None:
    found = marked.get(key, marked.get(key.encode()))
    return found.decode(errors="replace") if isinstance(found, bytes) else None if found is None else str(found)

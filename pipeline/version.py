"""The version that runs, and the mark that it leaves in all that a later program reads back.

A mark is two short texts: the version that wrote an object, and the format that it is in. They stand in the metadata of
a Parquet file, among the keys of a JSON object, and in the properties of a Delta table.
"""

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any

from tidemark.pipeline.errors import NewerFormat

FORMAT = 1
"""The format that this version writes, and the newest that it reads. Raised, for everything at once, when something is
written that an earlier version would misread; not for what that may leave out."""

DISTRIBUTION = "tidemark-pubsub"
"""The installed distribution; `tidemark` is the name of the package and of the command."""

WRITTEN_BY, WRITTEN_IN = "tidemark.version", "tidemark.format"
"""The keys of a mark. What has none is in format 1."""


@cache
def own_version() -> str:
    """The installed version; "unknown" if only the files exist."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return "unknown"


def marks() -> dict[str, str]:
    """The mark of what is written now."""
    return {WRITTEN_BY: own_version(), WRITTEN_IN: str(FORMAT)}


def without_marks(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that stand beside a mark."""
    return {name: value for name, value in facts.items() if name not in (WRITTEN_BY, WRITTEN_IN)}


def format_of(marked: Mapping[Any, Any]) -> int:
    """The format that a mark tells of; keys and values may be texts, or bytes as Parquet has them."""
    written = _value(marked, WRITTEN_IN) or "1"
    return int(written) if written.isdecimal() else FORMAT + 1


def refuse_newer(name: str, marked: object, what: str = "lake") -> None:
    """Raise NewerFormat, with the object's name and the version that wrote it, if the mark tells of a newer format.
    `what` says what the object is a part of."""
    if isinstance(marked, Mapping) and format_of(marked) > FORMAT:
        why = f"its format is {_value(marked, WRITTEN_IN)}, and {FORMAT} is the newest here"
        raise newer_format(name, marked, why, what)


def newer_format(name: str, marked: Mapping[Any, Any], why: str, what: str = "lake") -> NewerFormat:
    """The error about an object that is whole and cannot be read here."""
    writer = _value(marked, WRITTEN_BY) or "of a later version"
    return NewerFormat(
        f"this {what} was written by tidemark {writer}, and this is tidemark {own_version()}: {name} is undamaged, and "
        f"cannot be read here ({why}). Run tidemark {writer} or a newer one; docs/how-to/upgrading.md says more"
    )


def _value(marked: Mapping[Any, Any], key: str) -> str | None:
    found = marked.get(key, marked.get(key.encode()))
    return found.decode(errors="replace") if isinstance(found, bytes) else None if found is None else str(found)

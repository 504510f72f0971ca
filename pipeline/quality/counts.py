"""Counts of landed heartbeats of some kind: late, missed, or passed over by `watermark.max_lag`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

FEW = 5
"""The greatest number of hours that a sentence lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Heartbeats of a kind per window and per stream, and the number of `rows` among which they were found. `damaged`
    maps unreadable files of `heartbeats` to their event hours, whose rows are not counted."""

    rows: int = 0
    by_window: Mapping[str, int] = field(default_factory=dict)
    by_stream: Mapping[str, int] = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of heartbeats of the kind."""
        return sum(self.by_stream.values())

    @property
    def share(self) -> float:
        """Their share of the rows."""
        return self.total / self.rows if self.rows else 0.0


def not_known(what: str, damaged: Mapping[str, str]) -> str:
    """Return a sentence that says what is unknown because of damaged files of `heartbeats`, and what to do; empty if no
    file is damaged. `damaged` maps the files to their event hours."""
    if not damaged:
        return ""
    hours = sorted(set(damaged.values()))
    named = f"{', '.join(hours[:FEW])}{' and more' if len(hours) > FEW else ''}"
    return (
        f"what is {what} of the event hours {named} is not known: {len(damaged)} files of heartbeats are damaged, the "
        f"first is {min(damaged)}; `tidemark repair` says what needs them, and what to do"
    )

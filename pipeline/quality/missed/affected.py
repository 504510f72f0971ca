"""Finds the computed windows that lack heartbeats which landed later. Pure functions on columns."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tidemark.pipeline.clock import duration_us, from_us
from tidemark.pipeline.lake.tables.table import microseconds
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.windows import Window, Windowing

FEW = 5
"""The greatest number of hours that a sentence lists."""

NOT_COMPUTED = np.iinfo(np.int64).max
"""Stands for the version of a window that is not computed, or whose input version is unknown."""


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


@dataclass(frozen=True, slots=True, order=True)
class StaleWindow:
    """A computed window whose input has grown since. `missed` counts the new heartbeats in the window, `missed_before`
    those in its lookback. `computed_from` is the version of `heartbeats` that it was computed from; None if this, or
    what landed since, is unknown."""

    window: Window
    missed: int
    missed_before: int
    computed_from: int | None

    @property
    def sentence(self) -> str:
        """The window, and why it is stale."""
        return f"{self.window}: {self.why}"

    @property
    def why(self) -> str:
        """Why the window is stale."""
        if self.computed_from is None:
            return "what it was computed from, or what has landed since, is no longer known"
        return (
            f"computed from version {self.computed_from} of heartbeats, without {self.missed} of its own and "
            f"{self.missed_before} in its lookback"
        )


@dataclass(frozen=True, slots=True)
class MissedHeartbeats:
    """The heartbeats that landed after their window was computed, as of these versions of the two tables.

    A heartbeat counts once, in its own window, until that window is recomputed. After that it counts in `mended`, a
    total since the lake's first check. During a long check, `left` is the number of commits, manifests or hours still
    to be read; until it is 0, the other figures are incomplete. `damaged` maps unreadable files of `heartbeats` to
    their event hours, which are not counted.
    """

    heartbeats_version: int = -1
    diffs_version: int = -1
    by_window: Mapping[str, int] = field(default_factory=dict)
    by_stream: Mapping[str, int] = field(default_factory=dict)
    stale: Sequence[StaleWindow] = ()
    mended: int = 0
    left: int = 0
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """The number of missed heartbeats."""
        return sum(self.by_window.values())


@dataclass(frozen=True, slots=True)
class AffectedWindows:
    """Determines the windows that a heartbeat affects: its own, and each later window whose lookback, both ends
    included, contains its event time. Times in arrays are microseconds since the epoch; a window is identified by its
    start."""

    windowing: Windowing
    lookback: timedelta

    def key(self, start_us: int) -> str:
        """Return the key of the window that starts at `start_us`."""
        return self.windowing.containing(from_us(start_us)).key

    def starts(self, event_us: Ints) -> list[tuple[Ints, NDArray[np.bool_]]]:
        """Return a pair for each step 0, 1, …: the start of the window `step` windows after each event time's own, and
        whether the event time affects that window."""
        length_us, lookback_us = duration_us(self.windowing.length), duration_us(self.lookback)
        own = event_us - event_us % length_us
        offsets = range(0, length_us + lookback_us, length_us)
        return [(own + offset, event_us >= own + offset - lookback_us) for offset in offsets]

    def keys_of(self, event_us: Ints) -> set[str]:
        """Return the keys of the windows that any of these event times affects."""
        return {self.key(start) for starts, affects in self.starts(event_us) for start in np.unique(starts[affects])}

    def keys_between(self, oldest: datetime, newest: datetime) -> Iterator[str]:
        """Yield the keys of the windows that event times in `[oldest, newest]` may affect, in order."""
        first = self.windowing.containing(oldest).start
        return (window.key for window in self.windowing.between(first, newest + self.lookback + self.windowing.length))

    def versions_of(self, starts: Ints, versions: Mapping[str, int]) -> Ints:
        """Look up the version that each window was computed from; NOT_COMPUTED if it is not in `versions`."""
        each, rows = np.unique(starts, return_inverse=True)
        known = [versions.get(self.key(start), NOT_COMPUTED) for start in each.tolist()]
        return np.array(known, dtype=np.int64)[rows]


def missed_by(
    landings: pa.Table, versions: Mapping[str, int], affected: AffectedWindows
) -> tuple[pa.Table, MissedHeartbeats]:
    """Return the first landings that some window still lacks, and the missed heartbeats. `versions` has the version
    that each computed window was computed from. `mended` counts heartbeats that were missed at the last check and are
    no longer missed."""
    event_us, landed_with = microseconds(landings["event_time"]), landings["version"].combine_chunks().to_numpy()
    was_missed = landings["missed"].combine_chunks().to_numpy(zero_copy_only=False)
    lacking_by_place = []
    own, before = Counter[int](), Counter[int]()
    for place, (starts, affects) in enumerate(affected.starts(event_us)):
        lacks = affects & (landed_with > affected.versions_of(starts, versions))
        lacking_by_place.append(lacks)
        windows, counts = np.unique(starts[lacks], return_counts=True)
        (before if place else own).update(dict(zip(windows.tolist(), counts.tolist(), strict=True)))
    is_missed, is_lacking = lacking_by_place[0], np.logical_or.reduce(lacking_by_place)
    by_stream = pc.value_counts(landings["stream_id"].filter(pa.array(is_missed)))
    missed = MissedHeartbeats(
        by_window={affected.key(start): own[start] for start in sorted(own)},
        by_stream={entry["values"]: entry["counts"] for entry in by_stream.to_pylist()},
        stale=[
            StaleWindow(affected.windowing.named(key), own[start], before[start], versions[key])
            for start in sorted(own.keys() | before.keys())
            for key in [affected.key(start)]
        ],
        mended=int(np.count_nonzero(was_missed & ~is_missed)),
    )
    judged = landings.set_column(landings.column_names.index("missed"), "missed", pa.array(is_missed, pa.bool_()))
    return judged.filter(pa.array(is_lacking)), missed

"""A small micro-batch: windows below the newest watermark, each computed once from what had landed when the run began.

What is real here is how windows are chosen (`tidemark.pipeline.windows`); copies, differences, the fence and the
commit are design.md's sections 4 and 5 in the fewest words.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.simulation.lake import Outside, Row, Table, fail_if
from tests.simulation.plan import LOOKBACK, WINDOWING
from tidemark.pipeline.clock import duration_us, from_us, to_us
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.windows import DAY, Spans, Window, due, runs_of_neighbours

Key = tuple[str, int, str]
WINDOWS_AT_MOST = 5

RISK_OF_A_COMMIT = 5.0
"""Runs are few while there is trouble: so much more goes wrong in the commit of one than in another step."""


@dataclass(frozen=True, slots=True)
class Diff:
    """One row of `heartbeat_diffs`, as far as it matters here. Times in microseconds."""

    key: Key
    previous_us: int | None
    publish_us: int
    message_id: str
    late: bool


@dataclass(frozen=True, slots=True)
class Computed:
    """A window's files: by which run, from which version of `heartbeats`, and their rows."""

    run: int
    version: int
    rows: tuple[Diff, ...]


@dataclass
class Diffs:
    """The table of diffs: a window's files are replaced whole, if they are still those that the run saw."""

    windows: dict[Window, Computed] = field(default_factory=dict)
    runs: int = 0

    def replace(self, fence: dict[Window, Computed | None], computed: dict[Window, Computed]) -> list[Window]:
        """One transaction; returns the windows that somebody else had computed since the fence was taken."""
        superseded = []
        for window, ours in computed.items():
            now = self.windows.get(window)
            if now is fence[window]:
                self.windows[window] = ours
            elif now is None or now.run != ours.run:
                superseded.append(window)
        return superseded


@dataclass
class MicroBatch:
    """One computation of the windows that have closed."""

    heartbeats: Table
    diffs: Diffs
    log: TrackingLog
    outside: Outside

    def run(self, now: datetime) -> int:
        """Compute the first stretch of windows that are due; how many there were."""
        windows = self.wanted(self.watermark(), now)
        if windows:
            self.compute(windows)
        return len(windows)

    def watermark(self) -> datetime | None:
        """The newest watermark."""
        decided = self.log.newest().record
        return None if decided is None else decided.decision.watermark

    def wanted(self, watermark: datetime | None, now: datetime) -> Sequence[Window]:
        """The newest windows that have closed and are not computed, without a gap."""
        events = [row["event_time"] for row in self.heartbeats.rows()]
        if watermark is None or not events:
            return []
        number_of = WINDOWING.number_of
        own, reached = Spans(), Spans()
        for event in map(from_us, events):
            own.add(range(number_of(event), number_of(event) + 1))
            reached.add(range(number_of(event), number_of(event + LOOKBACK) + 1))
        done = [number_of(window.start) for window in self.diffs.windows]
        computed = Spans(*(range(number, number + 1) for number in done))
        closed = range(number_of(from_us(min(events))), number_of(min(watermark, now)))
        newest = next(due(own, reached, computed, closed, DAY // WINDOWING.length), range(0))
        return [WINDOWING.numbered(number) for number in newest[-WINDOWS_AT_MOST:]]

    def compute(self, windows: Sequence[Window]) -> None:
        """Take the fence, list the input, compute, commit; once more where a run with older input was first."""
        self.diffs.runs += 1
        run = self.diffs.runs
        fence = self.fence(windows)
        self.outside.step(f"run {run} lists its input for {len(windows)} windows from {windows[0]}")
        version = self.listed()
        rows = self.heartbeats.rows(version)
        self.outside.step(f"run {run} has listed version {version}")
        computed = {window: Computed(run, version, self.rows_of(window, rows)) for window in windows}
        self.outside.works()
        superseded = self.commit(run, fence, computed)
        older = [window for window in superseded if self.diffs.windows[window].version < version]
        for stretch in runs_of_neighbours(older):
            self.compute(stretch)

    def listed(self) -> int:
        """The version of `heartbeats` that is read."""
        return self.heartbeats.version

    def fence(self, windows: Iterable[Window]) -> dict[Window, Computed | None]:
        """What the windows have now."""
        return {window: self.diffs.windows.get(window) for window in windows}

    def rows_of(self, window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
        """A window's diffs. A function of the rows in `[start - lookback, end)` alone, in whichever order."""
        return rows_of(window, rows)

    def commit(self, run: int, fence: dict[Window, Computed | None], computed: dict[Window, Computed]) -> list[Window]:
        """Replace the windows; where the answer is lost, look again."""
        self.outside.step(f"run {run} commits", RISK_OF_A_COMMIT)
        fail_if(self.outside, f"run {run} may not be committed", RISK_OF_A_COMMIT)
        superseded = self.replace(fence, computed)
        self.outside.step(f"run {run} has committed", RISK_OF_A_COMMIT)
        return self.replace(fence, computed) if self.outside.lake_fails(RISK_OF_A_COMMIT) else superseded

    def replace(self, fence: dict[Window, Computed | None], computed: dict[Window, Computed]) -> list[Window]:
        """One transaction; the windows that somebody else had computed since the fence was taken."""
        return self.diffs.replace(fence, computed)


def rows_of(window: Window, rows: Iterable[Row]) -> tuple[Diff, ...]:
    """One row a heartbeat: of its copies the one with the smallest publish time, beside the stream's one before."""
    start_us, end_us = to_us(window.start), to_us(window.end)
    diffs = []
    previous: dict[str, int] = {}
    for key, copies in sorted(without_copies(rows, start_us - duration_us(LOOKBACK), end_us).items()):
        stream, event_us, _ = key
        kept = min(copies, key=lambda row: (row["publish_time"], row["message_id"]))
        before = previous.get(stream)
        previous[stream] = event_us
        if event_us >= start_us:
            gone = before is None or event_us - before > duration_us(LOOKBACK)
            late = all(row["late"] for row in copies)
            diffs.append(Diff(key, None if gone else before, kept["publish_time"], kept["message_id"], late))
    return tuple(diffs)


def without_copies(rows: Iterable[Row], start_us: int, end_us: int) -> dict[Key, list[Row]]:
    """The landings of each heartbeat with an event time in `[start, end)`."""
    heartbeats: dict[Key, list[Row]] = defaultdict(list)
    for row in rows:
        if start_us <= row["event_time"] < end_us:
            heartbeats[key_of(row)].append(row)
    return heartbeats


def key_of(row: dict[str, Any]) -> Key:
    """What copies have in common: the stream, the event time, and the publisher's id, or else the message's."""
    publisher_id = row["publisher_id"]
    return row["stream_id"], row["event_time"], f"m{row['message_id']}" if publisher_id is None else f"p{publisher_id}"


def missed(heartbeats: Table, diffs: Diffs) -> dict[Window, set[Key]]:
    """By computed window: the heartbeats of it that landed after its run had listed its input, and are no copies of
    what that had read."""
    found = {}
    for window, computed in diffs.windows.items():
        span = to_us(window.start), to_us(window.end)
        since = without_copies(heartbeats.rows(since=computed.version), *span)
        found[window] = set(since) - set(without_copies(heartbeats.rows(computed.version), *span))
    return {window: keys for window, keys in found.items() if keys}


def stale(windows: Iterable[Window], missed_in: Iterable[Window]) -> list[Window]:
    """The windows that a missed heartbeat changes: its own, and each whose lookback reaches it. (To a window's
    width: too many rather than too few.)"""
    reached = list(missed_in)
    return [
        window
        for window in sorted(windows)
        if any(one.start < window.end and one.end > window.start - LOOKBACK for one in reached)
    ]

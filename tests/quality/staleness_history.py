"""A lake on disk with random histories, and what is missed told from the whole history by brute force."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.lake.builders import Beat, append_beats, columns_of, lake_in, put, version_of
from tests.watermark.builders import START, at, seconds
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.windowed import DiffRun, Fence
from tidemark.pipeline.quality.landings import MissedHeartbeats
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.windows import Windowing

LENGTH, LOOKBACK = seconds(60), seconds(90)
WINDOWING = Windowing(LENGTH, START, LOOKBACK)
WINDOWS = list(WINDOWING.between(START, at(600)))


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A run that has listed its input and not committed yet."""

    run: DiffRun
    fence: Fence


@dataclass
class History:
    """What has landed with which version, and which version each window stands from."""

    lake: Lake
    folder: Path
    landed: list[tuple[int, Beat]] = field(default_factory=list)
    computed: dict[str, int] = field(default_factory=dict)
    runs: int = 0

    def land(self, beats: Sequence[Beat]) -> None:
        if not beats:
            return
        append_beats(self.lake.heartbeats(), columns_of(beats))
        version = version_of(self.lake.heartbeats())
        self.landed += [(version, beat) for beat in beats]

    def start(self, first: int, last: int) -> UnderWay:
        """A run over some windows lists its input and leaves its manifest."""
        self.runs += 1
        keys = [window.key for window in WINDOWS[first : last + 1]]
        fence = self.lake.diffs().fence(keys)
        version = version_of(self.lake.heartbeats())
        run = DiffRun(f"run{self.runs}", keys, -1 if version is None else version, at(600), at(600))
        self.lake.diffs().leave_manifest(run)
        return UnderWay(run, fence)

    def finish(self, under_way: UnderWay) -> None:
        """What Spark would leave: of each heartbeat that the run has read, the copy with the least publish time."""
        diffs = self.lake.diffs()
        first: dict[tuple[str, float, str], Beat] = {}
        for version, beat in sorted(self.landed, key=lambda one: one[1].message_id):
            if version <= under_way.run.heartbeats_version:
                first.setdefault((beat.stream_id, beat.event_time, identity(beat)), beat)
        rows = {
            key: [
                {"stream_id": beat.stream_id, "event_time": at(beat.event_time), "message_id": beat.message_id}
                for beat in first.values()
                if WINDOWING.containing(at(beat.event_time)).key == key
            ]
            for key in under_way.run.windows
        }
        run = under_way.run
        put(self.lake.stream_status(), run.name, run.windows, run.heartbeats_version, run.started_at)
        replaced = put(diffs, run.name, rows, run.heartbeats_version, run.started_at, under_way.fence)
        self.computed |= dict.fromkeys(replaced, run.heartbeats_version)

    def compute(self, first: int, last: int) -> None:
        self.finish(self.start(first, last))

    def compact(self) -> None:
        table = self.lake.heartbeats().in_place()
        if table is not None:
            table.optimize.compact()

    def vacuum(self) -> None:
        table = self.lake.heartbeats().in_place()
        if table is not None:
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def staleness(self) -> Staleness:
        anew = self.restored()
        anew.checkpoint = None
        return anew

    def restored(self) -> Staleness:
        """A new process's, which goes on from what the lake keeps."""
        return Staleness(self.lake, WINDOWING)

    def after_restart(self, staleness: Staleness) -> Staleness:
        """A new process's, which goes on from this one's checkpoint."""
        anew = self.staleness()
        anew.checkpoint = staleness.checkpoint
        return anew

    def truth(self) -> "Truth":
        """By brute force: every heartbeat's first version, against every computed window."""
        first: dict[tuple[str, float, str], int] = {}
        for version, beat in self.landed:
            first.setdefault((beat.stream_id, beat.event_time, identity(beat)), version)
        truth = Truth()
        for (stream, event, _), version in first.items():
            for window in WINDOWS:
                reaches = window.start - LOOKBACK <= at(event) < window.end
                if not reaches or self.computed.get(window.key, version) >= version:
                    continue
                own, earlier = truth.stale.get(window.key, (0, 0))
                if window.start <= at(event):
                    truth.by_window[window.key] += 1
                    truth.by_stream[stream] += 1
                    truth.stale[window.key] = own + 1, earlier
                else:
                    truth.stale[window.key] = own, earlier + 1
        return truth


@dataclass
class Truth:
    """Missed heartbeats, and of each stale window how many of its own and of its lookback it lacks."""

    by_window: Counter[str] = field(default_factory=Counter)
    by_stream: Counter[str] = field(default_factory=Counter)
    stale: dict[str, tuple[int, int]] = field(default_factory=dict)


def identity(beat: Beat) -> str:
    return f"m{beat.message_id}" if beat.publisher_id is None else f"p{beat.publisher_id}"


def found_in(missed: MissedHeartbeats) -> Truth:
    """A check's answer in the same shape."""
    stale = {one.window.key: (one.missed, one.missed_before) for one in missed.stale}
    return Truth(Counter(missed.by_window), Counter(missed.by_stream), stale)


def new_history(folder: Path) -> History:
    """On a lake of its own."""
    return History(lake_in(folder), folder)


def copy_of(beat: Beat, number: int) -> Beat:
    """Delivered again, or, where the publisher has an id of its own, published again."""
    return beat if beat.publisher_id is None else replace(beat, message_id=f"again{number}")

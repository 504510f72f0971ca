"""A lake looked at as a whole before a repair: its windows, its tracking log, and its orphans."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from pipeline.clock import Clock
from pipeline.durations import format_duration
from pipeline.errors import CorruptObject
from pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, PARTITIONS, STREAM_STATUS, Lake
from pipeline.lake.store.address import arrow_files, open_objects, table_uri
from pipeline.lake.tables.windowed import MANIFESTS
from pipeline.quality.staleness import Staleness
from pipeline.settings import Settings
from pipeline.upkeep.integrity import Integrity, Progress, WindowChecker
from pipeline.upkeep.log_check import LogHealth, check_log
from pipeline.upkeep.orphans import Orphan, orphaned_files, orphaned_manifests, remove
from pipeline.windows import Window


@dataclass(frozen=True, slots=True)
class Survey:
    """What was found. `orphans` are by the folder of the lake that they are in."""

    integrity: Integrity
    log: LogHealth
    orphans: Mapping[str, Sequence[Orphan]]
    watermark: datetime | None

    @property
    def is_sound(self) -> bool:
        """Whether there is nothing to mend."""
        integrity = self.integrity
        return (
            not integrity.broken
            and not integrity.inputs
            and not integrity.untold
            and self.log.is_whole
            and not any(self.orphans.values())
        )

    def runs(self, most: int) -> Iterator[Sequence[Window]]:
        """The windows to compute again that can be, a run of at most so many without a gap at a time."""
        for stretch in self.integrity.repairable:
            for number in range(0, len(stretch), most):
                yield stretch[number : number + most]

    @property
    def needs_a_hand(self) -> bool:
        """Whether something is wrong that computing windows again does not mend."""
        return bool(self.integrity.inputs or self.integrity.blocked or self.integrity.untold) or not self.log.is_whole


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, in a word and a sentence, and whether more is needed than to compute windows again."""

    kind: str
    text: str
    is_grave: bool = False


def findings(survey: Survey, now: datetime, grace: timedelta) -> Iterator[Finding]:
    """All that was found, by name."""
    for broken in survey.integrity.broken:
        for reason in broken.reasons:
            yield Finding(str(broken.fault), f"{broken.window.key}: {reason}")
        for block in broken.blocked_by:
            yield Finding(str(broken.fault), f"{broken.window.key}: it cannot be computed now: {block}", True)
    for damaged in survey.integrity.inputs:
        yield Finding(
            "damaged",
            f"{damaged.path}: {damaged.why}. {_between(damaged.windows)} from it and cannot be computed: put back a "
            "backup of it, or the object's earlier generation",
            True,
        )
    for text in survey.integrity.untold:
        yield Finding("unknown", text, True)
    for number, why in survey.log.damaged:
        yield Finding("log", f"entry {number}: {why}", True)
    for number, why in survey.log.forgotten:
        yield Finding("log", f"entry {number} was forgotten: {why}")
    for text in survey.log.lost:
        yield Finding("log", text, True)
    for orphans in survey.orphans.values():
        for orphan in orphans:
            age = format_duration(timedelta(seconds=int((now - orphan.written_at).total_seconds())))
            young = "" if orphan.is_over(now, grace) else "; younger than the grace time: it may be of a run under way"
            yield Finding("orphaned", f"{orphan.location}: {orphan.what} ({orphan.size} bytes, {age} old{young})")


def _between(windows: Sequence[Window]) -> str:
    first, last = windows[0].key, windows[-1].key
    return f"Window {first} is made" if first == last else f"The windows {first} to {last} are made"


class Surveyor:
    """Looks at one lake. Removes orphans when it is told to, and changes nothing else."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._lake = Lake(settings.lake, settings.message.fields, clock)
        self._kept = self._lake.kept_windows(settings.windowing)

    def extent(self) -> tuple[datetime, datetime] | None:
        """From the first window with a landed heartbeat to the end of the last closed one; None where none is."""
        oldest = self._kept.begin(self._lake.heartbeats().extent().oldest_event_time)
        watermark = self._watermark()
        if oldest is None or watermark is None:
            return None
        windows = self._settings.windowing.closed_at(watermark, oldest)
        return (windows[0].start, windows[-1].end) if windows else None

    def look(self, start: datetime, end: datetime, *, read_values: bool, progress: Progress | None = None) -> Survey:
        """Look at the windows in `[start, end)` that are kept, at the log from then on, and at all that is orphaned.

        Raises LakeError where a table's own log cannot be read, or the lake does not answer.
        """
        tell: Progress = progress or (lambda *_: None)
        lake, settings = self._lake, self._settings
        start = min(self._kept.begin(start) or start, end)
        of_diffs = lake.diffs()
        watermark = self._watermark()
        checker = WindowChecker(
            landed_table=lake.table(HEARTBEATS),
            heartbeats=lake.heartbeats(),
            diffs=of_diffs,
            beside=[lake.table(STREAM_STATUS)],
            staleness=Staleness.restored(lake, settings.windowing, settings.windows.lookback),
            windowing=settings.windowing,
            lookback=settings.windows.lookback,
        )
        # A window whose end is still to come by the clock is left for later: Dagster's partitions end now.
        closed_at = None if watermark is None else min(watermark, self._clock.now())
        integrity = checker.check(start, end, watermark=closed_at, read_values=read_values, progress=progress)
        return Survey(
            integrity=integrity,
            log=check_log(lake.tracking_log(), start, lambda done, of: tell("entries of the tracking log", done, of)),
            orphans=self.orphans(tell),
            watermark=watermark,
        )

    def orphans(self, tell: Progress) -> dict[str, list[Orphan]]:
        """What no version of a table lists, by folder of the lake."""
        found: dict[str, list[Orphan]] = {}
        of_windows = (HEARTBEAT_DIFFS, STREAM_STATUS)
        tables = {name: self._lake.table(name) for name in PARTITIONS}
        for number, (name, table) in enumerate(tables.items()):
            tell("orphans", number, len(tables) + 1)
            found[name] = orphaned_files(table)
        folder = MANIFESTS.rstrip("/")
        place = arrow_files(self._settings.lake, folder)
        uri = table_uri(self._settings.lake, folder)
        found[folder] = orphaned_manifests([tables[name] for name in of_windows], place, uri)
        tell("orphans", len(tables) + 1, len(tables) + 1)
        return found

    def remove_orphans(self, orphans: Mapping[str, Sequence[Orphan]], grace: timedelta) -> list[Orphan]:
        """Delete those that are older than `grace`; which they were. Raises LakeError."""
        objects, now = open_objects(self._settings.lake), self._clock.now()
        removed = []
        for folder, of_folder in orphans.items():
            over = [orphan for orphan in of_folder if orphan.is_over(now, grace)]
            remove(over, objects, folder)
            removed += over
        return removed

    def are_mended(self, windows: Sequence[Window], since: Mapping[str, frozenset[str]]) -> list[Window]:
        """Of these windows, those that have other files now than they had `since`."""
        now = self.files_of(windows)
        return [window for window in windows if now[window.key] and now[window.key] != since[window.key]]

    def files_of(self, windows: Sequence[Window]) -> Mapping[str, frozenset[str]]:
        """The files that each window has now."""
        return self._lake.diffs().fence([window.key for window in windows]).files

    def _watermark(self) -> datetime | None:
        """Where the log says that the watermark is; None where there is none, or the log cannot be read."""
        try:
            decided = self._lake.tracking_log().newest_decision()
        except CorruptObject:
            return None
        return None if decided is None else decided.decision.watermark

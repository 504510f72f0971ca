"""The survey of a lake before a repair (windows, tracking log, orphans), and the note that replaces a lost entry."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from tidemark.pipeline.clock import Clock, format_duration
from tidemark.pipeline.errors import CorruptObject, ObjectMissing
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog, entry_name
from tidemark.pipeline.lake.store.read_ahead import read_ahead
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.integrity import Integrity, Progress, check_windows
from tidemark.pipeline.upkeep.orphans import GRACE, Orphan, find_orphans
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, Entry, Lost
from tidemark.pipeline.windows import Window, Windowing


@dataclass(frozen=True, slots=True)
class LogHealth:
    """The state of the tracking log: the number of entries read, the damaged or missing and the forgotten ones with
    their reasons, and the lost end."""

    read: int = 0
    damaged: Sequence[tuple[int, str]] = ()
    forgotten: Sequence[tuple[int, str]] = ()
    lost: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """True if the log needs no repair."""
        return not self.damaged and not self.lost


@dataclass(frozen=True, slots=True)
class Survey:
    """The findings of a survey of a lake."""

    integrity: Integrity
    log: LogHealth
    orphans: Sequence[Orphan]
    watermark: datetime | None

    @property
    def is_sound(self) -> bool:
        """True if nothing needs repair."""
        return not (self.needs_a_hand or self.integrity.broken or self.integrity.own or self.orphans)

    @property
    def needs_a_hand(self) -> bool:
        """True if something is wrong that recomputing windows and removing orphans cannot repair."""
        return bool(self.integrity.inputs or self.integrity.blocked or self.integrity.unknown) or not self.log.is_whole

    def runs(self, most: int) -> Iterator[Sequence[Window]]:
        """Yield the windows to recompute, for each run a contiguous stretch of at most `most` windows."""
        for stretch in self.integrity.repairable:
            for number in range(0, len(stretch), most):
                yield stretch[number : number + most]


@dataclass(frozen=True, slots=True)
class Flaw:
    """A flaw, as a word and a sentence. `is_grave`: a person has to repair it."""

    kind: str
    text: str
    is_grave: bool = False


def findings(survey: Survey, now: datetime) -> Iterator[Flaw]:
    """Yield all findings of a survey as flaws."""
    for broken in survey.integrity.broken:
        for reason in broken.reasons:
            yield Flaw(str(broken.fault), f"{broken.window.key}: {reason}")
        for block in broken.blocked_by:
            yield Flaw(str(broken.fault), f"{broken.window.key}: it cannot be computed now: {block}", True)
    for damaged in survey.integrity.inputs:
        first, last = damaged.windows[0].key, damaged.windows[-1].key
        made = f"Window {first} is made" if first == last else f"The windows {first} to {last} are made"
        remedy = "restore a backup of it, or the object's earlier generation"
        yield Flaw("damaged", f"{damaged.path}: {damaged.why}. {made} from it and cannot be computed: {remedy}", True)
    for own in survey.integrity.own:
        yield Flaw("damaged", f"{own.window} of {own.table}: {own.why}")
    for text in survey.integrity.unknown:
        yield Flaw("unknown", text, True)
    for number, why in survey.log.damaged:
        yield Flaw("log", f"entry {number}: {why}", True)
    for number, why in survey.log.forgotten:
        yield Flaw("log", f"entry {number} was forgotten: {why}")
    for text in survey.log.lost:
        yield Flaw("log", text, True)
    for orphan in survey.orphans:
        age = format_duration(timedelta(seconds=int((now - orphan.written_at).total_seconds())))
        yield Flaw("orphaned", f"{orphan.location}: {orphan.what} ({orphan.size} bytes, {age} old)")


class Surveyor:
    """Surveys one lake, and changes nothing."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.lake = Lake(settings.lake, settings.message.kinds, clock)
        self._settings = settings
        self._clock = clock
        self._kept = self.lake.kept_windows(settings.windowing)

    def range_of(self, first: Window | None, last: Window | None) -> tuple[datetime, datetime] | None:
        """Return the start of the first window and the end of the last one. None as an argument stands for the first
        window with a landed heartbeat, or the last closed window. Returns None if there is no such window. Raises
        ValueError if the last window is before the first."""
        if first is None or last is None:
            windowing, closed = self._settings.windowing, self._kept.closed(self._watermark())
            landed = self.lake.window_index(windowing, self._settings.windows.lookback).update().held.least
            if landed is None or not (closed := range(max(landed, closed.start), closed.stop)):
                return None
            first, last = first or windowing.numbered(closed[0]), last or windowing.numbered(closed[-1])
        if last < first:
            raise ValueError(f"the last window, {last.key}, is before the first, {first.key}")
        return first.start, last.end

    def look(
        self, start: datetime, end: datetime, *, grace: timedelta = GRACE, tell: Progress = lambda *_: None
    ) -> Survey:
        """Check the kept windows in `[start, end)`, the log from `start`, and all orphans older than `grace`. Raises
        LakeError if a table's own log cannot be read, or the lake is unreachable."""
        lake, watermark, now = self.lake, self._watermark(), self._clock.now()
        start = min(max(start, self._kept.since() or start), end)
        # A window that ends after the current time is left for later: Dagster's partitions end now.
        closed_at = None if watermark is None else min(watermark, now)
        integrity = check_windows(lake, self._settings, start, end, watermark=closed_at, tell=tell)
        log = check_log(lake.tracking_log(), start, tell)
        tell("orphans", 0, 1)
        orphans = find_orphans(lake, self._settings.lake, now - grace)
        return Survey(integrity, log, orphans, watermark)

    def _watermark(self) -> datetime | None:
        """Return the watermark from the log; None if there is none, or the log cannot be read."""
        try:
            decided = self.lake.tracking_log().newest_decision()
        except CorruptObject:
            return None
        return None if decided is None else decided.decision.watermark


def check_log(log: TrackingLog, since: datetime, tell: Progress = lambda *_: None) -> LogHealth:
    """Check the log back to a compacted entry before the decision in force at `since`: these entries suffice for a
    restart and for explaining the time since. Damage is returned, not raised. Raises LakeUnreachable."""
    numbers = log.numbers()
    damaged: list[tuple[int, str]] = []
    forgotten: list[tuple[int, str]] = []
    read, is_before, is_compacted = 0, False, False
    backwards = range(numbers[-1], numbers[0] - 1, -1) if numbers else ()
    for number, entry in read_ahead(partial(_entry_or_damage, log), backwards):
        read += 1
        is_compacted = isinstance(entry, Compacted)
        match entry:
            case str():
                damaged.append((number, entry))
            case Lost():
                forgotten.append((number, entry.what))
            case DecisionRecord():
                is_before = is_before or entry.decision.at <= since
            case Compacted() if is_before:
                break
        tell("entries of the tracking log", read, len(numbers))
    else:
        if numbers and numbers[0] and not is_compacted:  # after housekeeping, the first entry is a compacted one
            damaged.append((numbers[0] - 1, f"{entry_name(numbers[0] - 1)}, and what is before it, is missing"))
    lost = []
    if not damaged:
        try:
            log.catch_up_to_append()
        except CorruptObject as error:
            lost.append(str(error))
    return LogHealth(read, sorted(damaged), sorted(forgotten), lost)


def forget_entry(lake: Lake, windowing: Windowing, number: int) -> datetime | None:
    """Replace a log entry that cannot be repaired with a note of the loss. Assumption: no tracker runs. Returns a lower
    bound below which the watermark then does not go back: the maximum of the witness's note and the end of the newest
    computed window; None if there is neither. Raises LakeError."""
    log, computed = lake.tracking_log(), lake.diffs().computed()
    known = [log.watermark_noted()]
    if computed:
        with suppress(ValueError):  # the windows had another length
            known.append(windowing.named(max(computed)).end)
    floor = max((watermark for watermark in known if watermark is not None), default=None)
    log.forget(number, "an operator called it lost", floor)
    return floor


def _entry_or_damage(log: TrackingLog, number: int) -> Entry | str:
    """Return an entry, or what is wrong with it."""
    try:
        return log.entry(number)
    except ObjectMissing:
        return f"{entry_name(number)} is missing"
    except CorruptObject as error:
        return str(error)

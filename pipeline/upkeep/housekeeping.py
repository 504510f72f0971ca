"""Housekeeping: what deletes, packs or rewrites what a lake gathers in months.

The chores run one after the other. Each can be killed anywhere and run again, beside everything else. A chore that
fails is reported, and the others are done all the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial

from pipeline.clock import EPOCH, Clock, iso
from pipeline.durations import format_duration
from pipeline.errors import TidemarkError
from pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, PARTITIONS, QUARANTINE, STREAM_STATUS, Lake
from pipeline.lake.log.packing import LogPacking
from pipeline.lake.tables.heartbeats import HOUR_FORMAT
from pipeline.lake.tables.quarantine import DAY_FORMAT
from pipeline.settings import Settings
from pipeline.upkeep.compaction import compact, drop_partitions, trim
from pipeline.upkeep.orphans import find_orphans, remove_orphans
from pipeline.windows import due

PACKED_AFTER = timedelta(hours=1)
"""Entries of the tracking log stay single for so long, because people mostly look at the last minutes."""

SETTLED_AFTER = timedelta(minutes=15)
"""A partition is rewritten once the watermark (for quarantine: the clock) is so far beyond its end."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)

Done = tuple[str, dict[str, int]]
"""A sentence, and figures by name. Without figures there was nothing to do, and the sentence says why."""


@dataclass(frozen=True, slots=True)
class Chore:
    """What was done, or would be: its name, what it is about, a sentence, and figures by name. `is_idle`: there was
    nothing to do; `failed`: why it was not done."""

    name: str
    about: str
    says: str
    figures: dict[str, int] = field(default_factory=dict)
    is_idle: bool = False
    failed: str | None = None

    @property
    def sentence(self) -> str:
        """In words."""
        return f"{self.name}, {self.about}: {self.says if self.failed is None else f'not done: {self.failed}'}"


class Housekeeper:
    """Keeps one lake, by its settings. With `dry_run` it says what would be done, and changes nothing."""

    def __init__(self, settings: Settings, clock: Clock, *, dry_run: bool = False) -> None:
        self._settings = settings
        self._keep = settings.housekeeping
        self._clock = clock
        self._dry_run = dry_run
        self._lake = Lake(settings.lake, settings.message.fields, clock)
        self._packing = LogPacking(self._lake.objects())

    def chores(self) -> Iterator[Chore]:
        """Do every chore, and report each when it is done. An error of tidemark's own is reported, not raised."""
        every: Sequence[tuple[str, str, Callable[[], Iterator[Done]]]] = [
            ("retention", "windows", self._drop_windows),
            ("retention", QUARANTINE, self._drop_quarantine),
            ("retention", "tracking log", self._drop_log),
            ("packing", "tracking log", self._pack_log),
            ("compaction", HEARTBEATS, partial(self._compact, HEARTBEATS, "event_time")),
            ("compaction", QUARANTINE, partial(self._compact, QUARANTINE, "publish_time")),
            *(("earlier versions", name, partial(self._trim, name)) for name in PARTITIONS),
            ("orphans", "lake", self._remove_orphans),
        ]
        for name, about, do in every:
            try:
                for says, figures in do():
                    yield Chore(name, about, says, figures, is_idle=not figures)
            except TidemarkError as error:
                yield Chore(name, about, "", failed=str(error))

    def _drop_windows(self) -> Iterator[Done]:
        """Heartbeats and computed windows older than they are kept. Age is event time behind the watermark, so that
        what waits through an outage does not grow old."""
        keep, windowing, lake = self._keep, self._settings.windowing, self._lake
        if keep.heartbeats is None and keep.windows is None:
            yield "all are kept", {}
            return
        until = self._event_time_reached()
        if until is None:
            yield "there is no watermark yet", {}
            return
        hour = None if keep.heartbeats is None else _floor(until - keep.heartbeats, HOUR)
        first = None if keep.windows is None else _floor(until - keep.windows, windowing.length)
        needed = None if hour is None else _ceiling(hour + self._settings.windows.lookback, windowing.length)
        since = max(moment for moment in (first, needed) if moment is not None)
        begin = lake.kept_windows(windowing).begin(lake.heartbeats().extent().oldest_event_time)
        closed = [] if begin is None else windowing.closed_at(since, begin)
        waiting = due(closed, lake.diffs().computed(), lake.heartbeats().hours())
        if waiting:
            yield f"{len(waiting)} windows before {iso(since)} are not computed yet, the first is {waiting[0]}", {}
            return
        if not self._dry_run:
            lake.kept_windows(windowing).raise_to(windowing.containing(since))
        if hour is not None:
            yield self._dropped(HEARTBEATS, hour.strftime(HOUR_FORMAT), f"of event hours before {iso(hour)}")
        if first is not None:
            for name in (HEARTBEAT_DIFFS, STREAM_STATUS):
                yield self._dropped(name, windowing.containing(first).key, f"of windows before {iso(first)}")

    def _drop_quarantine(self) -> Iterator[Done]:
        if self._keep.quarantine is None:
            yield "all is kept", {}
            return
        day = _floor(self._clock.now() - self._keep.quarantine, DAY)
        yield self._dropped(QUARANTINE, day.strftime(DAY_FORMAT), f"of messages that were rejected before {iso(day)}")

    def _dropped(self, name: str, before: str, what: str) -> Done:
        did = drop_partitions(self._lake.table(name), before, dry_run=self._dry_run)
        if not did.partitions:
            return f"no rows of {name} {what}", {}
        return f"took {did.rows} rows {what} out of {name}: {did.partitions} partitions", asdict(did)

    def _drop_log(self) -> Iterator[Done]:
        if self._keep.log is None:
            yield "all of it is kept", {}
            return
        did = self._packing.drop(self._clock.now() - self._keep.log, dry_run=self._dry_run)
        if not did.dropped_archives:
            yield f"nothing of it is older than {format_duration(self._keep.log)}", {}
            return
        figures = {"entries": did.dropped_entries, "archives": did.dropped_archives}
        yield f"dropped {did.dropped_entries} entries in {did.dropped_archives} archives", figures

    def _pack_log(self) -> Iterator[Done]:
        did = self._packing.pack(self._clock.now() - PACKED_AFTER, dry_run=self._dry_run)
        if not did.entries and not did.leftovers:
            yield f"nothing before a compacted entry is older than {format_duration(PACKED_AFTER)}", {}
            return
        left = f", and deleted {did.leftovers} that were archived before" if did.leftovers else ""
        figures = {"entries": did.entries, "archives": did.archives, "leftovers": did.leftovers}
        yield f"moved {did.entries} entries to {did.archives} archives{left}", figures

    def _compact(self, name: str, order: str) -> Iterator[Done]:
        newest = self._newest_over(name)
        is_idle = True
        for did in compact(self._lake.table(name), lambda key: key <= newest, order, dry_run=self._dry_run):
            is_idle = False
            figures = {"files": did.files, "bytes": did.size}
            if self._dry_run:
                yield f"partition {did.partition} has {did.files} files, {did.size} bytes", figures
                continue
            yield (
                f"partition {did.partition}: {did.files} files ({did.size} bytes) became {did.files_after} "
                f"({did.size_after} bytes), in the order of {order}",
                figures | {"files_after": did.files_after, "bytes_after": did.size_after},
            )
        if is_idle:
            yield "no partition that is over has many small files", {}

    def _newest_over(self, name: str) -> str:
        """The newest partition that is over: an hour of `heartbeats` by the watermark, a day of `quarantine` by the
        clock. Empty if none is."""
        if name == QUARANTINE:
            return (self._clock.now() - SETTLED_AFTER - DAY).strftime(DAY_FORMAT)
        until = self._event_time_reached()
        return "" if until is None else (until - SETTLED_AFTER - HOUR).strftime(HOUR_FORMAT)

    def _trim(self, name: str) -> Iterator[Done]:
        did = trim(self._lake.table(name), self._keep.versions, dry_run=self._dry_run)
        ended = f"ended more than {format_duration(self._keep.versions)} ago"
        if not did.files and not did.commits:
            yield f"no version {ended}", {}
            return
        yield f"deleted {did.files} files and {did.commits} commits of versions that {ended}", asdict(did)

    def _remove_orphans(self) -> Iterator[Done]:
        found = find_orphans(self._lake, self._settings.lake, self._clock.now() - self._keep.orphans)
        if not found:
            yield f"no file that nothing names is older than {format_duration(self._keep.orphans)}", {}
            return
        if not self._dry_run:
            remove_orphans(found, self._lake.objects())
        size = sum(orphan.size for orphan in found)
        yield f"removed {len(found)} files that nothing names, {size} bytes", {"files": len(found), "bytes": size}

    def _event_time_reached(self) -> datetime | None:
        """The watermark, but not beyond the clock."""
        decided = self._lake.tracking_log().newest_decision()
        watermark = None if decided is None else decided.decision.watermark
        return None if watermark is None else min(watermark, self._clock.now())


def _floor(moment: datetime, width: timedelta) -> datetime:
    return moment - (moment - EPOCH) % width


def _ceiling(moment: datetime, width: timedelta) -> datetime:
    return moment + (EPOCH - moment) % width

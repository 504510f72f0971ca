"""Housekeeping: deletes, archives and rewrites data that accumulates in a lake over months.

Housekeeping consists of chores, which run one after the other. A failed chore does not stop the later ones. A chore may
be killed at any time, and may run concurrently with all other processes.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from tidemark.pipeline.clock import EPOCH, Clock, format_duration, iso
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import CORRECTIONS, HEARTBEATS, OWN_TABLES, PARTITIONS, QUARANTINE, Lake
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.tables.heartbeats import HOUR, HOUR_FORMAT
from tidemark.pipeline.lake.tables.table import DAY_FORMAT, VERSIONS_KEPT
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.orphans import GRACE, find_orphans, remove_orphans
from tidemark.pipeline.upkeep.table_chores import Done, Figures, compact, drop_partitions, of_each, trim
from tidemark.pipeline.windows import DAY

PACKED_AFTER = timedelta(hours=1)
"""Minimum age of the log entries that are archived. Users mostly look at younger entries."""

SETTLED_AFTER = timedelta(minutes=15)
"""The files of a partition are rewritten only after the watermark has passed the partition's end by this time. For
quarantine and corrections, the clock counts instead of the watermark."""

COMPACTED_FOR = timedelta(minutes=10)
"""Time after which a run of housekeeping stops rewriting a table. Without this limit, a table with thousands of
partitions could delay all later chores by a day."""

DONE = re.compile(r"\b(remove|delete|drop|move)(?:d|ped)(?= \d)")
"""Matches the past tense in a chore's report. In a dry run, `would` and the infinitive replace it."""


@dataclass(frozen=True, slots=True)
class Chore:
    """The result of a chore. `name` is the chore, and `about` the part of the lake. `says` and `figures` report what
    was done or, in a dry run, what would be done.

    `is_idle` is true if there was nothing to do. `failed` says why the chore failed, and `skipped` why it cannot be
    done here.
    """

    name: str
    about: str
    says: str
    figures: Figures = field(default_factory=dict)
    is_idle: bool = False
    failed: str | None = None
    skipped: str | None = None

    @property
    def sentence(self) -> str:
        why = self.skipped if self.failed is None else self.failed
        return f"{self.name}, {self.about}: {self.says if why is None else f'not done: {why}'}"


class Housekeeper:
    """Does the chores of one lake as the settings say. With `dry_run`, it changes nothing, and reports what it would
    do. `has_tables` is true if the pipeline has custom tables that the settings do not name."""

    def __init__(self, settings: Settings, clock: Clock, *, dry_run: bool = False, has_tables: bool = False) -> None:
        self._settings = settings
        self._has_tables = has_tables or bool(settings.tables)
        self._keep = settings.housekeeping
        self._clock = clock
        self._dry_run = dry_run
        self._lake = Lake(settings.lake, settings.message.kinds, clock)
        self._packing = LogPacking(self._lake.objects())

    def chores(self) -> Iterator[Chore]:
        """Do all chores, and yield each result as soon as it is available. If a chore raises a TidemarkError, its
        result contains the error's text."""
        keep, days = self._keep, self._drop_days
        every: Sequence[tuple[str, str, Callable[[], Iterator[Done]]]] = [
            ("retention", "windows", self._drop_windows),
            ("retention", QUARANTINE, partial(days, QUARANTINE, keep.quarantine, "messages that were rejected")),
            ("retention", CORRECTIONS, partial(days, CORRECTIONS, keep.windows, "changes that were noticed")),
            ("retention", "tracking log", self._drop_log),
            ("packing", "tracking log", self._pack_log),
            ("compaction", HEARTBEATS, partial(self._compact, HEARTBEATS, "event_time")),
            ("compaction", QUARANTINE, partial(self._compact, QUARANTINE, "publish_time")),
            ("compaction", CORRECTIONS, partial(self._compact, CORRECTIONS, "corrected_at")),
            *(("earlier versions", name, partial(self._trim, name)) for name in PARTITIONS),
            ("earlier versions", "tables", self._trim_own),
            ("orphans", "lake", self._remove_orphans),
        ]
        for name, about, do in every:
            try:
                for did, figures in do():
                    says = DONE.sub(r"would \1", did) if self._dry_run else did
                    yield Chore(name, about, says, figures, is_idle=not figures)
            except TidemarkError as error:
                yield Chore(name, about, "", failed=str(error))

    def _drop_windows(self) -> Iterator[Done]:
        """Remove the heartbeats and the windows that are older than the retention in the settings. Their age is
        measured from their event time to the watermark, so nothing expires during an outage."""
        keep, windowing, lake = self._keep, self._settings.windowing, self._lake
        if keep.heartbeats is None and keep.windows is None:
            yield "all are kept", {}
            return
        if (until := self._event_time_reached()) is None:
            yield "there is no watermark yet", {}
            return
        # Windows of custom tables last at most a day, so retention is rounded to whole days. Then no window is removed
        # before its end, and its heartbeats are kept until it has been closed for `keep.heartbeats`.
        by_day, lookback = self._has_tables or lake.own_tables(), self._settings.windows.lookback
        first = None if keep.windows is None else _floor(until - keep.windows, DAY if by_day else windowing.length)
        hour = None if keep.heartbeats is None else until - keep.heartbeats
        if hour is not None and by_day:
            hour = _floor(_floor(hour, DAY) - lookback, HOUR)
        elif hour is not None:  # the first window that is still open also needs its lookback
            hour = _floor(min(hour, _floor(until, windowing.length) - lookback), HOUR)
        # Rounded up to the start of a window.
        needed = None if hour is None else hour + lookback + (EPOCH - hour - lookback) % windowing.length
        since = max(moment for moment in (first, needed) if moment is not None)
        kept, before = lake.kept_windows(windowing), windowing.number_of(since)
        due = lake.window_index(windowing).update().due(kept.closed(until))
        waiting = [range(part.start, min(part.stop, before)) for part in due if part.start < before]
        if waiting:
            many = counted(sum(map(len, waiting)), "window")
            says = f"nothing is deleted yet, because {many} before {iso(since)} must be computed first"
            yield f"{says}; the first is {windowing.numbered(waiting[-1].start)}", {}
            return
        if not self._dry_run:
            kept.raise_to(windowing.containing(since), hour)
        if hour is not None:
            yield self._dropped(HEARTBEATS, hour.strftime(HOUR_FORMAT), f"of event hours before {iso(hour)}")
        if first is not None:
            before_key, what = windowing.containing(first).key, f"of windows before {iso(first)}"
            yield from of_each(self._lake.by_window(), lambda name: [self._dropped(name, before_key, what)])

    def _drop_days(self, name: str, keep: timedelta | None, what: str) -> Iterator[Done]:
        if keep is None:
            yield "all are kept", {}
            return
        day = _floor(self._time_reached() - keep, DAY)
        before, what = day.strftime(DAY_FORMAT), f"of {what} before {iso(day)}"
        yield self._dropped(name, before, what)
        kinds = (self._lake.requeued(), self._lake.rejudged()) if name == QUARANTINE else ()
        if notes := sum(kind.forget_before(before, dry_run=self._dry_run) for kind in kinds):
            yield f"deleted {counted(notes, 'note')} about requeues {what}", {"notes": notes}

    def _dropped(self, name: str, before: str, what: str) -> Done:
        did = drop_partitions(self._lake.table(name), before, dry_run=self._dry_run)
        says = f"removed {counted(did['rows'], 'row')} {what} from {name}: {counted(did['partitions'], 'partition')}"
        return _done(did, says, f"{name} has no rows {what}")

    def _drop_log(self) -> Iterator[Done]:
        if self._keep.log is None:
            yield "the whole log is kept, because housekeeping.log is empty", {}
            return
        did = self._packing.drop(self._time_reached() - self._keep.log, self._clock.now(), dry_run=self._dry_run)
        says = f"dropped {did['entries']:,} entries in {counted(did['archives'], 'archive')}"
        yield _done(did, says, f"no archive is older than {format_duration(self._keep.log)}")

    def _pack_log(self) -> Iterator[Done]:
        now = self._clock.now()
        did = self._packing.pack(now - PACKED_AFTER, now, dry_run=self._dry_run)
        gone = did["leftovers"]
        left = f", and deleted {counted(gone, 'leftover object')} of archived entries" if gone else ""
        says = f"moved {did['entries']:,} entries to {counted(did['archives'], 'archive')}{left}"
        yield _done(did, says, f"no further entries older than {format_duration(PACKED_AFTER)} can be archived")

    def _compact(self, name: str, order: str) -> Iterator[Done]:
        is_idle, ends_at = True, self._clock.monotonic() + COMPACTED_FOR.total_seconds()
        for partition, did in compact(self._lake.table(name), self._newest_over(name), order, dry_run=self._dry_run):
            is_idle, before = False, f"{did['files']} small files ({did['bytes']} bytes)"
            if self._dry_run:
                yield f"partition {partition} has {before}", did
                continue
            after = f"{did['files_after']} ({did['bytes_after']} bytes), sorted by {order}"
            yield f"partition {partition}: {before} became {after}", did
            if self._clock.monotonic() >= ends_at:
                yield f"stopped after {format_duration(COMPACTED_FOR)}: the next run continues", {"stopped": 1}
                break
        if is_idle:
            yield "no finished partition has many small files", {}

    def _newest_over(self, name: str) -> str:
        """Return the newest finished partition of the table `name`. The clock decides whether a partition by day is
        finished; for all others, the watermark decides. Return an empty string if there is no watermark."""
        if name in (QUARANTINE, CORRECTIONS):
            return (self._clock.now() - SETTLED_AFTER - DAY).strftime(DAY_FORMAT)
        until = self._event_time_reached()
        return "" if until is None else (until - SETTLED_AFTER - HOUR).strftime(HOUR_FORMAT)

    def _trim(self, name: str, said_first: str = "") -> Iterator[Done]:
        did = trim(self._lake.table(name), VERSIONS_KEPT, dry_run=self._dry_run)
        files, ended = counted(did["files"], "file"), f"ended more than {format_duration(VERSIONS_KEPT)} ago"
        says = f"deleted {files} and {counted(did['commits'], 'commit')} of versions that {ended}"
        yield _done(did, f"{said_first}{says}", f"{said_first}no version {ended}")

    def _trim_own(self) -> Iterator[Done]:
        return of_each(self._lake.own_tables(), lambda name: self._trim(f"{OWN_TABLES}/{name}", f"{name}: "))

    def _remove_orphans(self) -> Iterator[Done]:
        found = find_orphans(self._lake, self._settings.lake, self._clock.now())
        gone = [orphan for orphan in found if not orphan.may_have_landed]
        if not self._dry_run:
            remove_orphans(gone, self._lake.objects())
        figures = {"files": len(gone), "bytes": sum(orphan.size for orphan in gone)}
        kept = len(found) - len(gone)
        left = f"{counted(kept, 'file')} may contain landed messages (see `tidemark repair`); " if kept else ""
        says = f"{left}deleted {counted(len(gone), 'unreferenced file')}, {figures['bytes']} bytes"
        yield _done(figures, says, f"{left}no unreferenced file older than {format_duration(GRACE)} can be deleted")

    def _time_reached(self) -> datetime:
        """Return the current time, or the newest reading of tracking if that is earlier. The reading is a time of
        Pub/Sub's clock, and so prevents early deletions if this machine's clock is far ahead."""
        record, now = self._lake.tracking_log().newest().record, self._clock.now()
        tracking = None if record is None else record.decision.tracking
        return now if tracking is None else min(now, tracking.oldest_unacked)

    def _event_time_reached(self) -> datetime | None:
        """Return the watermark, or the current time if that is earlier; None if there is no watermark."""
        watermark = self._lake.tracking_log().newest().watermark
        return None if watermark is None else min(watermark, self._clock.now())


def _done(figures: Figures, says: str, otherwise: str) -> Done:
    return (says, figures) if any(figures.values()) else (otherwise, {})


def _floor(moment: datetime, width: timedelta) -> datetime:
    return moment - (moment - EPOCH) % width

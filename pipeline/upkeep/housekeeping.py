"""Housekeeping: deletes, packs and rewrites what a lake accumulates over months.

The chores run one after the other; a failed one does not stop the rest. Each may be killed at any point, and may run
concurrently with everything else.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from functools import partial

from tidemark.pipeline.clock import EPOCH, Clock, format_duration, iso
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.layout import CORRECTIONS, HEARTBEATS, OWN_TABLES, PARTITIONS, QUARANTINE, Lake
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.tables.heartbeats import HOUR, HOUR_FORMAT
from tidemark.pipeline.lake.tables.table import DAY_FORMAT
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.upkeep.compaction import compact, drop_partitions, trim
from tidemark.pipeline.upkeep.orphans import GRACE, find_orphans, remove_orphans
from tidemark.pipeline.windows import DAY

PACKED_AFTER = timedelta(hours=1)
"""Log entries are not archived for this time, because people mostly look at the last minutes."""

SETTLED_AFTER = timedelta(minutes=15)
"""A partition is rewritten once the watermark (for quarantine and corrections: the clock) is this far past its end."""

VERSIONS_KEPT = timedelta(days=7)
"""Time that earlier versions of tables are kept, with the files replaced by compactions and recomputations: longer than
any reader needs a version, and long enough to look back at last week's."""

COMPACTED_FOR = timedelta(minutes=10)
"""Maximum time for rewriting one table per run, the newest partitions first: a table of thousands of event hours would
take the whole day, and all later chores would wait."""

Done = tuple[str, dict[str, int]]
"""A sentence, and figures by name. Without figures, there was nothing to do, and the sentence says why."""


@dataclass(frozen=True, slots=True)
class Chore:
    """A result of housekeeping (in a dry run: planned), as a sentence and figures. `is_idle`: there was nothing to do;
    `failed`: why it failed; `skipped`: why it cannot be done here."""

    name: str
    about: str
    says: str
    figures: dict[str, int] = field(default_factory=dict)
    is_idle: bool = False
    failed: str | None = None
    skipped: str | None = None

    @property
    def sentence(self) -> str:
        """The result in words, with the chore's name."""
        why = self.skipped if self.failed is None else self.failed
        return f"{self.name}, {self.about}: {self.says if why is None else f'not done: {why}'}"


class Housekeeper:
    """Does the chores of one lake, by its settings. With `dry_run`, reports what would be done, and changes nothing."""

    def __init__(self, settings: Settings, clock: Clock, *, dry_run: bool = False) -> None:
        self._settings = settings
        self._keep = settings.housekeeping
        self._clock = clock
        self._dry_run = dry_run
        self._lake = Lake(settings.lake, settings.message.kinds, clock)
        self._packing = LogPacking(self._lake.objects())

    def chores(self) -> Iterator[Chore]:
        """Do every chore, and yield its results as they are ready. A TidemarkError is reported, not raised."""
        every: Sequence[tuple[str, str, Callable[[], Iterator[Done]]]] = [
            ("retention", "windows", self._drop_windows),
            (
                "retention",
                QUARANTINE,
                partial(self._drop_days, QUARANTINE, self._keep.quarantine, "messages that were rejected"),
            ),
            (
                "retention",
                CORRECTIONS,
                partial(self._drop_days, CORRECTIONS, self._keep.windows, "changes that were noticed"),
            ),
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
                for says, figures in do():
                    yield Chore(name, about, says, figures, is_idle=not figures)
            except TidemarkError as error:
                yield Chore(name, about, "", failed=str(error))

    def _drop_windows(self) -> Iterator[Done]:
        """Drop heartbeats and windows by the age of their event time relative to the watermark, so that an outage does
        not age them."""
        keep, windowing, lake = self._keep, self._settings.windowing, self._lake
        if keep.heartbeats is None and keep.windows is None:
            yield "all are kept", {}
            return
        until = self._event_time_reached()
        if until is None:
            yield "no watermark exists yet", {}
            return
        hour = None if keep.heartbeats is None else _floor(until - keep.heartbeats, HOUR)
        # Windows of custom tables last a day at most: with whole days, no window is removed before its end.
        width = DAY if lake.own_tables() else windowing.length
        first = None if keep.windows is None else _floor(until - keep.windows, width)
        needed = None if hour is None else _ceiling(hour + self._settings.windows.lookback, windowing.length)
        since = max(moment for moment in (first, needed) if moment is not None)
        kept, before = lake.kept_windows(windowing), windowing.number_of(since)
        due = lake.window_index(windowing, self._settings.windows.lookback).update().due(kept.closed(until))
        waiting = [range(part.start, min(part.stop, before)) for part in due if part.start < before]
        if waiting:
            first_of_them = windowing.numbered(waiting[-1].start)
            many = sum(map(len, waiting))
            yield f"{many} windows before {iso(since)} are not computed yet, the first is {first_of_them}", {}
            return
        if not self._dry_run:
            kept.raise_to(windowing.containing(since))
        if hour is not None:
            yield self._dropped(HEARTBEATS, hour.strftime(HOUR_FORMAT), f"of event hours before {iso(hour)}")
        if first is not None:
            for name in self._lake.by_window():
                yield self._dropped(name, windowing.containing(first).key, f"of windows before {iso(first)}")

    def _drop_days(self, name: str, keep: timedelta | None, what: str) -> Iterator[Done]:
        if keep is None:
            yield "all are kept", {}
            return
        day = _floor(self._clock.now() - keep, DAY)
        before, what = day.strftime(DAY_FORMAT), f"of {what} before {iso(day)}"
        yield self._dropped(name, before, what)
        kinds = (self._lake.requeued(), self._lake.rejudged()) if name == QUARANTINE else ()
        if notes := sum(kind.forget_before(before, dry_run=self._dry_run) for kind in kinds):
            yield f"deleted {notes} notes of requeues {what}", {"notes": notes}

    def _dropped(self, name: str, before: str, what: str) -> Done:
        did = drop_partitions(self._lake.table(name), before, dry_run=self._dry_run)
        says = f"took {did.rows} rows {what} out of {name}: {did.partitions} partitions"
        return _done(asdict(did), says, f"no rows of {name} {what}")

    def _drop_log(self) -> Iterator[Done]:
        if self._keep.log is None:
            yield "all of it is kept", {}
            return
        did = self._packing.drop(self._clock.now() - self._keep.log, dry_run=self._dry_run)
        says = f"dropped {did.entries} entries in {did.archives} archives"
        figures = {"entries": did.entries, "archives": did.archives}
        yield _done(figures, says, f"nothing of it is older than {format_duration(self._keep.log)}")

    def _pack_log(self) -> Iterator[Done]:
        did = self._packing.pack(self._clock.now() - PACKED_AFTER, dry_run=self._dry_run)
        left = f", and deleted {did.leftovers} that were archived before" if did.leftovers else ""
        says = f"moved {did.entries} entries to {did.archives} archives{left}"
        yield _done(
            asdict(did), says, f"nothing before a compacted entry is older than {format_duration(PACKED_AFTER)}"
        )

    def _compact(self, name: str, order: str) -> Iterator[Done]:
        is_idle, ends_at = True, self._clock.monotonic() + COMPACTED_FOR.total_seconds()
        for did in compact(self._lake.table(name), self._newest_over(name), order, dry_run=self._dry_run):
            is_idle, before = False, f"{did.files} files ({did.size} bytes)"
            figures = {"files": did.files, "bytes": did.size}
            if self._dry_run:
                yield f"partition {did.partition} has {before}", figures
                continue
            figures |= {"files_after": did.files_after, "bytes_after": did.size_after}
            after = f"{did.files_after} ({did.size_after} bytes), in the order of {order}"
            yield f"partition {did.partition}: {before} became {after}", figures
            if self._clock.monotonic() >= ends_at:
                yield f"stopped after {format_duration(COMPACTED_FOR)}: the next run continues", {"stopped": 1}
                break
        if is_idle:
            yield "no finished partition has many small files", {}

    def _newest_over(self, name: str) -> str:
        """Return the newest partition that is over, by the watermark or, for partitions by day, by the clock. Empty if
        there is no watermark."""
        if name in (QUARANTINE, CORRECTIONS):
            return (self._clock.now() - SETTLED_AFTER - DAY).strftime(DAY_FORMAT)
        until = self._event_time_reached()
        return "" if until is None else (until - SETTLED_AFTER - HOUR).strftime(HOUR_FORMAT)

    def _trim(self, name: str) -> Iterator[Done]:
        did = trim(self._lake.table(name), VERSIONS_KEPT, dry_run=self._dry_run)
        ended = f"ended more than {format_duration(VERSIONS_KEPT)} ago"
        says = f"deleted {did.files} files and {did.commits} commits of versions that {ended}"
        yield _done(asdict(did), says, f"no version {ended}")

    def _trim_own(self) -> Iterator[Done]:
        for name in self._lake.own_tables():
            for says, figures in self._trim(f"{OWN_TABLES}/{name}"):
                yield f"{name}: {says}", figures

    def _remove_orphans(self) -> Iterator[Done]:
        found = find_orphans(self._lake, self._settings.lake, self._clock.now() - GRACE)
        if not self._dry_run:
            remove_orphans(found, self._lake.objects())
        figures = {"files": len(found), "bytes": sum(orphan.size for orphan in found)}
        says = f"removed {len(found)} files that nothing names, {figures['bytes']} bytes"
        yield _done(figures, says, f"no file that nothing names is older than {format_duration(GRACE)}")

    def _event_time_reached(self) -> datetime | None:
        """Return the watermark, but not beyond the current time."""
        watermark = self._lake.tracking_log().newest_watermark()
        return None if watermark is None else min(watermark, self._clock.now())


def _done(figures: dict[str, int], says: str, otherwise: str) -> Done:
    """Return the sentence and the figures or, if all figures are 0, why there was nothing to do."""
    return (says, figures) if any(figures.values()) else (otherwise, {})


def _floor(moment: datetime, width: timedelta) -> datetime:
    return moment - (moment - EPOCH) % width


def _ceiling(moment: datetime, width: timedelta) -> datetime:
    return moment + (EPOCH - moment) % width

"""Housekeeping: what a lake gathers in months is brought down to what somebody may still ask for.

Chores, one after the other, each of which can be killed anywhere and run again, at the same time as everything else.
What one of them cannot do is told, and keeps none of the others from being done.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from pipeline.clock import EPOCH, Clock, iso
from pipeline.durations import format_duration
from pipeline.errors import TidemarkError
from pipeline.lake.layout import HEARTBEAT_DIFFS, HEARTBEATS, QUARANTINE, STREAM_STATUS, STREAMS, Lake
from pipeline.lake.log.packing import LogPacking
from pipeline.lake.store.address import open_objects
from pipeline.lake.tables.heartbeats import HOUR_FORMAT
from pipeline.lake.tables.quarantine import DAY_FORMAT
from pipeline.settings import Settings
from pipeline.upkeep.compaction import Dropped, compact, drop_partitions, trim
from pipeline.upkeep.leftovers import leftovers, remove_leftovers
from pipeline.upkeep.repair import Surveyor
from pipeline.windows import Window, due

PACKED_AFTER = timedelta(hours=1)
"""Entries of the tracking log stay single for so long: what people look at is of the last minutes."""

SETTLED_AFTER = timedelta(minutes=15)
"""A partition is written anew once the watermark (of quarantine: the clock) is so far beyond its end."""

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Chore:
    """What was done, or would be: its name, what it is about, a sentence, and figures by name. `is_idle`: nothing was
    to be done; `failed`: why it was not done."""

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
    """Keeps one lake, by its settings. `dry_run` says what would be done, and changes nothing."""

    def __init__(self, settings: Settings, clock: Clock, *, dry_run: bool = False) -> None:
        self._settings = settings
        self._keep = settings.housekeeping
        self._clock = clock
        self._dry_run = dry_run
        self._lake = Lake(settings.lake, settings.message.fields, clock)
        self._objects = open_objects(settings.lake)
        self._packing = LogPacking(self._objects)

    def chores(self) -> Iterator[Chore]:
        """Do what is to be done, and tell each as it is done. Raises nothing of tidemark's own: it is told."""
        every: Sequence[tuple[str, str, Callable[[], Iterator[Chore]]]] = [
            ("retention", "windows", self._drop_windows),
            ("retention", QUARANTINE, self._drop_quarantine),
            ("retention", "tracking log", self._drop_log),
            ("packing", "tracking log", self._pack_log),
            ("compaction", HEARTBEATS, partial(self._compact, HEARTBEATS)),
            ("compaction", QUARANTINE, partial(self._compact, QUARANTINE)),
            *(
                ("earlier versions", name, partial(self._trim, name))
                for name in (HEARTBEATS, QUARANTINE, HEARTBEAT_DIFFS, STREAM_STATUS, STREAMS)
            ),
            ("orphans", "tables", self._remove_orphans),
            ("leftovers", "lake", self._remove_leftovers),
        ]
        for name, about, do in every:
            try:
                yield from (Chore(name, about, one.says, one.figures, one.is_idle) for one in do())
            except TidemarkError as error:
                yield Chore(name, about, "", failed=str(error))

    # Retention

    def _drop_windows(self) -> Iterator[Chore]:
        """Heartbeats and computed windows that are older than they are kept, by event time behind the watermark: what
        waits through an outage does not grow old."""
        keep, windowing = self._keep, self._settings.windowing
        if keep.heartbeats is None and keep.windows is None:
            yield _idle("all are kept")
            return
        until = self._until()
        if until is None:
            yield _idle("there is no watermark yet")
            return
        hour = None if keep.heartbeats is None else _floor(until - keep.heartbeats, HOUR)
        first = None if keep.windows is None else windowing.containing(until - keep.windows).start
        needed = None if hour is None else _ceiling(hour + self._settings.windows.lookback, windowing.length)
        since = max(moment for moment in (first, needed) if moment is not None)
        waiting = self._waiting(since)
        if waiting:
            yield _idle(f"{len(waiting)} windows before {iso(since)} are not computed yet, the first is {waiting[0]}")
            return
        if not self._dry_run:
            self._lake.kept_windows(windowing).raise_to(windowing.containing(since))
        if hour is not None:
            yield self._dropped(HEARTBEATS, hour.strftime(HOUR_FORMAT), f"of event hours before {iso(hour)}")
        if first is not None:
            for name in (HEARTBEAT_DIFFS, STREAM_STATUS):
                key = windowing.containing(first).key
                yield self._dropped(name, key, f"of windows before {iso(first)}")

    def _waiting(self, since: datetime) -> list[Window]:
        """The windows before a moment that are closed and to be computed."""
        lake = self._lake
        windowing = self._settings.windowing
        first = lake.kept_windows(windowing).begin(lake.heartbeats().extent().oldest_event_time)
        closed = [] if first is None else windowing.closed_at(since, first)
        return due(closed, lake.diffs().computed(), lake.heartbeats().hours())

    def _drop_quarantine(self) -> Iterator[Chore]:
        if self._keep.quarantine is None:
            yield _idle("all is kept")
            return
        day = _floor(self._clock.now() - self._keep.quarantine, DAY)
        yield self._dropped(QUARANTINE, day.strftime(DAY_FORMAT), f"of messages that were rejected before {iso(day)}")

    def _dropped(self, name: str, before: str, what: str) -> Chore:
        did: Dropped = drop_partitions(self._lake.table(name), before, dry_run=self._dry_run)
        if not did.partitions:
            return _idle(f"no rows of {name} {what}")
        return _done(
            f"took {did.rows} rows {what} out of {name}: {did.partitions} partitions",
            {"partitions": did.partitions, "rows": did.rows, "bytes": did.size},
        )

    def _drop_log(self) -> Iterator[Chore]:
        if self._keep.log is None:
            yield _idle("all of it is kept")
            return
        did = self._packing.drop(self._clock.now() - self._keep.log, dry_run=self._dry_run)
        if not did.dropped_archives:
            yield _idle(f"nothing of it is older than {format_duration(self._keep.log)}")
            return
        yield _done(
            f"dropped {did.dropped_entries} entries in {did.dropped_archives} archives",
            {"entries": did.dropped_entries, "archives": did.dropped_archives},
        )

    # What stays, smaller

    def _pack_log(self) -> Iterator[Chore]:
        did = self._packing.pack(self._clock.now() - PACKED_AFTER, dry_run=self._dry_run)
        if not did.entries and not did.leftovers:
            yield _idle(f"nothing before a compacted entry is older than {format_duration(PACKED_AFTER)}")
            return
        left = f", and deleted {did.leftovers} that were archived before" if did.leftovers else ""
        yield _done(
            f"moved {did.entries} entries to {did.archives} archives{left}",
            {"entries": did.entries, "archives": did.archives, "leftovers": did.leftovers},
        )

    def _compact(self, name: str) -> Iterator[Chore]:
        is_over, order = (
            (self._is_hour_over(), "event_time") if name == HEARTBEATS else (self._is_day_over(), "publish_time")
        )
        is_idle = True
        for did in compact(self._lake.table(name), is_over, order, dry_run=self._dry_run):
            is_idle = False
            figures = {"files": did.files, "bytes": did.size}
            if self._dry_run:
                yield _done(f"partition {did.partition} has {did.files} files, {did.size} bytes", figures)
                continue
            figures |= {"files_after": did.files_after, "bytes_after": did.size_after}
            yield _done(
                f"partition {did.partition}: {did.files} files ({did.size} bytes) became {did.files_after} "
                f"({did.size_after} bytes), in the order of {order}",
                figures,
            )
        if is_idle:
            yield _idle("no partition that is over has many small files")

    def _is_hour_over(self) -> Callable[[str], bool]:
        until = self._until()
        limit = None if until is None else (until - SETTLED_AFTER - HOUR).strftime(HOUR_FORMAT)
        return lambda hour: limit is not None and hour <= limit

    def _is_day_over(self) -> Callable[[str], bool]:
        limit = (self._clock.now() - SETTLED_AFTER - DAY).strftime(DAY_FORMAT)
        return lambda day: day <= limit

    def _trim(self, name: str) -> Iterator[Chore]:
        did = trim(self._lake.table(name), self._keep.versions, dry_run=self._dry_run)
        if not did.files and not did.commits:
            yield _idle(f"no version ended more than {format_duration(self._keep.versions)} ago")
            return
        yield _done(
            f"deleted {did.files} files and {did.commits} commits of versions that ended more than "
            f"{format_duration(self._keep.versions)} ago",
            {"files": did.files, "commits": did.commits},
        )

    # What nobody asked for

    def _remove_orphans(self) -> Iterator[Chore]:
        surveyor, grace = Surveyor(self._settings, self._clock), self._keep.orphans
        found = surveyor.orphans(lambda *_: None)
        now = self._clock.now()
        over = [orphan for orphans in found.values() for orphan in orphans if orphan.is_over(now, grace)]
        young = sum(map(len, found.values())) - len(over)
        waits = f"; {young} are younger than {format_duration(grace)}: they may be of a run under way" if young else ""
        if not over:
            yield _idle(f"no file that no version lists is older than {format_duration(grace)}{waits}")
            return
        if not self._dry_run:
            surveyor.remove_orphans(found, grace)
        size = sum(orphan.size for orphan in over)
        yield _done(f"removed {len(over)} files, {size} bytes{waits}", {"files": len(over), "bytes": size})

    def _remove_leftovers(self) -> Iterator[Chore]:
        """Manifests of drains that were killed, and what writes that were killed have begun."""
        found = leftovers(self._settings.lake, self._clock.now(), self._keep.orphans)
        if not found:
            yield _idle("none is old enough")
            return
        if not self._dry_run:
            remove_leftovers(found, self._objects)
        yield _done(f"removed {len(found)} files that killed drains and writes left behind", {"files": len(found)})

    def _until(self) -> datetime | None:
        """How far event time has come for certain: the watermark, and not beyond the clock."""
        decided = self._lake.tracking_log().newest_decision()
        watermark = None if decided is None else decided.decision.watermark
        return None if watermark is None else min(watermark, self._clock.now())


def _idle(says: str) -> Chore:
    return Chore("", "", says, is_idle=True)


def _done(says: str, figures: dict[str, int]) -> Chore:
    return Chore("", "", says, figures)


def _floor(moment: datetime, width: timedelta) -> datetime:
    return moment - (moment - EPOCH) % width


def _ceiling(moment: datetime, width: timedelta) -> datetime:
    floor = _floor(moment, width)
    return floor if floor == moment else floor + width

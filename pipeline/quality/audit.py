"""Loss outside of the pipeline: messages that tracking saw, base has passed, and that never landed.

A seek forward, an expiry, or another consumer that acknowledges on base takes messages away unseen. Tracking received
them as well, so the histogram shows, by publish second and event second, that they were there.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.lake.log.history import decision_in_force
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.heartbeats import HOUR_FORMAT, Heartbeats
from tidemark.pipeline.lake.tables.quarantine import Quarantine
from tidemark.pipeline.quality.outstanding import cells_between, distinct_messages, with_seconds, without_requeued
from tidemark.pipeline.replay.log_ticks import recorded_ticks
from tidemark.pipeline.watermark.histogram import COPY, NO_EVENT, Histogram, Ints, bucket_of, bucket_start, grouped
from tidemark.pipeline.watermark.state import DecisionRecord, Snapshot

SECONDS_A_MINUTE, SECONDS_AN_HOUR = 60, 3600
AT_ONCE = 10 * SECONDS_A_MINUTE
"""Publish seconds whose landed messages are in memory at a time."""


@dataclass(frozen=True, slots=True)
class AuditedMinute:
    """A minute of publish time: how many messages tracking counted, how many landed, and between which bounds is the
    number of those that are lost. `minute` is its beginning."""

    minute: datetime
    tracked: int
    landed: int
    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Losses among the messages published in `[since, before)`, all of which base has passed. `minutes` are those in
    which something may be lost.

    `at_least` is certain: a cell of the histogram is occupied, and no landed message could have occupied it. `at_most`
    is certain if tracking saw everything. It is higher than the truth where tracking counted redeliveries, which cannot
    be told from a lost message of the same second. `damaged` has the files of `heartbeats` that cannot be read, with
    their event hours: of what these hours may hold, nothing counts.
    """

    since: datetime | None = None
    before: datetime | None = None
    tracked: int = 0
    landed: int = 0
    minutes: Sequence[AuditedMinute] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def at_least(self) -> int:
        """The number of messages that are lost for certain."""
        return sum(minute.at_least for minute in self.minutes)

    @property
    def at_most(self) -> int:
        """The largest number of messages that can be lost."""
        return sum(minute.at_most for minute in self.minutes)


def audit(
    log: TrackingLog, heartbeats: Heartbeats, quarantine: Quarantine, passed_since: datetime | None = None
) -> Audit:
    """Audit what base has passed since a moment (None: everything that the log still covers).

    Guarantee: a message that counts as lost for certain was published, is not outstanding on base, and is in neither
    table. Assumptions: the decisions' readings of base are right after slack, and both subscriptions judge messages by
    the same contract. Raises LakeError.
    """
    passed = _passed(decision_in_force(log))
    if passed is None:
        return Audit()
    from_then = None if passed_since is None else _passed(decision_in_force(log, passed_since))
    tracked = _tracked(log, passed_since)
    oldest = int(tracked.publish_bucket.min(initial=passed))
    since = oldest if from_then is None else from_then
    minutes, damaged = list[AuditedMinute](), dict[str, str]()
    for low in range(since - since % AT_ONCE, passed, AT_ONCE):
        start, end = max(low, since), min(low + AT_ONCE, passed)
        cells = cells_between(tracked, start, end)
        if len(cells):
            seconds, unread = _compared(cells, heartbeats, quarantine, start, end)
            minutes += _of_minutes(start, seconds)
            damaged |= unread
    return Audit(
        since=bucket_start(since),
        before=bucket_start(max(since, passed)),
        tracked=sum(minute.tracked for minute in minutes),
        landed=sum(minute.landed for minute in minutes),
        minutes=[minute for minute in minutes if minute.at_most],
        damaged=damaged,
    )


def _passed(numbered: tuple[int, DecisionRecord] | None) -> int | None:
    """The publish second below which base has nothing outstanding, by what the decision knew."""
    if numbered is None or (base := numbered[1].decision.base) is None:
        return None
    return bucket_of(base.oldest_unacked - numbered[1].policy.base_slack)


def _tracked(log: TrackingLog, since: datetime | None) -> Histogram:
    """The live cells of a moment and all later ones: they cover every message that base had not passed by then."""
    state, ticks = recorded_ticks(log, since)
    histogram = state.histogram
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Snapshot):
                histogram += entry.histogram
    return histogram


def _compared(
    cells: pa.Table, heartbeats: Heartbeats, quarantine: Quarantine, start: int, end: int
) -> tuple[Ints, Mapping[str, str]]:
    """A row for each publish second from `start` on: tracked, landed, lost at least, lost at most; and the damaged
    files with their event hours, of which nothing counts. A landed heartbeat
    fills its own cell, by its clamped event time as by its own: logs from before the clamp have that one. A rejected
    message, whose event time is not kept, may have filled any cell of its second. A cell of rejected messages counts as
    lost only if nothing at all landed from its second; a cell of copies never, because a redelivery may be in it."""
    times, damaged = (bucket_start(start), bucket_start(end)), dict[str, str]()
    good = heartbeats.published_between(*times, ("message_id", "publish_time", "event_time"), damaged)
    of_good, of_bad = with_seconds(good), with_seconds(quarantine.published_between(*times))
    if damaged:
        cells, of_good = (
            _without(set(damaged.values()), rows, event) for rows, event in ((cells, "event"), (of_good, "counted"))
        )

    def by_second(rows: pa.Table, weights: str | None = None) -> Ints:
        weight = None if weights is None else rows[weights].to_numpy()
        counted: Ints = np.bincount(rows["second"].to_numpy() - start, weight, minlength=end - start).astype(np.int64)
        return counted

    rejected = by_second(distinct_messages(of_bad))
    counted = without_requeued(of_good.select(of_bad.column_names), of_bad, heartbeats, quarantine, *times, damaged)
    landed = by_second(distinct_messages(pa.concat_tables([counted, of_bad])))
    has_event = pc.greater(cells["event"], COPY)
    empty = cells.filter(has_event)
    if "event" in of_good.column_names:
        for event in ("event", "counted"):
            empty = empty.join(
                of_good, ["second", "event"], ["second", event], join_type="left anti", use_threads=False
            )
    unreadable = by_second(cells.filter(pc.equal(cells["event"], NO_EVENT)))
    # Where a file is damaged, it may have what landed from that second.
    nothing_landed = (landed == 0) & (not damaged)
    at_least = np.maximum(by_second(empty) - rejected, 0) + np.where(nothing_landed, unreadable, 0)
    tracked = by_second(cells, "count")
    return np.stack([tracked, landed, at_least, np.maximum(tracked - landed, at_least)], axis=1), damaged


def _without(hours: Collection[str], rows: pa.Table, event: str) -> pa.Table:
    """The rows without those that may be of one of these event hours, by the event second that tracking counted: where
    that is the publish second, the event time may lie in any later hour."""
    begins = np.array([bucket_of(datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)) for hour in hours])
    second, counted = rows["second"].to_numpy(), rows[event].to_numpy()
    may_be = np.isin(counted // SECONDS_AN_HOUR, begins // SECONDS_AN_HOUR)
    may_be |= (counted >= second) & (second < begins.max())
    return rows.filter(pa.array(~may_be))


def _of_minutes(start: int, seconds: Ints) -> list[AuditedMinute]:
    """The rows of `_compared` summed up by minute; minutes in which nothing was tracked are left out."""
    minutes = (start + np.arange(len(seconds))) // SECONDS_A_MINUTE
    sums = zip(*(column.tolist() for column in grouped([minutes, *seconds.T], [np.add] * 4)), strict=True)
    return [AuditedMinute(bucket_start(each * SECONDS_A_MINUTE), *counts) for each, *counts in sums if counts[0]]

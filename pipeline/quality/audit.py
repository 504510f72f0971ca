"""Detects loss outside of the pipeline: messages that tracking saw and base has passed, but that never landed.

A seek forward, an expiry, or another consumer that acknowledges on base removes messages unnoticed. Tracking received
them too, so the histogram still counts them by publish second and event second.
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
from tidemark.pipeline.replay.sources import recorded_ticks
from tidemark.pipeline.watermark.histogram import COPY, NO_EVENT, Histogram, Ints, bucket_of, bucket_start, grouped
from tidemark.pipeline.watermark.state import DecisionRecord, Snapshot

SECONDS_A_MINUTE, SECONDS_AN_HOUR = 60, 3600
AT_ONCE = 10 * SECONDS_A_MINUTE
"""Publish seconds whose landed messages are in memory at once."""


@dataclass(frozen=True, slots=True)
class AuditedMinute:
    """A minute of publish time: messages that tracking counted, messages that landed, and the bounds of the number
    lost. `minute` is the start of the minute."""

    minute: datetime
    tracked: int
    landed: int
    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Losses among the messages published in `[since, before)`, all of which base has passed. `minutes` lists the
    minutes with possible losses.

    `at_least` is certain: a cell of the histogram is occupied, and no landed message could have occupied it. `at_most`
    is certain if tracking saw every message. It is too high where tracking counted redeliveries, which cannot be
    distinguished from lost messages of the same second. `damaged` maps unreadable files of `heartbeats` to their event
    hours; messages that may belong to these hours are not counted.
    """

    since: datetime | None = None
    before: datetime | None = None
    tracked: int = 0
    landed: int = 0
    minutes: Sequence[AuditedMinute] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def at_least(self) -> int:
        """The number of messages that are certainly lost."""
        return sum(minute.at_least for minute in self.minutes)

    @property
    def at_most(self) -> int:
        """The greatest number of messages that may be lost."""
        return sum(minute.at_most for minute in self.minutes)


def audit(
    log: TrackingLog, heartbeats: Heartbeats, quarantine: Quarantine, passed_since: datetime | None = None
) -> Audit:
    """Audit the messages that base has passed since `passed_since` (None: all that the log still covers).

    Guarantee: a message counted in `at_least` was published, is not outstanding on base, and is in neither table.
    Assumptions: the decisions' readings of base are right after slack, and messages from both subscriptions are judged
    by the same contract. Raises LakeError.
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
    """Return the publish second below which base had nothing outstanding at this decision; None without a reading."""
    if numbered is None or (base := numbered[1].decision.base) is None:
        return None
    return bucket_of(base.oldest_unacked - numbered[1].policy.base_slack)


def _tracked(log: TrackingLog, since: datetime | None) -> Histogram:
    """Return the cells live at `since` and all later ones: every message that base had not passed by then."""
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
    """Return one row per publish second in `[start, end)`: tracked, landed, lost at least, lost at most. The second
    value maps damaged files to their event hours, which are not counted.

    A landed heartbeat fills the cell of its clamped event time and that of its original event time, which logs from
    before the clamp have. A rejected message, whose event time is not kept, may have filled any cell of its second. A
    cell of rejected messages counts as lost only if nothing landed from its second. A cell of copies never counts,
    because it may hold a redelivery.
    """
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
    # A damaged file may hold messages that landed from that second.
    nothing_landed = (landed == 0) & (not damaged)
    at_least = np.maximum(by_second(empty) - rejected, 0) + np.where(nothing_landed, unreadable, 0)
    tracked = by_second(cells, "count")
    return np.stack([tracked, landed, at_least, np.maximum(tracked - landed, at_least)], axis=1), damaged


def _without(hours: Collection[str], rows: pa.Table, event: str) -> pa.Table:
    """Drop the rows that may belong to one of these event hours, by the event second that tracking counted. If it is
    the publish second, the true event time may lie in any later hour."""
    begins = np.array([bucket_of(datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)) for hour in hours])
    second, counted = rows["second"].to_numpy(), rows[event].to_numpy()
    may_be = np.isin(counted // SECONDS_AN_HOUR, begins // SECONDS_AN_HOUR)
    may_be |= (counted >= second) & (second < begins.max())
    return rows.filter(pa.array(~may_be))


def _of_minutes(start: int, seconds: Ints) -> list[AuditedMinute]:
    """Sum the rows of `_compared` by minute, leaving out minutes without tracked messages."""
    minutes = (start + np.arange(len(seconds))) // SECONDS_A_MINUTE
    sums = zip(*(column.tolist() for column in grouped([minutes, *seconds.T], [np.add] * 4)), strict=True)
    return [AuditedMinute(bucket_start(each * SECONDS_A_MINUTE), *counts) for each, *counts in sums if counts[0]]

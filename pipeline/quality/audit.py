"""Loss outside of the pipeline: what tracking saw, base has passed, and never landed.

A seek forward, an expiry, or somebody else acknowledging on base takes messages away unseen. Tracking was given them
as well, so that the histogram tells, by publish second and event second, that there was something.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.lake.log.history import decision_in_force
from pipeline.lake.log.tracking_log import TrackingLog
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.quarantine import Quarantine
from pipeline.replay.log_ticks import recorded_ticks
from pipeline.watermark.histogram import BUCKET_US, NO_EVENT, Histogram, Ints, bucket_of, bucket_start
from pipeline.watermark.state import DecisionRecord, Snapshot

SECONDS_A_MINUTE = 60
AT_ONCE = 10 * SECONDS_A_MINUTE
"""Of landed messages, those of so many publish seconds are in memory at a time."""


@dataclass(frozen=True, slots=True)
class AuditedMinute:
    """What was published in a minute: how many messages tracking counted, how many have landed, and how many of them
    are lost, at least and at most."""

    start: datetime
    tracked: int
    landed: int
    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Audit:
    """Of what was published in `[since, before)`, which base has passed: what is lost. `minutes` are those in which
    something may be.

    `at_least` is certain: a cell of the histogram is occupied, and nothing landed that could have occupied it.
    `at_most` is as certain where tracking knows all: a message that tracking was delivered twice counts twice there,
    and nobody can tell it from one that is lost beside another in its second.
    """

    since: datetime | None = None
    before: datetime | None = None
    tracked: int = 0
    landed: int = 0
    minutes: Sequence[AuditedMinute] = field(default_factory=tuple)

    @property
    def at_least(self) -> int:
        """So many messages are lost for certain."""
        return sum(minute.at_least for minute in self.minutes)

    @property
    def at_most(self) -> int:
        """No more than this are lost."""
        return sum(minute.at_most for minute in self.minutes)


def audit(
    log: TrackingLog, heartbeats: Heartbeats, quarantine: Quarantine, passed_since: datetime | None = None
) -> Audit:
    """Audit what base has passed since a moment (None: all that the log still tells of).

    Guarantee: what is called lost for certain was published, is not outstanding on base, and is in neither table.
    Assumptions: the decisions' readings of base are true after slack, and the same contract judged on both
    subscriptions. Raises LakeError.
    """
    newest = decision_in_force(log)
    passed = None if newest is None else _passed(newest[1])
    if passed is None:
        return Audit()
    then = None if passed_since is None else decision_in_force(log, passed_since)
    from_then = None if then is None else _passed(then[1])
    tracked = _tracked(log, passed_since)
    oldest = int(tracked.publish_bucket.min(initial=passed))
    since = oldest if from_then is None else from_then
    minutes: list[AuditedMinute] = []
    for low in range(since - since % AT_ONCE, passed, AT_ONCE):
        start, end = max(low, since), min(low + AT_ONCE, passed)
        cells = _between(tracked, start, end)
        if len(cells):
            minutes += _of_minutes(start, _compared(cells, heartbeats, quarantine, start, end))
    return Audit(
        since=bucket_start(since),
        before=bucket_start(max(since, passed)),
        tracked=sum(minute.tracked for minute in minutes),
        landed=sum(minute.landed for minute in minutes),
        minutes=[minute for minute in minutes if minute.at_most],
    )


def _passed(decided: DecisionRecord) -> int | None:
    """The publish second below which base has nothing outstanding, as the decision knew."""
    base = decided.decision.base
    return None if base is None else bucket_of(base.oldest_unacked - decided.policy.base_slack)


def _tracked(log: TrackingLog, since: datetime | None) -> Histogram:
    """All cells that tracking added since a moment, and those that were kept until then: none that base had not
    passed by then is lacking."""
    state, ticks = recorded_ticks(log, since)
    histogram = state.histogram
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Snapshot):
                histogram += entry.histogram
    return histogram


def _between(histogram: Histogram, start: int, end: int) -> pa.Table:
    """The cells of the publish seconds `[start, end)`."""
    low, high = np.searchsorted(histogram.publish_bucket, [start, end])
    return pa.table(
        {
            "second": histogram.publish_bucket[low:high],
            "event": histogram.event_bucket[low:high],
            "count": histogram.count[low:high],
        }
    )


def _compared(cells: pa.Table, heartbeats: Heartbeats, quarantine: Quarantine, start: int, end: int) -> Ints:
    """For each publish second from `start` on, a row: tracked, landed, lost at least, lost at most.

    A landed heartbeat fills its own cell; one in quarantine may have filled any of its second, since its event time is
    not kept; that tracking could read no event time is held against the tables only where nothing at all has landed.
    """
    times = (bucket_start(start), bucket_start(end))
    good = heartbeats.published_between(*times, ("message_id", "publish_time", "event_time"))
    bad = quarantine.published_between(*times)

    def a_second(seconds: pa.ChunkedArray, weights: pa.ChunkedArray | None = None) -> Ints:
        counted: Ints = np.bincount(
            seconds.to_numpy() - start, None if weights is None else weights.to_numpy(), minlength=end - start
        ).astype(np.int64)
        return counted

    def distinct(rows: pa.Table) -> Ints:
        return a_second(rows.group_by(["second", "message_id"], use_threads=False).aggregate([])["second"])

    of_good = with_seconds(good, "publish_time", "event_time")
    of_bad = with_seconds(bad, "publish_time")
    rejected = distinct(of_bad)
    landed = distinct(pa.concat_tables([of_good.select(["second", "message_id"]), of_bad]))
    has_event = pc.not_equal(cells["event"], NO_EVENT)
    filled = of_good.select(["second", "event"]).group_by(["second", "event"], use_threads=False).aggregate([])
    empty = cells.filter(has_event).join(filled, ["second", "event"], join_type="left anti", use_threads=False)
    unreadable = a_second(cells.filter(pc.invert(has_event))["second"])
    at_least = np.maximum(a_second(empty["second"]) - rejected, 0) + np.where(landed == 0, unreadable, 0)
    tracked = a_second(cells["second"], cells["count"])
    return np.stack([tracked, landed, at_least, np.maximum(tracked - landed, at_least)], axis=1)


def with_seconds(rows: pa.Table | None, publish: str, event: str | None = None) -> pa.Table:
    """Message ids with their publish second, and, where it is asked for, their event second."""
    columns = {"second": publish} if event is None else {"second": publish, "event": event}
    if rows is None:
        nothing = {name: pa.array([], pa.int64()) for name in columns}
        return pa.table({**nothing, "message_id": pa.array([], pa.string())})
    seconds = {
        name: pa.array(rows[column].cast(pa.int64()).to_numpy() // BUCKET_US) for name, column in columns.items()
    }
    return pa.table({**seconds, "message_id": rows["message_id"].cast(pa.string())})


def _of_minutes(start: int, seconds: Ints) -> list[AuditedMinute]:
    """The rows of seconds, minute by minute; those in which nothing was tracked are left out."""
    minutes = (start + np.arange(len(seconds))) // SECONDS_A_MINUTE
    each, firsts = np.unique(minutes, return_index=True)
    sums = np.add.reduceat(seconds, firsts, axis=0)
    return [
        AuditedMinute(bucket_start(minute * SECONDS_A_MINUTE), *counts)
        for minute, counts in zip(each.tolist(), sums.tolist(), strict=True)
        if counts[0]
    ]

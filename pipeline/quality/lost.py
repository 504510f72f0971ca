"""Finds messages that tracking received but that have not landed, and those that landed although tracking never
received them. The former are outstanding if they are still unacknowledged on the base subscription, and lost otherwise.

A seek forward, an expiry, or another consumer that acknowledges on base removes messages from base unnoticed. Tracking
received these messages too, so the histogram counts them, by publish second and event second.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import from_us
from tidemark.pipeline.errors import CorruptObject
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.history import decision_in_force
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.heartbeats import HOUR_FORMAT, Heartbeats, messages_of
from tidemark.pipeline.lake.tables.quarantine import Quarantine, without
from tidemark.pipeline.lake.tables.table import published_files
from tidemark.pipeline.quality.landings import unknown_sentence
from tidemark.pipeline.replay.sources import recorded_ticks
from tidemark.pipeline.watermark.histogram import (
    BUCKET_US,
    COPY,
    NO_EVENT,
    NO_MINIMUM,
    Histogram,
    Ints,
    bucket_of,
    bucket_start,
    grouped,
)
from tidemark.pipeline.watermark.situation import base_after_slack, tracking_after_slack
from tidemark.pipeline.watermark.state import DecisionRecord, Lost, Snapshot

SECONDS_A_MINUTE, SECONDS_AN_HOUR, SECONDS_A_DAY = 60, 3600, 86400

WIDTHS = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 7 * 86400)
"""The possible lengths, in seconds, of the ranges of publish time (`Stretch`) that are displayed."""

AUDITED_AT_ONCE, AUDITED_ROWS = (SECONDS_A_DAY, SECONDS_AN_HOUR, 10 * SECONDS_A_MINUTE), 500_000
"""Possible lengths, in seconds, of the ranges of publish time in which landed messages are counted. To bound memory, a
range is divided if the files with publish times in it have more than AUDITED_ROWS rows. The last length is not
divided."""

LANDINGS = ("message_id", "landed_at")

Tables = tuple[Heartbeats, Quarantine]


@dataclass(frozen=True, slots=True)
class Stretch:
    """A range of publish times, `[published_from, published_before)`, with counts of the messages published in it. Only
    publish seconds that may have outstanding messages count.

    `tracked` is the number of messages that tracking counted, including redeliveries. `landed` is the number of
    distinct messages that landed, and `outstanding_at_most` the difference. `oldest_event_time` is the smallest event
    time that tracking counted; None without event times. Each heartbeat of a message counts as a message.
    """

    published_from: datetime
    published_before: datetime
    tracked: int
    landed: int
    outstanding_at_most: int
    oldest_event_time: datetime | None


@dataclass(frozen=True, slots=True)
class Outstanding:
    """The outstanding messages (counted by tracking, but not landed) among those published in `[since, before)`. Both
    times are whole seconds.

    `tracked` and `landed` count all messages. `seconds` are four arrays with one element per publish second that may
    have outstanding messages: the second, messages tracked, messages landed, and the smallest event time in
    microseconds. If the histogram is complete for the range, at most `tracked - landed` messages are outstanding.
    """

    since: datetime
    before: datetime
    tracked: int
    landed: int
    seconds: Sequence[Ints]

    @property
    def at_most(self) -> int:
        """Upper bound on the number of outstanding messages."""
        return int((self.seconds[1] - self.seconds[2]).sum())

    @property
    def oldest_event_time(self) -> datetime | None:
        """The smallest event time in the publish seconds that may have outstanding messages; None without event
        times."""
        return _event_time(int(self.seconds[3].min(initial=NO_MINIMUM)))

    def in_lines(self, at_most: int) -> list[Stretch]:
        """Merge the publish seconds into ranges (stretches) of equal length, aligned to the epoch; empty ones are left
        out. The length is the smallest in WIDTHS that yields at most `at_most` ranges. If none does, it is the greatest
        one."""
        second, *counts = self.seconds
        for width in WIDTHS:
            merged = grouped([second // width, *counts], [np.add, np.add, np.minimum])
            if len(merged[0]) <= at_most:
                break
        lines = []
        for number, tracked, landed, event_us in zip(*(column.tolist() for column in merged), strict=True):
            since, before = bucket_start(number * width), bucket_start((number + 1) * width)
            lines.append(Stretch(since, before, tracked, landed, tracked - landed, _event_time(event_us)))
        return lines


def _event_time(event_us: int) -> datetime | None:
    return None if event_us == NO_MINIMUM else from_us(event_us)


def outstanding(histogram: Histogram, landed: Ints, since: datetime, before: datetime) -> Outstanding:
    """Return the outstanding messages among those published in `[since, before)`. Both times are whole seconds.
    Their number per publish second is the number of messages in `histogram` minus the number that landed. `landed` is
    the result of `landed_by_second`."""
    first = bucket_of(since)
    cells = cells_between(histogram, first, bucket_of(before))
    columns = [cells[name].to_numpy() for name in ("second", "count", "oldest_us")]
    second, tracked, oldest_us = grouped(columns, [np.add, np.minimum])
    of_second = landed[second - first]
    is_left = tracked > of_second
    left = [column[is_left] for column in (second, tracked, of_second, oldest_us)]
    return Outstanding(since, before, int(tracked.sum()), int(landed.sum()), left)


def cells_between(histogram: Histogram, start: int, end: int) -> pa.Table:
    """Return the cells of the histogram with publish seconds in `[start, end)`, in order. The table has one row per
    cell: publish second, event second, count, and smallest event time in microseconds."""
    low, high = np.searchsorted(histogram.publish_bucket, [start, end])
    columns = (histogram.publish_bucket, histogram.event_bucket, histogram.count, histogram.min_event_us)
    return pa.table([column[low:high] for column in columns], ["second", "event", "count", "oldest_us"])


def landed_by_second(lake: Lake, since: datetime, before: datetime) -> Ints:
    """Return the number of distinct messages in `heartbeats` and `quarantine` for each publish second in `[since,
    before)`. Both times are whole seconds. Raises CorruptObject if a file with such publish times is damaged."""
    tables, landed = (lake.heartbeats(), lake.quarantine()), [np.zeros(0, np.int64)]
    for _, seconds, damaged in _in_parts(Histogram.empty(), tables, bucket_of(since), bucket_of(before), COPY + 1):
        if damaged:
            raise CorruptObject(unknown_sentence("outstanding", damaged))
        landed.append(seconds[:, 1])
    return np.concatenate(landed)


def without_requeued(
    good: pa.Table, bad: pa.Table, tables: Tables, since: datetime, before: datetime, damaged: dict[str, str]
) -> pa.Table:
    """Return `good` without the heartbeats of messages that were rejected first, and requeued later.

    Only messages with several heartbeats are affected. Tracking counted such a message once, as rejected, so its
    heartbeats must not count as landed too. `good` (landed) and `bad` (rejected) are results of `with_seconds`. Damaged
    files of `heartbeats` are added to `damaged`, with their event hours.
    """
    messages = messages_of(good["message_id"])
    is_element = pc.not_equal(messages, good["message_id"])
    suspects = good["message_id"].filter(pc.and_(is_element, pc.is_in(messages, bad["message_id"].combine_chunks())))
    if not len(suspects):
        return good
    landed = tables[0].published_between(since, before, LANDINGS, damaged)
    rejected = tables[1].published_between(since, before, LANDINGS)
    landed, rejected = (
        rows.group_by("message_id", use_threads=False).aggregate([("landed_at", "min")]) for rows in (landed, rejected)
    )
    landed = landed.filter(pc.is_in(landed["message_id"], suspects.combine_chunks()))
    landed = landed.append_column("message", messages_of(landed["message_id"]))
    both = landed.join(rejected, "message", "message_id", right_suffix="_rejected", use_threads=False)
    return without(good, both.filter(pc.greater(both["landed_at_min"], both["landed_at_min_rejected"]))["message_id"])


def with_seconds(rows: pa.Table) -> pa.Table:
    """Return the message ids of the rows with their publish second (`second`). If the rows have event times, add
    `event`, the event second of the row's cell in the histogram. `event` is never after `second`."""
    columns = {"message_id": rows["message_id"].cast(pa.string())}
    for name, column in (("second", "publish_time"), ("event", "event_time")):
        if column in rows.column_names:
            columns[name] = pa.array(rows[column].cast(pa.int64()).to_numpy() // BUCKET_US)
    if "event" in columns:
        columns["event"] = pc.min_element_wise(columns["event"], columns["second"])
    return pa.table(columns)


def distinct_messages(rows: pa.Table) -> pa.Table:
    """Return the rows without copies: each pair of publish second and message id once."""
    return rows.group_by(["second", "message_id"], use_threads=False).aggregate([])


@dataclass(frozen=True, slots=True)
class AuditedMinute:
    """The audit of the messages published in one minute: the number that tracking counted, the number that landed, and
    the minimum and maximum number that were lost."""

    minute: datetime
    tracked: int
    landed: int
    at_least: int
    at_most: int


@dataclass(frozen=True, slots=True)
class Audit:
    """The losses among the messages published in `[since, before)`. Base has no outstanding message of this range.
    `minutes` are the minutes that may have losses.

    `untracked` is a lower bound on the messages that landed but never reached tracking, although the newest decision
    counts tracking as complete for their publish seconds. The cause is that tracking was sought forward, recreated, or
    read by another consumer. The watermark may have passed these messages before they landed.

    `at_least` is certain: it counts one message for each histogram cell to which no landed message can belong.
    `at_most` is an upper bound if tracking received every message. It may be too high, because tracking may count a
    redelivery twice. `damaged` maps each unreadable file to its event hour (for `heartbeats`) or day (for
    `quarantine`). Messages of these times are not counted.
    """

    since: datetime | None = None
    before: datetime | None = None
    tracked: int = 0
    landed: int = 0
    untracked: int = 0
    minutes: Sequence[AuditedMinute] = ()
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def at_least(self) -> int:
        return sum(minute.at_least for minute in self.minutes)

    @property
    def at_most(self) -> int:
        return sum(minute.at_most for minute in self.minutes)


def audit(
    lake: Lake,
    passed_since: datetime | None = None,
    kept_from: datetime | None = None,
    quarantine_kept: timedelta | None = None,
) -> Audit:
    """Audit the messages that were outstanding on base at `passed_since` or later, and no longer are. If `passed_since`
    is None, audit all messages in the tracking log that are no longer outstanding. Event times before `kept_from` are
    not counted, because retention deletes their rows. Nor are messages published on or before the day of `passed_since
    - quarantine_kept`, because retention deletes their rows of `quarantine`.

    Guarantee: a message counted in `at_least` was published, is not outstanding on base, and is neither in `heartbeats`
    nor in `quarantine`. Assumptions: the decisions' readings of base's backlog, minus `base_slack`, are right; the same
    contract judges the messages of both subscriptions. Raises LakeError.
    """
    log, tables = lake.tracking_log(), (lake.heartbeats(), lake.quarantine())
    newest = decision_in_force(log)
    passed = _passed(newest)
    if newest is None or passed is None:
        return Audit()
    from_then = None if passed_since is None else _passed(decision_in_force(log, passed_since))
    tracked, pruned_before = _tracked(log, passed_since)
    oldest = int(tracked.publish_bucket.min(initial=passed))
    since = oldest if from_then is None else from_then
    if passed_since is not None and quarantine_kept is not None:  # retention deletes whole days
        since = max(since, (bucket_of(passed_since - quarantine_kept) // SECONDS_A_DAY + 1) * SECONDS_A_DAY)
    since = min(since, passed)
    complete_from, complete_before = _complete(newest[1])
    complete_from = max(complete_from, pruned_before)
    untracked, minutes, damaged = 0, list[AuditedMinute](), dict[str, str]()
    first_event = COPY + 1 if kept_from is None else bucket_of(kept_from)
    for start, seconds, unread in _in_parts(tracked, tables, since, passed, first_event):
        minutes += _of_minutes(start, seconds)
        damaged |= unread
        if not unread:
            complete = seconds[max(complete_from - start, 0) : max(complete_before - start, 0)]
            untracked += int(np.maximum(complete[:, 1] - complete[:, 0], 0).sum())
    return Audit(
        since=bucket_start(since),
        before=bucket_start(passed),
        tracked=sum(minute.tracked for minute in minutes),
        landed=sum(minute.landed for minute in minutes),
        untracked=untracked,
        minutes=[minute for minute in minutes if minute.at_most],
        damaged=damaged,
    )


def untracked_sentence(count: int) -> str:
    """Return a sentence that says: tracking never received `count` messages that landed."""
    return (
        f"tracking never received {counted(count, 'message')} that landed, so the watermark may be too high: another "
        "consumer reads tracking, tracking was sought forward or recreated, or its log was restored from an old copy"
    )


def _passed(numbered: tuple[int, DecisionRecord] | None) -> int | None:
    """Return the first publish second that may have had outstanding messages on base at a decision. None without a
    decision, or if the decision has no reading of base's backlog."""
    if numbered is None or (base := numbered[1].decision.base) is None:
        return None
    return bucket_of(base_after_slack(base, numbered[1].policy))


def _complete(record: DecisionRecord) -> tuple[int, int]:
    """Return the first publish second for which tracking counts as complete in a decision, and the second after the
    last one; 0 and 0 if none is known."""
    complete_from, tracking = record.decision.complete_from, record.decision.tracking
    if complete_from is None or tracking is None:
        return 0, 0
    return bucket_of(complete_from) + 1, bucket_of(tracking_after_slack(tracking, record.policy))


def _tracked(log: TrackingLog, since: datetime | None) -> tuple[Histogram, int]:
    """Return the messages that tracking received since a moment, and a publish second: messages published before it
    may be missing, because they were pruned from the log."""
    state, ticks = recorded_ticks(log, since)
    histogram = state.histogram
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Snapshot):
                histogram += entry.histogram
            elif isinstance(entry, Lost) and entry.contract:  # the same messages may land with other event times
                histogram = Histogram.empty()
    return histogram, state.pruned_before or 0


def _in_parts(
    tracked: Histogram, tables: Tables, since: int, before: int, first_event: int
) -> Iterator[tuple[int, Ints, Mapping[str, str]]]:
    """Compare tracked with landed messages in parts of the publish seconds `[since, before)`. Yield each part's first
    second and the result of `_compared`. A part is also divided if it has a damaged file, so that more is counted."""
    listings = [table.listed() for table in tables]

    def divided(since: int, before: int, length: int, *shorter: int) -> Iterator[tuple[int, Ints, Mapping[str, str]]]:
        for low in range(since - since % length, before, length):
            start, end = max(low, since), min(low + length, before)
            files = (published_files(listed, bucket_start(start), bucket_start(end)) for listed in listings)
            if shorter and sum(pc.sum(each["num_records"]).as_py() or 0 for each in files) > AUDITED_ROWS:
                yield from divided(start, end, *shorter)
                continue
            cells = cells_between(tracked, start, end)
            seconds, unread = _compared(cells, tables, start, end, first_event)
            if shorter and unread:
                yield from divided(start, end, *shorter)
            else:
                yield start, seconds, unread

    return divided(since, before, *AUDITED_AT_ONCE)


def _compared(
    cells: pa.Table, tables: Tables, start: int, end: int, first_event: int
) -> tuple[Ints, Mapping[str, str]]:
    """Compare tracked with landed messages, per publish second in `[start, end)`. Return an array with a row per
    second: the numbers of messages tracked, landed, lost at least, and lost at most. Also return the damaged files with
    their event hours. These hours are not counted, nor are event times before `first_event`. If a file of `quarantine`
    is damaged, nothing is counted.

    A cell counts as certainly lost if no landed message belongs to it:
    - A landed heartbeat belongs to the cell of its clamped event time.
    - A rejected message may belong to any cell of its publish second, because its event time is not stored.
    - A cell of rejected messages counts as lost only if no message of its publish second landed.
    - A cell of copies never counts as lost, because the copies may be redeliveries.
    """
    times, damaged = (bucket_start(start), bucket_start(end)), dict[str, str]()
    heartbeats, quarantine = tables
    good = heartbeats.published_between(*times, ("message_id", "publish_time", "event_time"), damaged)
    bad = quarantine.published_between(*times, damaged=(of_quarantine := dict[str, str]()))
    if of_quarantine:  # its messages may belong to any cell
        return np.zeros((end - start, 4), np.int64), damaged | of_quarantine
    of_good, of_bad = with_seconds(good), with_seconds(bad)
    counts = (pc.field("event") >= first_event) | (pc.field("event") <= COPY)
    cells, of_good = cells.filter(counts), of_good.filter(counts)
    if damaged:
        cells, of_good = (_without(set(damaged.values()), rows) for rows in (cells, of_good))

    def by_second(rows: pa.Table, weights: str | None = None) -> Ints:
        weight = None if weights is None else rows[weights].to_numpy()
        counted: Ints = np.bincount(rows["second"].to_numpy() - start, weight, minlength=end - start).astype(np.int64)
        return counted

    rejected = by_second(distinct_messages(of_bad))
    counted = without_requeued(of_good.select(of_bad.column_names), of_bad, tables, *times, damaged)
    landed = by_second(distinct_messages(pa.concat_tables([counted, of_bad])))
    timed = cells.filter(pc.greater(cells["event"], COPY))
    empty = timed.join(of_good, ["second", "event"], join_type="left anti", use_threads=False)
    unreadable = by_second(cells.filter(pc.equal(cells["event"], NO_EVENT)))
    # A damaged file may contain landed messages of the same second.
    nothing_landed = (landed == 0) & (not damaged)
    at_least = np.maximum(by_second(empty) - rejected, 0) + np.where(nothing_landed, unreadable, 0)
    tracked = by_second(cells, "count")
    return np.stack([tracked, landed, at_least, np.maximum(tracked - landed, at_least)], axis=1), damaged


def _without(hours: Collection[str], rows: pa.Table) -> pa.Table:
    begins = np.array([bucket_of(datetime.strptime(hour, HOUR_FORMAT).replace(tzinfo=UTC)) for hour in hours])
    second, event = rows["second"].to_numpy(), rows["event"].to_numpy()
    may_be = np.isin(event // SECONDS_AN_HOUR, begins // SECONDS_AN_HOUR)
    may_be |= (event >= second) & (second < begins.max())
    return rows.filter(pa.array(~may_be))


def _of_minutes(start: int, seconds: Ints) -> list[AuditedMinute]:
    minutes = (start + np.arange(len(seconds))) // SECONDS_A_MINUTE
    sums = zip(*(column.tolist() for column in grouped([minutes, *seconds.T], [np.add] * 4)), strict=True)
    return [AuditedMinute(bucket_start(each * SECONDS_A_MINUTE), *counts) for each, *counts in sums if any(counts)]

"""The rules of a decision, one function each, in the order and with the numbers of `docs/concepts/watermark.md`.

A rule passes, holds the watermark, or proposes a candidate for the watermark.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tidemark.pipeline.clock import from_us, to_us
from tidemark.pipeline.watermark.decision import BandEvidence, FrontierEvidence, Reason, SilenceEvidence
from tidemark.pipeline.watermark.histogram import AFTER_ALL, BEFORE_ALL, Cell, Histogram, bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading
from tidemark.pipeline.watermark.situation import Situation, has_no_backlog, is_stale, known, was_sought


class Finding(StrEnum):
    """A rule's result. Each branch of a rule has its own member. The value is the sentence that explains the result;
    `explanation` replaces each name in braces with its text."""

    FRESH = "{fresh}"
    STALE = "{stale}"
    NOT_SOUGHT = "No subscription was sought back since the previous decision."
    SOUGHT = "{sought}"
    COMPLETE = "{knows}, and base holds nothing older than {base}{less_slack}."
    RELEASED = "{knows}, and an operator released base's messages from before {base}."
    OLDER_THAN_TRACKING = "{lost}{knows}, and base may hold messages published since {base}{less_slack}."
    HOLE = "Base holds a message published at {named} that tracking has never seen: a hole. {knows}."
    NEAR_NOW = "Tracking keeps up: when it was read, its oldest message was at most {near} old."
    AHEAD_OF_BASE = "Tracking has a backlog of {backlog}, but is {ahead}, which is at least the band of {band}."
    BEHIND = "Tracking has a backlog of {backlog}, more than {near}, and is {ahead}, less than the band of {band}."
    CLOCK_AHEAD = (
        "Both subscriptions trail this machine's clock by the same {clock_ahead}, now and at the previous decision. "
        "This is not a backlog: the clock is ahead of Pub/Sub's by this much."
    )
    CLOCK_WENT_BACK = "A backlog was read at {read_at}, and it is {at} now: this machine's clock was set back."
    NOTHING_EVER = "Tracking has never seen a message with an event time."
    ALL_LAG = "Tracking knows no message that lags at most {max_lag}."
    RECENT = "{newest}. Only a pause of more than {idle_timeout} is a silence."
    NEWEST_MAY_BE_ON_BASE = "{newest}, but base may still hold it: this is not a silence."
    BACKLOG = "{newest}, but a subscription has a backlog: this is not a silence."
    SILENCE_IS_HELD = '{newest}, longer than {idle_timeout}, and there is no backlog: a silence. But idle = "hold".'
    SILENCE = (
        "{newest}, longer than {idle_timeout}, and there is no backlog: a silence. The candidate is the earlier "
        "reading minus the band of {band} and the last messages' lag of {recent_lag}."
    )
    NO_DATA = "Tracking knows no event time that was published more than {band} (the band) before its reading."
    BAND = (
        "Considered: at most {messages} published from {start} to {end} (base's backlog, the band of {band} before "
        "tracking's reading{anchor}).{passed_over}"
    )
    FRONTIER = (
        "Considered: at most {messages} published from {start} on (base's backlog), and the frontier, {frontier}: the "
        "greatest event time published more than {band} (the band) before tracking's reading.{passed_over}"
    )


@dataclass(frozen=True, slots=True)
class Passed:
    """The verdict that a rule neither holds the watermark nor has a candidate. The next rule is evaluated."""

    finding: Finding


@dataclass(frozen=True, slots=True)
class Held:
    """The verdict that the watermark stays where it is. `complete_from` is set if the rule found that tracking lacks a
    message: it is the publish time from which tracking knows all messages."""

    finding: Finding
    reason: Reason
    complete_from: datetime | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """The verdict that the watermark may reach the event time in `evidence`."""

    finding: Finding
    evidence: SilenceEvidence | BandEvidence | FrontierEvidence


Verdict = Passed | Held | Candidate
Rule = Callable[[Situation], Verdict]
Rules = Sequence[Rule]


def fresh_readings(s: Situation) -> Verdict:
    """Rule 1: hold if a subscription's backlog was never read, or its next reading is overdue by more than
    `max_reading_age`. Also hold if this machine's clock was set back, so that a reading is later than the clock."""
    for reading in (s.base, s.tracking):
        if reading is None or is_stale(reading, s.at, s.policy):
            return Held(Finding.STALE, Reason.HELD_STALE_READING)
    if s.clock_went_back:
        return Held(Finding.CLOCK_WENT_BACK, Reason.HELD_CLOCK_SKEW)
    return Passed(Finding.FRESH)


def same_epoch(s: Situation) -> Verdict:
    """Rule 2: hold if a subscription was sought back since the previous decision."""
    before = s.previous
    if before is not None and (was_sought(s.base, before.base) or was_sought(s.tracking, before.tracking)):
        return Held(Finding.SOUGHT, Reason.HELD_SEEK)
    return Passed(Finding.NOT_SOUGHT)


def complete(s: Situation) -> Verdict:
    """Rule 3: hold if the log may lack a message on base that was published before tracking's reading."""
    hole_ends = None if s.release else end_of_hole(s)
    if hole_ends is not None:
        return Held(Finding.HOLE, Reason.HELD_INCOMPLETE, complete_from=max(s.complete_from, hole_ends))
    if s.oldest_base < s.complete_from:
        return Held(Finding.OLDER_THAN_TRACKING, Reason.HELD_INCOMPLETE)
    return Passed(Finding.RELEASED if s.release else Finding.COMPLETE)


def ready(s: Situation) -> Verdict:
    """Rule 4: hold unless tracking's reading is close to the present, or at least a band ahead of base's. The readings
    are compared without slack, because base's slack says nothing about tracking.

    If the rule holds the watermark while this machine's clock is ahead of the server's, the reason names the clock.
    """
    if has_no_backlog(known(s.tracking), s.policy.near_on_tracking):
        return Passed(Finding.NEAR_NOW)
    if known(s.tracking).oldest_unacked - s.base_as_read >= s.policy.band:
        return Passed(Finding.AHEAD_OF_BASE)
    if s.clock_ahead is not None:
        return Held(Finding.CLOCK_AHEAD, Reason.HELD_CLOCK_SKEW)
    return Held(Finding.BEHIND, Reason.HELD_TRACKING_BEHIND)


def silence(s: Situation) -> Verdict:
    """Rule 5: in a silence, the watermark follows the clock if `idle` is `advance`.

    A silence has three conditions: no valid message was published for `idle_timeout`, base has acknowledged the newest
    valid message and all earlier ones, and neither subscription has a backlog. Rejected messages, and messages that lag
    more than `max_lag`, do not end a silence. If they did, a source that sends only such messages would hold back all
    other sources."""
    base, tracking, policy = known(s.base), known(s.tracking), s.policy
    holds = s.holding
    if holds.newest_publish_us is None:
        return Passed(Finding.NOTHING_EVER if s.histogram.newest_publish_us is None else Finding.ALL_LAG)
    newest = from_us(holds.newest_publish_us)
    if tracking.observed_at - newest <= policy.idle_timeout:
        return Passed(Finding.RECENT)
    if s.base_after_slack <= newest:  # base may hold messages that lag more than the newest one
        return Passed(Finding.NEWEST_MAY_BE_ON_BASE)
    if not (has_no_backlog(base, policy.near_real_time) and has_no_backlog(tracking, policy.near_real_time)):
        return Passed(Finding.BACKLOG)
    if policy.idle == "hold":
        return Passed(Finding.SILENCE_IS_HELD)
    lag = recent_lag(holds, policy.max_idle_lag)
    candidate = min(s.oldest_base, s.oldest_tracking) - policy.band - lag
    return Candidate(Finding.SILENCE, SilenceEvidence(candidate, lag))


def band(s: Situation) -> Verdict:
    """Rule 6 with `rule = "band"`: the candidate is the earliest event time of the messages published in the band.

    The band ends at `T`, the tracking reading. It begins at the earliest of three times: `B` (the base reading),
    `T - D` (where `D` is `policy.band`), and the anchor (the newest valid message from before `T - D`).
    """
    if (anchor := anchor_before(s.holding, s.band_edge)) is None:
        return Held(Finding.NO_DATA, Reason.HELD_NO_DATA)
    return least_since(s, band_start(s.oldest_base, s.band_edge, anchor), anchor)


def least_since(s: Situation, start: datetime, anchor: datetime | None) -> Verdict:
    """Return the verdict of the rule `band` for a band that begins at `start`. `anchor` is only recorded."""
    least, messages, over = least_published(s, start, bucket_of(s.oldest_tracking))
    if least is None:
        return Held(Finding.NO_DATA, Reason.HELD_NO_DATA)
    evidence = BandEvidence(least, start, s.oldest_tracking, messages, anchor, passed_over=over)
    return Candidate(Finding.BAND, evidence)


def frontier(s: Situation) -> Verdict:
    """Rule 6 with `rule = "frontier"`: the candidate is the earlier of two event times.

    - The earliest event time of the messages published since `B`, the base reading. It is a lower bound for the
      messages that tracking has read and that may still land.
    - The frontier: the greatest event time of the messages published before `T - D`, where `T` is the tracking reading
      and `D` the band. If disorder is at most `D`, it is a lower bound for the messages that tracking has not read.
    """
    greatest = frontier_of(s.histogram, s.band_edge, s.policy, s.pruned_before, s.pruned_frontier)
    if greatest is None:
        return Held(Finding.NO_DATA, Reason.HELD_NO_DATA)
    outstanding, messages, over = least_published(s, s.oldest_base, AFTER_ALL)
    pin = outstanding if outstanding is not None and outstanding.min_event_time < greatest.min_event_time else greatest
    bounds = (s.oldest_base, s.oldest_tracking, messages, greatest.min_event_time)
    return Candidate(Finding.FRONTIER, FrontierEvidence(pin, *bounds, passed_over=over))


def bound(s: Situation) -> Verdict:
    """Rule 6: find a lower bound for the event times of all messages that may still land, by the rule that the policy
    selects."""
    return frontier(s) if s.policy.rule == "frontier" else band(s)


RULES: Rules = (fresh_readings, same_epoch, complete, ready, silence, bound)


def anchor_before(histogram: Histogram, band_edge: datetime) -> datetime | None:
    """Return the anchor: the newest publish time of a valid message from before the band's edge, as precise as the
    histogram is. None if there is no such message."""
    anchor_us = histogram.newest_valid_before(to_us(band_edge))
    return None if anchor_us is None else from_us(anchor_us)


def band_start(oldest_base: datetime, band_edge: datetime, anchor: datetime | None) -> datetime:
    """Return the beginning of the band: the earliest of `oldest_base`, `band_edge` and the anchor."""
    start = min(oldest_base, band_edge)
    return start if anchor is None else min(start, anchor)


def frontier_of(
    histogram: Histogram, before: datetime, policy: Policy, pruned_before: int | None, pruned_frontier: Cell | None
) -> Cell | None:
    """Return the frontier before a moment: the cell with the greatest event time published before it.

    If disorder is at most the band, no message published more than a band after this cell has an earlier event time.

    `pruned_frontier` is the frontier of the pruned buckets, all of which are below `pruned_before`. Return None if no
    cell is from before the moment, or if later cells were pruned (tracking was sought back, or the band is wider now).
    """
    if pruned_before is not None and pruned_before > bucket_of(before):
        return None
    known_from = BEFORE_ALL if pruned_before is None else pruned_before
    newer = histogram.holding(policy.max_lag).frontier_before(to_us(before), known_from)
    found = (cell for cell in (pruned_frontier, newer) if cell is not None)
    return max(found, key=lambda cell: cell.min_event_time, default=None)


def recent_lag(histogram: Histogram, at_most: timedelta) -> timedelta:
    """Return the largest `publish time - event time` of the newest publish second with a valid message, clamped to 0
    and `at_most`.

    The result may be up to two seconds too large.
    """
    newest = histogram.newest_valid_bucket(before=AFTER_ALL)
    lag_us = 0 if newest is None else histogram.greatest_lag_us(newest)
    return min(max(timedelta(microseconds=lag_us), timedelta(0)), at_most)


def reading_of_a_message(s: Situation) -> Reading | EffectiveReading:
    """Return the reading of base that may be the publish time of an unacknowledged message.

    If the newest reading is above the effective reading, or below it by at most the slack, return the newest reading:
    only this one shows a message that became visible after its publish time. If it is further below, return the
    effective reading.
    """
    base = known(s.base)
    is_within_slack = base.oldest_unacked - base.newest.oldest_unacked <= s.policy.base_slack
    return base.newest if is_within_slack else base


def end_of_hole(s: Situation) -> datetime | None:
    """If base has an unacknowledged message that the tracking log lacks, return the publish time from which the log is
    complete again. Otherwise return None."""
    named = reading_of_a_message(s)
    if not named.names_a_message or named.oldest_unacked >= s.oldest_tracking:
        return None
    bucket = bucket_of(named.oldest_unacked)
    following = s.histogram.next_occupied(bucket)
    if following == bucket or (s.pruned_before is not None and bucket < s.pruned_before):
        return None
    return s.oldest_tracking if following is None else min(bucket_start(following), s.oldest_tracking)


def least_published(s: Situation, start: datetime, high: int) -> tuple[Cell | None, int, int]:
    """Return three values for the messages published from `start` to the bucket `high`: the cell with the earliest
    event time (or quantile), and upper bounds for the number of messages and of those that `max_lag` passes over.

    If a quantile is set, the whole bucket of `start` counts, because a quantile applies to a whole bucket.
    """
    is_whole = s.policy.quantile > 0
    start_us = to_us(bucket_start(bucket_of(start)) if is_whole else start)
    positions, holds = s.histogram.since(start_us, high), s.holding
    if is_whole:
        least = holds.quantile_between(bucket_of(start), high, s.policy.quantile)
    else:
        least = holds.minimum_at(positions if holds is s.histogram else holds.since(start_us, high))
    return least, s.histogram.messages_at(positions), s.histogram.passed_over(s.policy.max_lag, positions)

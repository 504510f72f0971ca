"""Explains what must happen for the watermark to move.

If a rule holds the watermark, the sentences say what ends this hold, not what later rules will decide.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

from tidemark.pipeline.clock import MICROSECOND, format_duration, from_us, iso, to_us
from tidemark.pipeline.figures import counted
from tidemark.pipeline.watermark.decision import BandEvidence, Decision, FrontierEvidence, Reason, SilenceEvidence
from tidemark.pipeline.watermark.estimator import is_pinned_by_backlog
from tidemark.pipeline.watermark.histogram import AFTER_ALL, COPY, NO_EVENT, bucket_of, bucket_start
from tidemark.pipeline.watermark.rules import least_published
from tidemark.pipeline.watermark.situation import Situation, has_no_backlog, known

ZERO, SECOND = timedelta(0), timedelta(seconds=1)


def moves(s: Situation, decision: Decision) -> Iterator[str]:
    """Yield sentences that say what ends the hold, or what moves the watermark further."""
    evidence, watermark, policy = decision.evidence, decision.watermark, s.policy
    is_pinned = decision.pin is not None and is_pinned_by_backlog(s, decision.pin)
    is_at_frontier = isinstance(evidence, FrontierEvidence) and evidence.is_at_frontier
    match decision.reason:
        case Reason.HELD_STALE_READING:
            yield "The watermark is held until both backlogs can be read; the problems of recent ticks say why not."
        case Reason.HELD_SEEK:
            yield "The watermark is held for this decision only. Replayed messages are late if they land below it."
        case Reason.HELD_INCOMPLETE:
            known_from = decision.complete_from or s.complete_from
            yield f"The watermark is held until {_lands(known_from, s)}."
            yield _let_go(max(known_from, known(s.base).oldest_unacked + MICROSECOND))
        case Reason.HELD_TRACKING_BEHIND:
            near = format_duration(policy.near_on_tracking)
            yield (
                f"The watermark is held until tracking has read to within {near} of now, or to "
                f"{format_duration(policy.band)} ahead of base. Check that the sensor `tracking` ticks or, "
                "if a run of `ingest` reads tracking, that the run's log has new rounds; if not, check Spark. Messages "
                "that a killed tracker had pulled are redelivered after their ack deadline."
            )
        case Reason.HELD_CLOCK_SKEW:
            until = max(known(reading).newest.observed_at for reading in (s.base, s.tracking))
            waits = f"it is {iso(until)}" if s.clock_ahead is None else "the clock is right"
            yield f"The watermark is held until {waits}. Synchronize this machine's clock (chrony, systemd-timesyncd)."
        case Reason.HELD_NO_DATA:
            yield from _no_data(s)
        case Reason.IDLE_ADVANCED:
            yield from _rejected(s, decision.newest_publish_time)
            yield "The watermark follows the clock until messages are published, and from then on their event times."
        case Reason.IDLE_HELD:
            yield from _rejected(s, decision.newest_publish_time)
            yield (
                f"The watermark moves when something is published, and tracking has read {_reach(s)} past that. "
                'With idle = "advance", the watermark would follow the clock until then.'
            )
        case _ if isinstance(evidence, SilenceEvidence) and s.watermark is not None:
            slack = max(policy.base_slack, policy.reading_slack)
            reached = s.watermark + policy.band + evidence.recent_lag + slack
            yield f"The watermark follows the clock again after {iso(reached)}, or moves when something is published."
        case Reason.ADVANCED | Reason.RELEASED if is_at_frontier or not is_pinned:
            yield "The watermark moves on with the next messages that are published and acknowledged."
        case _ if isinstance(evidence, FrontierEvidence | BandEvidence) and watermark is not None:
            if isinstance(evidence, FrontierEvidence):
                yield from _past_the_frontier(s, watermark, evidence)
            else:
                yield from _out_of_the_band(s, watermark, evidence)
            if policy.idle == "advance":
                silence = format_duration(policy.idle_timeout)
                yield f"If nothing more is published, the idle rule moves it {silence} or more after the last message."


def published_since(s: Situation, moment: datetime) -> int | None:
    """Count the messages in the histogram with an event time that were published at `moment` or later.

    Return None if some of these messages were pruned from the histogram, as after a seek.
    """
    if s.pruned_before is not None and s.pruned_before > bucket_of(moment):
        return None
    return s.histogram.messages_at(s.histogram.since(to_us(moment), AFTER_ALL))


def _no_data(s: Situation) -> Iterator[str]:
    if (first := _known_from(s)) is not None:
        until = iso(first + s.policy.band + s.policy.reading_slack)
        yield f"The watermark is held until tracking has read beyond {until}, {_reach(s)} after its first message."
        return
    if over := s.histogram.passed_over(s.policy.max_lag):
        yield (
            f"Every valid message that tracking knows of ({counted(over, 'message')}) lags more than "
            f"{format_duration(s.policy.max_lag or ZERO)} (max_lag), so none of them holds or moves the watermark. If "
            "your sources usually lag that much, raise max_lag."
        )
    yield from _rejected(s, None)
    yield f"The watermark is held until tracking has read {_reach(s)} past a message with an event time."


def _rejected(s: Situation, after: datetime | None) -> Iterator[str]:
    cells = s.histogram.event_bucket == NO_EVENT
    if after is not None:
        cells &= s.histogram.publish_bucket > bucket_of(after)
    if count := s.histogram.messages_at(np.flatnonzero(cells)):
        since = "" if after is None else " since the last valid one"
        yield (
            f"Messages were rejected{since}: tracking knows of {counted(count, 'message')} without a "
            "valid event time. `tidemark quarantine` says why (with pubsub.attach, `tidemark try --sample 20`); "
            "correct [message] or the publisher."
        )


def _known_from(s: Situation) -> datetime | None:
    """Return the publish time of the first message that the watermark waits for, according to the histogram. Return
    None if there is no such message.

    With the rule `frontier`, if the histogram's oldest seconds were pruned, return the time at which the pruned part
    ends instead. The frontier is unknown until tracking has read past that time by more than the band."""
    if s.policy.rule == "frontier" and s.pruned_frontier is not None and s.pruned_before is not None:
        return bucket_start(s.pruned_before)
    first_us = s.holding.first_publish_us[s.holding.event_bucket > COPY]
    return from_us(first_us.min()) if len(first_us) else None


def _out_of_the_band(s: Situation, watermark: datetime, evidence: BandEvidence) -> Iterator[str]:
    """Explain what moves the watermark under the rule `band`: base must acknowledge all messages whose event time is
    not above the watermark, and the band must move past them."""
    last = evidence.pin.publish_bucket
    last = _last_that_holds(s, watermark, last, bucket_of(s.oldest_tracking)) or last
    is_passed = evidence.anchor is not None and evidence.anchor >= bucket_start(last + 1)
    if not is_passed:  # messages that tracking has seen beyond its reading enter the band as well
        last = _last_that_holds(s, watermark, last, AFTER_ALL) or last
    until = bucket_start(last + 1)
    lands = until if until > s.oldest_base else None
    yield from _moves_when(s, lands, None if is_passed else f"a message that was published at {iso(until)} or later")


def _past_the_frontier(s: Situation, watermark: datetime, evidence: FrontierEvidence) -> Iterator[str]:
    """Explain what moves the watermark under the rule `frontier`: the event times of all messages that base may still
    deliver, and the frontier, must be above the watermark."""
    until, later = None, None
    least, _, _ = least_published(s, s.oldest_base, AFTER_ALL)
    if least is not None and least.min_event_time <= watermark:
        last = _last_that_holds(s, watermark, bucket_of(s.oldest_base), AFTER_ALL)
        until = None if last is None else bucket_start(last + 1)
    if evidence.frontier <= watermark:
        later = f"a message with an event time after {iso(watermark)}"
    yield from _moves_when(s, until, later)


def _moves_when(s: Situation, until: datetime | None, later: str | None) -> Iterator[str]:
    """Explain what base and tracking must do. Base must acknowledge all messages published before `until`. Tracking
    must read past the message that the text `later` describes, by at least the band. A condition is already met if its
    argument is None."""
    needs = [] if until is None else [_lands(until, s)]
    if later is not None:
        lag = "" if s.policy.max_lag is None else f" that lags at most {format_duration(s.policy.max_lag)}"
        needs.append(f"tracking has read {_reach(s)} past {later}{lag}")
    yield f"The watermark moves when {', and when '.join(needs)}."
    if not has_no_backlog(known(s.tracking), s.policy.near_on_tracking):
        yield "Tracking has a backlog, too. Tracking must first reach the present, or be ahead of base by the band."
    if until is not None and known(s.base).is_read_rarely:
        by = iso(known(s.base).next_by)
        yield f"The next reading of base shows its progress: by {by}, or once its backlog is gone (snapshot_budget)."
    if until is not None and s.base_as_read < s.band_edge:
        yield from _look_after_base(s, until if later is None else None)


def _last_that_holds(s: Situation, watermark: datetime, low: int, high: int) -> int | None:
    """Return the last publish second, from `low` to `high`, with a message that keeps the watermark from moving: its
    event time is not above the watermark. None if there is none."""
    holds = s.holding
    occupied = np.unique(holds.publish_bucket)
    seconds: list[int] = occupied[(occupied >= low) & (occupied <= high)].tolist()

    def is_free(second: int) -> bool:
        least = holds.quantile_between(second, high, s.policy.quantile)
        return least is None or least.min_event_time > watermark

    holding = seconds[: bisect_left(seconds, True, key=is_free)]
    return holding[-1] if holding else None


def _lands(until: datetime, s: Situation) -> str:
    until += s.policy.base_slack
    text = f"base has acknowledged everything that was published before {iso(until)}"
    if s.policy.base_slack > ZERO:
        text += f", including {format_duration(s.policy.base_slack)} of slack"
    # If `until` lies within a cell's second, the whole cell counts, because some of its messages may be older.
    since, later = published_since(s, known(s.base).oldest_unacked), published_since(s, _whole(until))
    if since is None or later is None:
        return text
    ahead = f"at most {counted(since - later, 'message')}" if since > later else "nothing"
    return f"{text} (tracking knows of {ahead})"


def _look_after_base(s: Situation, until: datetime | None) -> Iterator[str]:
    """Advise what to do while base is behind. The watermark would move if base's messages published before `until`
    were released. `until` is None if no release would move it."""
    if s.release is not None:
        yield (
            "Until base has acknowledged the released messages, its reading does not show its other messages. Check "
            "that the sensor `landing` ticks, or release more with another `tidemark release`."
        )
        return
    yield "Check that the reader of base acknowledges: the sensor `landing`, or, with pubsub.attach, your reader."
    release = until and _whole(max(until, known(s.base).oldest_unacked + MICROSECOND))
    if release is not None and release <= s.band_edge:  # otherwise some released messages would be in the band
        yield _let_go(release)


def _let_go(before: datetime) -> str:
    return (
        "Without pubsub.attach, you can release the backlog instead; its messages are then late. `tidemark release "
        f"--before {iso(_whole(before))}` lists them. A later time releases more and takes the watermark further."
    )


def _reach(s: Situation) -> str:
    if s.policy.reading_slack > ZERO:
        return f"{format_duration(s.policy.band + s.policy.reading_slack)} (the band and the slack)"
    return f"{format_duration(s.policy.band)} (the band)"


def _whole(moment: datetime) -> datetime:
    return bucket_start(bucket_of(moment - MICROSECOND) + 1)

"""What would have to happen for a watermark to move, in sentences that can be taken at their word.

A rule that holds is said to end when its own condition does; what the later rules say then is not foretold.
"""

from bisect import bisect_left
from collections.abc import Iterator
from datetime import datetime, timedelta

import numpy as np

from pipeline.clock import from_us, iso, to_us
from pipeline.durations import format_duration
from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.estimator import AFTER_ALL, has_no_backlog
from pipeline.watermark.explain.conditions import messages
from pipeline.watermark.histogram import BUCKET_US, NO_EVENT, Histogram, bucket_of, bucket_start
from pipeline.watermark.policy import Policy
from pipeline.watermark.state import WatermarkState

ZERO, MICROSECOND, SECOND = timedelta(0), timedelta(microseconds=1), timedelta(microseconds=BUCKET_US)


def moves(decision: Decision, policy: Policy, state: WatermarkState | None) -> Iterator[str]:
    """What ends a hold, or moves the watermark (on). `state` is the fold before the decision; None: it is lost, and
    then no more is said than the decision knows by itself."""
    band = format_duration(policy.band)
    match decision.reason:
        case Reason.HELD_STALE_READING:
            yield (
                "It is held until both backlogs can be read again. The problems of the last ticks say why they cannot."
            )
        case Reason.HELD_SEEK:
            yield (
                "It is held for this decision only. What the seek replays is late where it lands below the watermark."
            )
        case Reason.HELD_INCOMPLETE:
            yield from _incomplete(decision, policy)
        case Reason.HELD_TRACKING_BEHIND:
            yield (
                f"It is held until tracking has read to within {format_duration(policy.near_real_time)} of now, or to "
                f"{band} ahead of base. See whether its sensor ticks; `[track]` says how much a tick reads."
            )
        case Reason.HELD_NO_DATA:
            yield _no_data(policy, state)
        case Reason.IDLE_ADVANCED:
            yield "It follows the clock until something is published, then what is published."
        case Reason.IDLE_HELD:
            yield (
                f"It moves when something is published, and tracking has read to {_reach(policy)} after that. With "
                'idle = "advance" it would follow the clock meanwhile.'
            )
        case Reason.UNCHANGED if decision.recent_lag is not None and decision.watermark is not None:
            slack = max(policy.base_slack, policy.reading_slack)
            reached = decision.watermark + policy.band + decision.recent_lag + slack
            yield f"It follows the clock again after {iso(reached)}, or moves when something is published."
        case Reason.ADVANCED | Reason.RELEASED if not _is_behind(decision, policy) or _is_at_frontier(decision):
            yield "It moves on with the next messages that are published and landed."
        case _ if policy.rule == "band":
            yield from _out_of_the_band(decision, policy, state)
        case _:
            yield from _past_the_frontier(decision, policy, state)


def held_from(decision: Decision, policy: Policy) -> datetime | None:
    """From which publish time on base may hold what counts."""
    if decision.released_before is not None or decision.base is None:
        return decision.released_before
    return decision.base.oldest_unacked - policy.base_slack


def band_edge(decision: Decision, policy: Policy) -> datetime | None:
    """A band before what tracking has read: what was published before that is out of the band, but for the anchor."""
    return None if decision.tracking is None else decision.tracking.oldest_unacked - policy.reading_slack - policy.band


def published_since(state: WatermarkState | None, moment: datetime) -> int | None:
    """How many messages with an event time tracking has read that were published since. None where that is not known,
    or not any more, because a part of it was pruned, as after a seek."""
    if state is None or (state.pruned_before is not None and state.pruned_before > bucket_of(moment)):
        return None
    histogram = state.histogram
    return histogram.messages_at(histogram.since(to_us(moment), AFTER_ALL))


def _is_behind(decision: Decision, policy: Policy) -> bool:
    """Whether base is behind by the band, and what pins was published within its backlog."""
    held, before = held_from(decision, policy), band_edge(decision, policy)
    if held is None or before is None or decision.pin is None:
        return False
    return held < before and decision.pin.published_from + SECOND > held


def _is_at_frontier(decision: Decision) -> bool:
    return decision.frontier is not None and decision.frontier == decision.candidate


def _incomplete(decision: Decision, policy: Policy) -> Iterator[str]:
    if decision.base is None or decision.complete_from is None:
        return
    yield f"It is held until {_lands(decision.complete_from, decision, policy, None)}."
    yield _let_go(max(decision.complete_from, decision.base.oldest_unacked + MICROSECOND))


def _no_data(policy: Policy, state: WatermarkState | None) -> str:
    known = None if state is None else _known_from(policy, state)
    if known is None:
        return f"It is held until tracking has read to {_reach(policy)} after a message with an event time."
    return (
        f"It is held until tracking has read beyond {iso(known + policy.band + policy.reading_slack)}, "
        f"{_reach(policy)} after the first publish time of which anything is known."
    )


def _known_from(policy: Policy, state: WatermarkState) -> datetime | None:
    """From which publish time on a message with an event time is known. What was pruned is summed up, and of no use
    until tracking has come there again, as after a seek or with a wider band."""
    if policy.rule == "frontier" and state.passed is not None and state.pruned_before is not None:
        return bucket_start(state.pruned_before)
    valid = state.histogram.event_bucket != NO_EVENT
    if not valid.any():
        return None
    first = from_us(int(state.histogram.first_publish_us[valid].min()))
    if policy.rule == "frontier" and policy.frontier_quantile > 0:  # only whole seconds count
        return bucket_start(bucket_of(first) + 1)
    return first


def _out_of_the_band(decision: Decision, policy: Policy, state: WatermarkState | None) -> Iterator[str]:
    """By the rule `band`: what is not above the watermark must have landed, and be out of the band and no anchor."""
    held, before, tracking = held_from(decision, policy), band_edge(decision, policy), decision.tracking
    pin, watermark = decision.pin, decision.watermark
    if held is None or before is None or tracking is None or pin is None or watermark is None:
        return
    last = pin.publish_bucket
    if state is not None:
        high = bucket_of(tracking.oldest_unacked - policy.reading_slack)
        last = _last_that_holds(state.histogram, last, high, watermark, policy.quantile) or last
    is_passed = decision.anchor is not None and decision.anchor >= bucket_start(last + 1)
    if not is_passed and state is not None:  # what tracking has seen beyond its reading comes into the band as well
        last = _last_that_holds(state.histogram, last, AFTER_ALL, watermark, policy.quantile) or last
    until = bucket_start(last + 1)
    needs = [_lands(until, decision, policy, state)] if until > held else []
    if not is_passed:
        needs.append(
            f"tracking has read to {_reach(policy)} after a message that was published at {iso(until)} or later"
        )
    yield f"It moves when {', and when '.join(needs)}."
    yield from _keep_tracking_ready(decision, policy)
    if held < before and until > held:
        yield from _look_after_base(decision, until if is_passed else None, before)


def _past_the_frontier(decision: Decision, policy: Policy, state: WatermarkState | None) -> Iterator[str]:
    """By the rule `frontier`: what base may hold must be above the watermark, and so must the frontier."""
    held, before, watermark = held_from(decision, policy), band_edge(decision, policy), decision.watermark
    if held is None or before is None or watermark is None or decision.frontier is None or decision.pin is None:
        return
    until = None if decision.pin.min_event_time == decision.frontier else decision.pin.published_from + SECOND
    if state is not None:
        least = state.histogram.minimum_at(state.histogram.since(to_us(held), AFTER_ALL))
        last = None
        if least is not None and least.min_event_time <= watermark:
            last = _last_that_holds(state.histogram, bucket_of(held), AFTER_ALL, watermark, policy.quantile)
        until = None if last is None else bucket_start(last + 1)
    needs = [] if until is None else [_lands(until, decision, policy, state)]
    is_passed = decision.frontier > watermark
    if not is_passed:
        passed_over = " that is not passed over (frontier_quantile)" if policy.frontier_quantile > 0 else ""
        later = f"a message with an event time after {iso(watermark)}{passed_over}"
        needs.append(f"tracking has read to {_reach(policy)} after {later}")
    yield f"It moves when {', and when '.join(needs)}."
    yield from _keep_tracking_ready(decision, policy)
    if until is not None and held < before:
        yield from _look_after_base(decision, until if is_passed else None, before)


def _last_that_holds(histogram: Histogram, low: int, high: int, watermark: datetime, quantile: float) -> int | None:
    """The last publish second from `low` to `high` whose least event time that counts is not above the watermark."""
    occupied = np.unique(histogram.publish_bucket)
    seconds: list[int] = occupied[(occupied >= low) & (occupied <= high)].tolist()

    def is_free(second: int) -> bool:
        """Whether nothing that was published then or later is as old as the watermark; once free, free from there."""
        least = histogram.quantile_between(second, high, quantile)
        return least is None or least.min_event_time > watermark

    holding = seconds[: bisect_left(seconds, True, key=is_free)]
    return holding[-1] if holding else None


def _lands(until: datetime, decision: Decision, policy: Policy, state: WatermarkState | None) -> str:
    """That base must be read to be past a moment, slack included, and how many messages that are known are ahead."""
    text = f"base has landed everything that was published before {iso(until + policy.base_slack)}"
    if policy.base_slack > ZERO:
        text += f", {format_duration(policy.base_slack)} of slack (base_slack) included"
    if decision.base is None:
        return text
    since = published_since(state, decision.base.oldest_unacked)
    later = published_since(state, until + policy.base_slack)
    if since is None or later is None:
        return text
    ahead = f"at most {messages(since - later)}" if since > later else "nothing"
    return f"{text} (of what tracking has read, {ahead})"


def _keep_tracking_ready(decision: Decision, policy: Policy) -> Iterator[str]:
    if decision.tracking is not None and not has_no_backlog(decision.tracking, policy):
        yield "Tracking has a backlog: it must be ahead of base by the band then as well, or near now."


def _look_after_base(decision: Decision, until: datetime | None, before: datetime) -> Iterator[str]:
    """Base is behind. `until`: from when on nothing would hold if an operator let go what base still has."""
    if decision.released_before is not None:
        yield (
            "Until base has landed what was let go, its reading does not tell what else it holds. See whether its "
            "sensor ticks, or let more go with a further `tidemark release`."
        )
        return
    yield "See whether base's sensor ticks, and whether another consumes base."
    if until is None or decision.base is None:
        return
    release = _whole(max(until, decision.base.oldest_unacked + MICROSECOND))
    if release <= before:  # else a part of it would be in the band
        yield _let_go(release)


def _let_go(before: datetime) -> str:
    return (
        f"Or when an operator lets it go, to be late: `tidemark release --before {iso(_whole(before))}` shows what it "
        "is. A later time lets more go, and takes the watermark further."
    )


def _reach(policy: Policy) -> str:
    if policy.reading_slack > ZERO:
        return f"{format_duration(policy.band + policy.reading_slack)} (the band and reading_slack)"
    return f"{format_duration(policy.band)} (the band)"


def _whole(moment: datetime) -> datetime:
    """Rounded up to a second."""
    return bucket_start(-(-to_us(moment) // BUCKET_US))

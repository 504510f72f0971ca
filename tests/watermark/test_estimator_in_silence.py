"""The estimator: what a silence does. Seconds from a fixed start; a band of 10 s unless said otherwise."""

from datetime import timedelta

import pytest

from tests.watermark.builders import (
    EVERY_SECOND,
    START_BUCKET,
    at,
    decide,
    effective,
    flat,
    published,
    seconds,
)
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import recent_lag

# ------------------------------------------------------------------------------------------------------- idle


def idle_at(moment: float, **more: object) -> Decision:
    return decide(EVERY_SECOND, base=effective(moment), tracking=effective(moment), **more)  # type: ignore[arg-type]


def test_silence_is_not_idle_while_base_may_hold_what_was_published_before_it() -> None:
    # A source catches up in a burst: 40 s behind at 100, 1 s behind at 101. Base holds the first of it ever since.
    caught_up = published([(80, 40), (100, 60), (101, 100)])
    base = effective(100, observed=101, newest=300, names=True)  # no backlog when it was read first
    decision = decide(caught_up, base=base, tracking=effective(300))
    assert (decision.watermark, decision.reason) == (at(60), Reason.ADVANCED)
    landed = decide(caught_up, base=effective(300), tracking=effective(300))
    assert (landed.watermark, landed.reason) == (at(300 - 10 - 1), Reason.IDLE_ADVANCED)


def test_the_idle_watermark_follows_the_lower_of_both_readings_less_their_slack() -> None:
    decision = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300))
    assert decision.watermark == at(295 - 10 - 1)
    policy = Policy(base_slack=seconds(1), reading_slack=seconds(8))
    slack = decide(EVERY_SECOND, base=effective(295, observed=300), tracking=effective(300), policy=policy)
    assert slack.watermark == at(300 - 8 - 10 - 1)


def test_event_times_ahead_of_their_publish_time_do_not_push_the_idle_watermark_forward() -> None:
    decision = decide(published([(99, 250)]), base=effective(300), tracking=effective(300))
    assert (flat(decision).recent_lag, decision.watermark) == (seconds(0), at(290))


def test_the_recent_lag_is_the_largest_of_the_newest_bucket_with_an_event_time() -> None:
    histogram = published([(10, -100), (20.25, 15), (20.75, 20)], rejected=[25])
    assert recent_lag(histogram, timedelta(minutes=5)) == seconds(5.25)
    assert recent_lag(Histogram.empty(), timedelta(minutes=5)) == seconds(0)


@pytest.mark.parametrize("behind", ["base", "tracking"])
def test_a_backlog_on_either_subscription_is_not_idle(behind: str) -> None:
    readings = {"base": effective(300), "tracking": effective(300)} | {behind: effective(280, observed=300)}
    decision = decide(EVERY_SECOND, **readings)
    assert decision.reason is (Reason.HELD_TRACKING_BEHIND if behind == "tracking" else Reason.ADVANCED)
    assert flat(decision).recent_lag is None


def test_tracking_s_backlog_is_not_idle_even_where_it_is_ahead_of_an_older_reading_of_base() -> None:
    decision = decide(EVERY_SECOND, base=effective(260, observed=262), tracking=effective(280, observed=300))
    assert (decision.reason, decision.watermark) == (Reason.ADVANCED, at(98))


def test_rejected_messages_do_not_hold_off_the_idle_rule() -> None:
    histogram = EVERY_SECOND + published([], rejected=range(100, 300))
    decision = decide(histogram, base=effective(300), tracking=effective(300))
    assert (decision.reason, decision.watermark) == (Reason.IDLE_ADVANCED, at(289))


def test_a_silence_that_began_before_the_histogram_was_pruned_is_still_idle() -> None:
    pruned = EVERY_SECOND.pruned(START_BUCKET + 99)
    assert decide(pruned, base=effective(300), tracking=effective(300)) == idle_at(300)

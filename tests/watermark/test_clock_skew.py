"""A machine whose clock disagrees with Pub/Sub's: what is proven, told apart from a backlog, and said."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tests.watermark.builders import EVERY_SECOND, at, bounded, empty_at, reading, seconds
from tests.watermark.explain import explained
from tests.watermark.fold import Log
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.readings import Reading


def ticks(log: Log, ahead: float, *servers: float) -> list[Reason]:
    """The reasons of ticks at the server's moments, with both subscriptions empty."""
    return [
        log.read(server + ahead, empty_at(server + 0.05, ahead=ahead), empty_at(server, ahead=ahead)).reason
        for server in servers
    ]


def live() -> Log:
    return Log(messages=EVERY_SECOND)


def test_a_clock_that_is_15_s_ahead_is_told_from_a_backlog_at_the_second_tick() -> None:
    behind, skew = Reason.HELD_TRACKING_BEHIND, Reason.HELD_CLOCK_SKEW
    assert ticks(live(), 15, 80, 90, 100) == [behind, skew, skew]


def test_a_clock_that_was_an_hour_ahead_and_is_right_again_is_named() -> None:
    log = explained.clock_set_back()
    explanation, decision = log.explain(), log.state.decision
    assert "was set back: a reading was observed at 2026-11-21T06:21:30.040Z" in decision.sentence()
    assert "this machine's clock was set back" in " ".join(explanation.sentences())
    assert any("2026-11-21T06:21:30" in move for move in explanation.moves)


def test_a_clock_that_is_behind_or_near_holds_nothing() -> None:
    for ahead in (-15, -1, 0, 1, 9):
        assert ticks(live(), ahead, 80, 90, 100) == [Reason.ADVANCED] * 3
    log = live()
    assert ticks(log, 0, 70, 80) == [Reason.ADVANCED] * 2
    assert ticks(log, -3600, 90, 100) == [Reason.ADVANCED] * 2  # it was set back by an hour
    assert "This machine's clock is at least 1h behind Pub/Sub's" in " ".join(log.explain().sentences())


lags = st.floats(10.5, 300)


@bounded
@given(base=st.lists(lags, min_size=2, max_size=2), tracking=st.lists(lags, min_size=2, max_size=2))
def test_backlogs_that_differ_are_no_skew(base: list[float], tracking: list[float]) -> None:
    """Two ticks with real backlogs on both: tracking is behind, unless all four lags agree to within a tenth."""
    log = live()
    reasons = []
    for now, base_lag, tracking_lag in zip((90, 100), base, tracking, strict=True):
        both = [answered(now, now - lag) for lag in (base_lag, tracking_lag)]
        reasons.append(log.read(now, *both).reason)
    if max(*base, *tracking) - min(*base, *tracking) > 0.2:
        assert Reason.HELD_CLOCK_SKEW not in reasons


def test_readings_that_do_not_tell_when_they_were_answered_decide_as_before() -> None:
    """Those of logs that were written earlier, and of monitoring."""
    log = live()
    for server in (80, 90, 100):
        pair = [replace(empty_at(moment, ahead=15), answered_at=None) for moment in (server + 0.05, server)]
        assert log.read(server + 15, *pair).reason is Reason.HELD_TRACKING_BEHIND


def answered(observed: float, oldest: float) -> Reading:
    """A reading of a message, answered after 20 ms."""
    return replace(reading(observed, oldest), answered_at=at(observed) + seconds(0.02))

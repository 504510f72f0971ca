"""The model of what grows with the traffic."""

from benchmarks import scale


def test_a_limit_is_the_least_traffic_that_is_beyond_it() -> None:
    assert scale.limit_of("continuous", lambda load: load.rate, 1234) == "1,200/s"
    assert scale.limit_of("ticks", lambda load: load.rate, 5000) == "5,000/s"
    assert scale.limit_of("ticks", lambda load: load.rate, 1e9) == "beyond what ticks land"


def test_a_round_that_is_full_ends_early() -> None:
    low, high = (scale.Load("continuous", rate) for rate in (33_000, 333_000))
    assert low.cycle_seconds == scale.ROUND_SECONDS
    assert 2 * high.rate * high.cycle_seconds == scale.ROUND_MESSAGES
    assert high.commits_a_minute > low.commits_a_minute
    assert all(scale.tables())

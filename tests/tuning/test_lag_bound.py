"""The recommended `max_lag`."""

from datetime import timedelta

from tidemark.pipeline.tuning.disorder import Distribution, LagBound, lag_bound
from tidemark.pipeline.tuning.report import lag_bound_sentence

BAND = timedelta(seconds=10)


def test_it_is_the_least_round_duration_that_hardly_any_message_exceeds() -> None:
    lag = Distribution((2.0, 60.0, 200.0, 4000.0), (9_000, 989, 10, 1))
    assert lag_bound(lag, BAND, 0.0001) == LagBound(timedelta(minutes=5), 1 / 10_000)
    assert lag_bound(lag, BAND, 0.01) == LagBound(timedelta(minutes=1), 11 / 10_000)
    assert lag_bound(lag, BAND, 0.0) == LagBound(timedelta(hours=2), 0.0)
    assert lag_bound(lag, timedelta(minutes=5), 0.01) == LagBound(timedelta(minutes=10), 1 / 10_000)


def test_it_is_said_with_what_it_passes_over() -> None:
    lag = Distribution((2.0, 4000.0), (9_999, 1))
    said = lag_bound_sentence(lag, lag_bound(lag, BAND, 0.0001))
    assert said.startswith(
        "With max_lag = 1m no slow clock would hold the watermark further back than that and the band"
    )
    assert "0.01 % of the messages would be passed over (the worst is published 1h6m40s after its event)" in said
    for_years = Distribution((1e9,), (1,))
    assert lag_bound_sentence(for_years, lag_bound(for_years, BAND, 0.0)).startswith("No max_lag up to 7d fits")

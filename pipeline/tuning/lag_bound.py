"""The `watermark.max_lag` that fits a source: a bound on lag that hardly any message exceeds."""

from dataclasses import dataclass
from datetime import timedelta

from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.phrases import percent, words
from tidemark.pipeline.tuning.disorder import Distribution

BOUNDS = tuple(timedelta(seconds=60 * minutes) for minutes in (1, 2, 5, 10, 30, 60, 120, 360, 720, 1440, 10080))
"""Bounds to choose from: round numbers, from a minute to a week."""


@dataclass(frozen=True, slots=True)
class LagBound:
    """A `max_lag`, and the share of the messages that lag more."""

    max_lag: timedelta
    passed_over_share: float


def lag_bound(lag: Distribution, band: timedelta, target: float) -> LagBound | None:
    """Find the least bound, at least twice the band, that at most a share `target` of the messages exceed."""
    total = sum(lag.counts)
    for bound in BOUNDS:
        beyond = sum(
            count for seconds, count in zip(lag.seconds, lag.counts, strict=True) if seconds > bound.total_seconds()
        )
        if bound >= 2 * band and beyond <= target * total:
            return LagBound(bound, beyond / total)
    return None


def lag_bound_sentence(lag: Distribution, found: LagBound | None) -> str:
    """`With max_lag = 5m no slow clock would hold the watermark …`"""
    worst = words(max(lag.seconds[-1], 0.0))
    if found is None:
        return f"No max_lag up to {format_duration(BOUNDS[-1])} fits: the worst is published {worst} after its event."
    passed = percent(found.passed_over_share)
    return (
        f"With max_lag = {format_duration(found.max_lag)} no slow clock would hold the watermark further back than that"
        f" and the band; {passed} of the messages would be passed over (the worst is published {worst} after its "
        "event)."
    )

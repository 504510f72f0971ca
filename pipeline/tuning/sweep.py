"""Tries many bands with several rules on recorded traffic, and measures the late share and the watermark's lag.

The late share of a band is exact: a full replay with this band and the recorded readings would give the same share.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile
from typing import Literal

import numpy as np
import numpy.typing as npt

from tidemark.pipeline.clock import duration_us, format_duration, to_us
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.replay.replay import decide_again
from tidemark.pipeline.replay.trace import NO_WATERMARK, Tick, Trace, late_landings, watermarks_us
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.state import WatermarkState

BANDS = tuple(timedelta(seconds=n) for n in (0, 1, 2, 3, 5, 7, 10, 14, 20, 30, 45, 60, 90, 120, 180, 300))
TARGETS = (0.01, 0.001, 0.0001, 0.0)
SECOND = timedelta(seconds=1)

WITHOUT_WATERMARK = "no watermark"
"""Stands for a band if no tried band gave a watermark."""

PARTS = 4
"""Number of parts into which each round of the search for a band divides the remaining interval."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A rule and a quantile: the parts of a policy that a tuning varies in addition to the band."""

    rule: Literal["band", "frontier"] = "band"
    quantile: float = 0.0

    @property
    def name(self) -> str:
        """The human-readable name, such as `band` or `frontier, quantile 0.01`."""
        return f"{self.rule}, quantile {self.quantile:g}" if self.quantile else self.rule


PolicyOf = Callable[[Variant, timedelta], Policy]
"""A function that returns the policy in the settings, but with the given variant and band."""


@dataclass(frozen=True, slots=True)
class BandOutcome:
    """The outcome of one variant with one band: the numbers of landed and of late messages, and the median and the 99th
    percentile of the watermark's lag in seconds (None without a watermark)."""

    variant: Variant
    band: timedelta
    landed: int
    late: int
    lag_p50: float | None
    lag_p99: float | None

    @property
    def late_share(self) -> float:
        return self.late / self.landed if self.landed else 0.0


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The recommended band of a variant for a target late share.

    This is the smallest tried band that gave a watermark and that, like all larger tried bands, meets the target.
    `outcome` is the outcome with this band. It is None if even the `largest` tried band does not meet the target, or if
    no band that meets it gave a watermark (without a watermark, nothing is late).
    """

    variant: Variant
    target: float
    outcome: BandOutcome | None
    largest: BandOutcome

    def __str__(self) -> str:
        """Return the recommended band as text, such as `14s`, or else `not even 5m` or WITHOUT_WATERMARK."""
        if self.outcome is None and self.largest.late_share <= self.target:
            return WITHOUT_WATERMARK
        return format_duration(self.outcome.band) if self.outcome else f"not even {format_duration(self.largest.band)}"


@dataclass(frozen=True, slots=True)
class Tuning:
    """The outcomes of a tuning: variant by variant, in ascending order of the bands. `targets` are the late shares to
    aim at, in descending order. `ticks` is the number of ticks."""

    variants: Sequence[Variant]
    outcomes: Sequence[BandOutcome]
    targets: Sequence[float]
    ticks: int

    @property
    def recommendations(self) -> list[Recommendation]:
        return [self.recommended(variant, target) for variant in self.variants for target in self.targets]

    def of(self, variant: Variant) -> list[BandOutcome]:
        """Return the outcomes of a variant, in ascending order of the bands."""
        return [outcome for outcome in self.outcomes if outcome.variant == variant]

    def at(self, variant: Variant, band: timedelta) -> BandOutcome:
        """Return the outcome of a variant with one of the tried bands."""
        return next(outcome for outcome in self.of(variant) if outcome.band == band)

    def recommended(self, variant: Variant, target: float) -> Recommendation:
        """Return the recommendation for a variant and a target: the smallest band that meets the target."""
        outcomes = self.of(variant)
        return Recommendation(variant, target, _enough(outcomes, target), outcomes[-1])


@dataclass(frozen=True, slots=True)
class Workload:
    """The traffic on which bands are tried: the recorded ticks, the messages, and the state before the first tick. If
    `state` is None, the ticks begin with an empty state.

    Lags are measured only at ticks from `from_us` to `until_us`. Only messages published in this period are counted.
    """

    ticks: Sequence[Tick]
    messages: Trace
    from_us: int
    until_us: int
    state: WatermarkState | None = None


def tune(
    workload: Workload,
    variants: Sequence[Variant],
    policy_of: PolicyOf,
    bands: Iterable[timedelta] = BANDS,
    targets: Iterable[float] = TARGETS,
) -> Tuning:
    """Try all bands with all variants. Then try further bands, in whole seconds, to find the smallest one that meets
    each target."""
    tuning = Tuning(variants, [], sorted(set(targets), reverse=True), len(workload.ticks))
    missing = [(variant, band) for variant in variants for band in set(bands)]
    while missing:
        outcomes = [*tuning.outcomes, *outcomes_of(workload, missing, policy_of)]
        outcomes.sort(key=lambda outcome: (variants.index(outcome.variant), outcome.band))
        tuning = replace(tuning, outcomes=outcomes)
        missing = [
            (variant, band)
            for variant in variants
            for band in {band for target in tuning.targets for band in _between(tuning.of(variant), target)}
        ]
    return tuning


def outcomes_of(
    workload: Workload, candidates: Sequence[tuple[Variant, timedelta]], policy_of: PolicyOf
) -> list[BandOutcome]:
    """Return the outcome of each candidate, which is a variant with a band. Decisions are made for each candidate
    separately. One pass over the messages counts the late ones for all candidates."""
    made_us = np.array([to_us(tick.at) for tick in workload.ticks], dtype=np.int64)
    watermarks = np.array([watermarks_of(workload, policy_of(*candidate)) for candidate in candidates])
    late, landed = late_landings(workload.messages, made_us, watermarks)
    counted = (made_us >= workload.from_us) & (made_us <= workload.until_us)
    return [
        BandOutcome(variant, band, landed, int(count), *_lags(made_us, own, counted))
        for (variant, band), count, own in zip(candidates, late.sum(axis=1), watermarks, strict=True)
    ]


def watermarks_of(workload: Workload, policy: Policy) -> Ints:
    """Return the watermark at each tick, as the production code decides it under a policy."""
    return watermarks_us([made.decision.watermark for made in decide_again(workload.ticks, policy, workload.state)])


def _lags(tick_us: Ints, watermark_us: Ints, counted: npt.NDArray[np.bool_]) -> tuple[float | None, float | None]:
    """Return the median and the 99th percentile of the watermark's lag in seconds, over the counted ticks that have a
    watermark; None for both if there is no such tick."""
    counted = counted & (watermark_us != NO_WATERMARK)
    if not counted.any():
        return None, None
    lag = (tick_us - watermark_us)[counted] / duration_us(SECOND)
    return quantile(lag, 0.5), quantile(lag, 0.99)


def _enough(outcomes: Sequence[BandOutcome], target: float) -> BandOutcome | None:
    """Return the outcome of the smallest tried band that gave a watermark and that, like all larger tried bands, meets
    the target. Return None if there is none. `outcomes` are in ascending order of the bands."""
    enough = takewhile(lambda outcome: outcome.late_share <= target, reversed(outcomes))
    return next(reversed([outcome for outcome in enough if outcome.lag_p50 is not None]), None)


def _between(outcomes: Sequence[BandOutcome], target: float) -> list[timedelta]:
    """Return the bands to try next for a target, in whole seconds. They lie between the smallest tried band that meets
    the target and the next smaller tried band."""
    enough = _enough(outcomes, target)
    below = max((outcome.band for outcome in outcomes if enough and outcome.band < enough.band), default=None)
    if enough is None or below is None:
        return []
    low, high = below // SECOND, -(-enough.band // SECOND)
    inner = {low + round((high - low) * part / PARTS) for part in range(1, PARTS)}
    return [band for second in sorted(inner) if below < (band := second * SECOND) < enough.band]

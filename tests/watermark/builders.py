"""Short ways to write moments, messages, histograms and readings, in seconds from one fixed start."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.lake.log import codec
from tidemark.pipeline.watermark.decision import BandEvidence, Decision, FrontierEvidence, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import BUCKET_US, NO_MINIMUM, Histogram, Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.situation import Situation

START = datetime(2026, 11, 21, 5, 20, tzinfo=UTC)
START_US = to_us(START)
START_BUCKET = START_US // BUCKET_US
LONG_AGO = START - timedelta(days=30)

Times = tuple[int, int]
"""A message's publish time and event time, in microseconds."""

bounded = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""Enough examples to find what there is, few enough for a busy machine, and no timing in it."""


def at(seconds: float) -> datetime:
    """A moment, so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def seconds(amount: float) -> timedelta:
    """A duration."""
    return timedelta(seconds=amount)


def ints(values: Iterable[int]) -> Ints:
    """An int64 array, also of nothing."""
    return np.array(list(values), dtype=np.int64)


def histogram_of(messages: Sequence[Times], rejected: Sequence[int] = ()) -> Histogram:
    """The histogram of messages, and of rejected ones, in microseconds."""
    every = [*messages, *((publish, NO_MINIMUM) for publish in rejected)]
    return Histogram.of(ints(publish for publish, _ in every), ints(event for _, event in every))


def published(messages: Iterable[tuple[float, float]], rejected: Iterable[float] = ()) -> Histogram:
    """The histogram of (publish time, event time) pairs and of rejected ones, in seconds from the start."""
    return histogram_of(
        [(to_us(at(publish)), to_us(at(event))) for publish, event in messages],
        [to_us(at(publish)) for publish in rejected],
    )


EVERY_SECOND = published((second, second - 1) for second in range(100))
"""Published at 0, 1, ... 99; each happened one second before."""


def beats(start: int, end: int) -> list[tuple[float, float]]:
    """Publish and event times of one message a second."""
    return [(second + 0.25, second - 0.75) for second in range(start, end)]


def reading(observed: float, oldest: float | None = None, *, names: bool | None = None) -> Reading:
    """An observation, in seconds from the start; without `oldest`, of an empty backlog."""
    return Reading(
        observed_at=at(observed),
        oldest_unacked=at(observed if oldest is None else oldest),
        names_a_message=(oldest is not None) if names is None else names,
    )


def empty_at(server: float, *, ahead: float) -> Reading:
    """What a machine whose clock is ahead of the server's reads of an empty subscription, in the middle of a call."""
    asked, answered = server + ahead - 0.01, server + ahead + 0.01
    observed = max(asked, server - 0.02)
    return replace(reading(observed, server, names=server < observed - 1), answered_at=at(answered))


def effective(
    oldest: float, *, observed: float | None = None, newest: float | None = None, names: bool = False, epoch: int = 1
) -> EffectiveReading:
    """An effective reading, in seconds from the start.

    Without `observed` it had no backlog; without `newest` it is itself the newest observation.
    """
    observed = oldest if observed is None else observed
    return EffectiveReading(
        oldest_unacked=at(oldest),
        names_a_message=names,
        observed_at=at(observed),
        epoch=epoch,
        epoch_began=LONG_AGO,
        newest=reading(observed if newest is None else newest, oldest, names=names),
    )


def flat(decision: Decision) -> SimpleNamespace:
    """A decision with the fields of its evidence beside its own."""
    return SimpleNamespace(**codec.flat(decision))


def uncounted(bound: BandEvidence | FrontierEvidence) -> BandEvidence | FrontierEvidence:
    """The evidence without its counts, which are upper bounds."""
    return replace(bound, messages=0, pin=replace(bound.pin, count=0))


def standing_at(watermark: float | None) -> Decision:
    """A previous decision with this watermark."""
    return Decision(at(0), None if watermark is None else at(watermark), Reason.ADVANCED)


def decide(
    histogram: Histogram,
    *,
    base: EffectiveReading | None,
    tracking: EffectiveReading | None,
    policy: Policy | None = None,
    previous: Decision | None = None,
    complete_from: datetime = LONG_AGO,
    now: float | None = None,
    pruned_before: int | None = None,
    rules: Sequence[Rule] = RULES,
) -> Decision:
    """One decision, at the newest observation unless `now` says otherwise."""
    newest = max((each.newest.observed_at for each in (base, tracking) if each is not None), default=START)
    situation = situation_of(
        histogram,
        base=base,
        tracking=tracking,
        policy=Policy() if policy is None else policy,
        previous=previous,
        complete_from=complete_from,
        at=newest if now is None else at(now),
        pruned_before=pruned_before,
    )
    return estimate(situation, rules)


def situation_of(histogram: Histogram, *, previous: Decision | None, **more: Any) -> Situation:
    """What a decision depends on, the watermark being that of the decision before."""
    watermark = None if previous is None else previous.watermark
    return Situation(histogram, previous=previous, watermark=watermark, **more)


def disorder(messages: Iterable[Times]) -> int:
    """The smallest D (microseconds) such that `et_a < et_b` implies `pt_a <= pt_b + D`, for any two messages."""
    messages = list(messages)
    return max([0, *(a[0] - b[0] for a in messages for b in messages if a[1] < b[1])])


near_times = st.integers(START_US - 4_000_000, START_US + 8_000_000)
"""Times within a few buckets of each other, so that cells are shared."""

message_lists = st.lists(st.tuples(near_times, near_times).map(lambda times: (times[0], min(times))), max_size=30)
"""No event time is after its publish time: a histogram counts such a message with its publish time."""

rejected_lists = st.lists(near_times, max_size=6)
buckets = st.integers(START_BUCKET - 6, START_BUCKET + 10)

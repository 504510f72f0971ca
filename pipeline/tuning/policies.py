"""Decides the same ticks under many policies at once, with the sensors' own fold and estimator.

The ticks' histograms are added up once for all policies. Each policy keeps its own decisions, how far it has pruned,
and the frontier of what it pruned, so it decides exactly what it would have decided alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, replace

import numpy as np

from pipeline.replay.replay import Tick
from pipeline.replay.trace import NO_WATERMARK, Batch, first_tick_at
from pipeline.watermark.histogram import Histogram, Ints
from pipeline.watermark.policy import Policy
from pipeline.watermark.state import Compacted, DecisionRecord, Snapshot, WatermarkState

EMPTY = Histogram.empty()

CELLS = [column.name for column in fields(Histogram) if column.default is MISSING]
"""The histogram's columns."""


def decide_for_each(
    ticks: Iterable[Tick], policies: Sequence[Policy], state: WatermarkState | None = None
) -> Iterator[list[DecisionRecord]]:
    """Yield, for each tick, the decision of each policy: the one that `decide_again` gives for that policy alone.

    Ticks from the middle of a log begin with `state`. Its decision is left out, because another policy made it: a
    policy has no watermark until its own band is covered, and its readings begin anew.
    """
    shared = EMPTY if state is None else state.histogram
    begun = WatermarkState() if state is None else replace(state, histogram=EMPTY, record=None)
    states = [begun] * len(policies)
    for tick in ticks:
        before, delta = shared, EMPTY
        for entry in tick.entries:
            match entry:
                case Snapshot():
                    delta = delta + entry.histogram
                case Compacted():  # repeats earlier entries
                    pass
                case _:
                    states = [each.after(each.number + 1, entry) for each in states]
        shared = before + delta
        decisions = []
        for number, policy in enumerate(policies):
            seeing = replace(states[number], histogram=_seen(before, delta, shared, states[number].pruned_before))
            decided = seeing.decide(tick.base, tick.tracking, policy, tick.at)
            states[number] = replace(seeing.after(seeing.number + 1, decided), histogram=EMPTY)
            decisions.append(decided)
        reached = [each.pruned_before for each in states if each.pruned_before is not None]
        if len(reached) == len(policies) and reached:
            shared = shared.pruned(min(reached))
        yield decisions


def late_of_each(batch: Batch, tick_us: Ints, watermarks_us: Ints) -> Ints:
    """How many messages of a batch are late under each policy: the sum of `late_in`, for all policies at once.

    `watermarks_us` has a row for each policy and a column for each tick.
    """
    landing = first_tick_at(tick_us, batch.landed_us)
    highest = np.concatenate([[NO_WATERMARK], watermarks_us.max(axis=0)])
    # Most messages are above the watermark of every policy, so few are left to sort.
    some = np.flatnonzero((landing > 0) & (landing < len(tick_us)) & (batch.event_us < highest[landing]))
    late = np.zeros(len(watermarks_us), dtype=np.int64)
    order = some[np.lexsort((batch.event_us[some], landing[some]))]
    landing, event_us = landing[order], batch.event_us[order]
    numbers, starts = np.unique(landing, return_index=True)
    for number, low, high in zip(numbers, starts, np.append(starts, len(landing))[1:], strict=True):
        late += np.searchsorted(event_us[low:high], watermarks_us[:, number - 1], side="left")
    return late


def _seen(before: Histogram, delta: Histogram, both: Histogram, pruned_before: int | None) -> Histogram:
    """The histogram of a policy that pruned `before` up to a bucket and then folded `delta`."""
    if pruned_before is None:
        return both
    if len(delta) and int(delta.publish_bucket[0]) < pruned_before:  # a redelivery, kept until the next decision
        return _from(before, pruned_before) + delta
    return _from(both, pruned_before)


def _from(histogram: Histogram, bucket: int) -> Histogram:
    """Like `Histogram.pruned`, but without a copy, which would cost too much for many policies at every tick."""
    kept = slice(int(np.searchsorted(histogram.publish_bucket, bucket)), None)
    return replace(histogram, **{name: getattr(histogram, name)[kept] for name in CELLS})

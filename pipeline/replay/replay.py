"""Deciding again: what a run's ticks were made from, and the decisions that follow from it.

A tick is what one decision saw: the log entries that were new, and the two readings. It comes from a trace of
messages (`pipeline/replay/trace.py`) or from a real log; the fold and the estimator are those of production.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from pipeline.watermark.decision import Decision
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import Reading
from pipeline.watermark.state import Compacted, DecisionRecord, Entry, WatermarkState


@dataclass(frozen=True, slots=True)
class Tick:
    """What a decision at `at` was made from: the entries since the last one, and the readings (None: unknown).

    `recorded` is the decision that was made then, where there was one.
    """

    at: datetime
    entries: tuple[Entry, ...]
    base: Reading | None
    tracking: Reading | None
    recorded: DecisionRecord | None = None


def decide_again(
    ticks: Iterable[Tick], policy: Policy, state: WatermarkState | None = None
) -> Iterator[DecisionRecord]:
    """One decision a tick, by the sensors' own fold and estimator, each resting on those before it.

    Compacted entries are passed over: they hold what was decided then, and all that went into them stands before them.
    Assumption: a `Beginning` is among the first tick's entries, or `state` holds one.
    """
    state = WatermarkState() if state is None else state
    for tick in ticks:
        for entry in tick.entries:
            if not isinstance(entry, Compacted):
                state = state.after(state.number + 1, entry)
        decided = state.decide(tick.base, tick.tracking, policy, tick.at)
        state = state.after(state.number + 1, decided)
        yield decided


@dataclass(frozen=True, slots=True)
class Difference:
    """The first that does not follow from what is recorded before it: a decision, or the state of a compacted
    entry."""

    recorded: DecisionRecord | WatermarkState
    derived: DecisionRecord | WatermarkState


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many decisions and compacted entries came out as they are recorded, and the first that did not.

    `unknowable` counts what was written after an entry that is lost now, by somebody who still knew it: that cannot be
    derived, and is taken as it is.
    """

    decisions: int
    compacted: int
    unknowable: int
    first_difference: Difference | None


def verify(ticks: Iterable[Tick], state: WatermarkState | None = None) -> Verdict:
    """Derive each recorded decision again, from the recorded ones before it, with the policy that it was made with,
    and each compacted state from the entries that it holds.

    Equality is of every value, bit for bit.
    """
    state = WatermarkState() if state is None else state
    decisions = compacted = unknowable = 0
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Compacted):
                if state.is_missing_entries and not entry.state.is_missing_entries:
                    unknowable += 1
                elif _as_compacted(state, entry.state) == entry.state:
                    compacted += 1
                else:
                    derived = _as_compacted(state, entry.state)
                    return Verdict(decisions, compacted, unknowable, Difference(entry.state, derived))
            state = state.after(state.number + 1, entry)
        recorded = tick.recorded
        if recorded is None:
            raise ValueError("a tick without its recorded decision cannot be verified")
        if state.is_missing_entries and not _knows_of_the_loss(recorded.decision):
            unknowable += 1
        else:
            again = state.decide(recorded.base, recorded.tracking, recorded.policy, recorded.decision.at)
            if again != recorded:
                return Verdict(decisions, compacted, unknowable, Difference(recorded, again))
            decisions += 1
        state = state.after(state.number + 1, recorded)
    return Verdict(decisions, compacted, unknowable, None)


def _as_compacted(state: WatermarkState, recorded: WatermarkState) -> WatermarkState:
    """A state without what a compacted entry does not carry: its number in the log, and, in one that was written
    before there were two rules, the frontier of what was pruned."""
    passed = state.passed if recorded.passed is not None else None
    return replace(state, number=recorded.number, checkpoint=recorded.checkpoint, passed=passed)


def _knows_of_the_loss(decision: Decision) -> bool:
    """Whether a decision was made on a log with a note of a loss: those begin anew from their own moment."""
    return decision.complete_from is not None and decision.complete_from >= decision.at

"""Decides again: the inputs of a run's ticks, and the decisions that follow from them.

A tick is the input of one decision: the new log entries and the two readings. It comes from a trace of messages
(`pipeline/replay/trace.py`) or from a real log. The fold and the estimator are those of production.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import Reading
from pipeline.watermark.rules import RULES, Rule
from pipeline.watermark.state import Compacted, DecisionRecord, Entry, WatermarkState


@dataclass(frozen=True, slots=True)
class Tick:
    """The input of a decision at `at`: the entries since the last one, and the readings (None: unknown).

    `recorded` is the decision that the run made, if there was one.
    """

    at: datetime
    entries: tuple[Entry, ...]
    base: Reading | None
    tracking: Reading | None
    recorded: DecisionRecord | None = None


def decide_again(
    ticks: Iterable[Tick],
    policy: Policy,
    state: WatermarkState | None = None,
    rules: Sequence[Rule] = RULES,
) -> Iterator[DecisionRecord]:
    """One decision per tick, by the fold and the estimator of production, each based on the ones before it.

    Compacted entries are skipped: they hold the run's own decisions, and everything else in them comes before them.
    Assumption: a `Beginning` is among the first tick's entries, or in `state`.
    """
    state = WatermarkState() if state is None else state
    for tick in ticks:
        for entry in tick.entries:
            if not isinstance(entry, Compacted):
                state = state.after(state.number + 1, entry)
        decided = state.decide(tick.base, tick.tracking, policy, tick.at, rules)
        state = state.after(state.number + 1, decided)
        yield decided


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision, or state of a compacted entry, that does not follow from the records before it."""

    recorded: DecisionRecord | WatermarkState
    derived: DecisionRecord | WatermarkState


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many decisions and compacted entries were derived as recorded, and the first that was not.

    `unknowable` counts entries that followed a lost entry and were made with it in view. They cannot be derived, and
    are taken as they are.
    """

    decisions: int
    compacted: int
    unknowable: int
    first_difference: Difference | None


def verify(ticks: Iterable[Tick], state: WatermarkState | None = None) -> Verdict:
    """Derive each recorded decision again from the records before it and its own policy, and each compacted state from
    the entries that it holds. Every value must be equal, bit for bit.
    """
    state = WatermarkState() if state is None else state
    decisions = compacted = unknowable = 0
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Compacted):
                if state.is_missing_entries and not entry.state.is_missing_entries:
                    unknowable += 1
                else:
                    # A compacted entry does not carry its number in the log.
                    derived = replace(state, number=entry.state.number, checkpoint=entry.state.checkpoint)
                    if derived != entry.state:
                        return Verdict(decisions, compacted, unknowable, Difference(entry.state, derived))
                    compacted += 1
            state = state.after(state.number + 1, entry)
        recorded = tick.recorded
        if recorded is None:
            raise ValueError("a tick without its recorded decision cannot be verified")
        if state.is_missing_entries and not recorded.decision.knows_of_a_loss:
            unknowable += 1
        else:
            again = state.decide(recorded.base, recorded.tracking, recorded.policy, recorded.decision.at)
            if again != recorded:
                return Verdict(decisions, compacted, unknowable, Difference(recorded, again))
            decisions += 1
        state = state.after(state.number + 1, recorded)
    return Verdict(decisions, compacted, unknowable, None)

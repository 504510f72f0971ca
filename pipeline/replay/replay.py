"""Replay: repeats a run's decisions from the inputs of its ticks, as in production."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import Reading
from tidemark.pipeline.watermark.rules import RULES, Rule, Verdict, band_start, bound, least_since
from tidemark.pipeline.watermark.situation import Situation
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, Entry, WatermarkState


@dataclass(frozen=True, slots=True)
class Tick:
    """The input of a decision at `at`: the log's entries since the previous decision, and the readings (None: unknown).

    It comes from a trace of messages or from a log; `recorded` is the decision in that log.
    """

    at: datetime
    entries: tuple[Entry, ...]
    base: Reading | None
    tracking: Reading | None
    recorded: DecisionRecord | None = None


def decide_again(
    ticks: Iterable[Tick], policy: Policy, state: WatermarkState | None = None, rules: Sequence[Rule] = RULES
) -> Iterator[DecisionRecord]:
    """Decide at each tick with the fold and the estimator of production, each decision based on the previous ones.

    Compacted entries are skipped: they hold the run's own decisions, and everything else in them is in earlier entries.
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


def bound_without_anchor(s: Situation) -> Verdict:
    """6, without the anchor: the band reaches back to `min(B, T - D)`. For comparison; production does not use it."""
    if s.policy.rule == "frontier":
        return bound(s)
    return least_since(s, band_start(s.oldest_base, s.band_edge, None), None)


RULES_WITHOUT_ANCHOR = (*RULES[:-1], bound_without_anchor)


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision, or state of a compacted entry, that differs from what the records before it give."""

    recorded: DecisionRecord | WatermarkState
    derived: DecisionRecord | WatermarkState


@dataclass(frozen=True, slots=True)
class Verification:
    """The numbers of decisions and compacted entries whose derivation equals the record, and the first that differs.

    `unknowable` counts entries that follow a lost entry but were made while it was still readable. They cannot be
    derived, and are accepted as recorded.
    """

    decisions: int
    compacted: int
    unknowable: int
    first_difference: Difference | None


def verify(ticks: Iterable[Tick], state: WatermarkState | None = None) -> Verification:
    """Derive each recorded decision from the records before it and its own policy, and each compacted state from the
    entries that it covers. Every value must be equal, bit for bit. Raises ValueError for a tick without its recorded
    decision."""
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
                        return Verification(decisions, compacted, unknowable, Difference(entry.state, derived))
                    compacted += 1
            state = state.after(state.number + 1, entry)
        recorded = tick.recorded
        if recorded is None:
            raise ValueError("a tick without its recorded decision cannot be verified")
        if state.is_missing_entries and not recorded.decision.knows_of_a_loss:
            unknowable += 1
        else:
            decided = state.decide(recorded.base, recorded.tracking, recorded.policy, recorded.decision.at)
            again = replace(decided, usage=recorded.usage, contract=recorded.contract)  # noted by its process
            if again != recorded:
                return Verification(decisions, compacted, unknowable, Difference(recorded, again))
            decisions += 1
        state = state.after(state.number + 1, recorded)
    return Verification(decisions, compacted, unknowable, None)

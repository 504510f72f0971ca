"""Deciding again: what a run's ticks were made from, and the decisions that follow from it.

A tick is what one decision saw: the log entries that were new, and the two readings. It comes from a trace of
messages (`pipeline/watermark/trace_ticks.py`) or from a real log; the fold and the estimator are those of production.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import Reading
from pipeline.watermark.standing import Decided, Entry, Standing


@dataclass(frozen=True, slots=True)
class Tick:
    """What a decision at `at` was made from: the entries since the last one, and the readings (None: unknown).

    `recorded` is the decision that was made then, where there was one.
    """

    at: datetime
    entries: tuple[Entry, ...]
    base: Reading | None
    tracking: Reading | None
    recorded: Decided | None = None


def decide_again(ticks: Iterable[Tick], policy: Policy, standing: Standing | None = None) -> Iterator[Decided]:
    """One decision a tick, by the sensors' own fold and estimator, each resting on those before it.

    Assumption: a `Beginning` is among the first tick's entries, or `standing` holds one.
    """
    standing = Standing() if standing is None else standing
    for tick in ticks:
        for entry in tick.entries:
            standing = standing.after(standing.number + 1, entry)
        decided = standing.decide(tick.base, tick.tracking, policy, tick.at)
        standing = standing.after(standing.number + 1, decided)
        yield decided


@dataclass(frozen=True, slots=True)
class Difference:
    """The first decision that does not follow from what is recorded: what was recorded, and what follows."""

    recorded: Decided
    derived: Decided


@dataclass(frozen=True, slots=True)
class Verdict:
    """How many decisions were derived again, and the first that came out otherwise."""

    decisions: int
    first_difference: Difference | None


def verify(ticks: Iterable[Tick], standing: Standing | None = None) -> Verdict:
    """Derive each recorded decision again, from the recorded ones before it, with the policy that it was made with.

    Equality is of every value, bit for bit.
    """
    standing = Standing() if standing is None else standing
    count = 0
    for tick in ticks:
        for entry in tick.entries:
            standing = standing.after(standing.number + 1, entry)
        recorded = tick.recorded
        if recorded is None:
            raise ValueError("a tick without its recorded decision cannot be verified")
        derived = standing.decide(recorded.base, recorded.tracking, recorded.policy, recorded.decision.at)
        count += 1
        if derived != recorded:
            return Verdict(count, Difference(recorded, derived))
        standing = standing.after(standing.number + 1, recorded)
    return Verdict(count, None)

"""Replays the watermark's decisions, verifies recorded decisions, and counts late messages."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import groupby, pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tidemark.pipeline.clock import to_us
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.replay.trace import Tick, Trace, late_landings, watermarks_us
from tidemark.pipeline.version import marks
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.histogram import Ints
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.rules import RULES, Rules, Verdict, band_start, bound, least_since
from tidemark.pipeline.watermark.situation import Situation
from tidemark.pipeline.watermark.state import Compacted, DecisionRecord, Lost, WatermarkState


def decide_again(
    ticks: Iterable[Tick], policy: Policy, state: WatermarkState | None = None, rules: Rules = RULES
) -> Iterator[DecisionRecord]:
    """Yield the decision that the production code makes for each tick, from the tick's inputs and the new decisions of
    earlier ticks.

    Recorded decisions must not influence the new ones. So the watermarks in `state` and in `Lost` entries are ignored,
    and compacted entries are skipped: apart from decisions, they only repeat earlier entries. The entries of the first
    tick, or `state`, must contain the `Beginning`, which is the first entry of a log.
    """
    state = WatermarkState() if state is None else replace(state, watermark_at_least=None)
    if state.record is not None:
        state = replace(state, record=replace(state.record, decision=replace(state.record.decision, watermark=None)))
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Lost):
                entry = replace(entry, watermark_at_least=None)
            if not isinstance(entry, Compacted):
                state = state.after(state.number + 1, entry)
        decided = state.decide(tick.base, tick.tracking, policy, tick.at, rules)
        state = state.after(state.number + 1, decided)
        yield decided


def bound_without_anchor(s: Situation) -> Verdict:
    """Apply the rule `bound`, but begin the band at `min(B, T - D)` even if the anchor is older. `rules.band` explains
    these terms. Only for comparison: production does not use this rule."""
    if s.policy.rule == "frontier":
        return bound(s)
    return least_since(s, band_start(s.oldest_base, s.band_edge, None), None)


RULES_WITHOUT_ANCHOR = (*RULES[:-1], bound_without_anchor)


@dataclass(frozen=True, slots=True)
class Difference:
    """A recorded decision or compacted state that differs from the one derived from the earlier log entries."""

    recorded: DecisionRecord | WatermarkState
    derived: DecisionRecord | WatermarkState


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of `verify`. `decisions` and `compacted` are the numbers of recorded decisions and compacted entries
    that equal the derived ones. `first_difference` is None if all are equal.

    `unknowable` is the number of decisions and compacted entries that depend on a log entry which has since been lost.
    They cannot be derived, and are not compared.
    """

    decisions: int
    compacted: int
    unknowable: int
    first_difference: Difference | None


def verify(ticks: Iterable[Tick], state: WatermarkState | None = None) -> Verification:
    """Derive each recorded decision and compacted state from the earlier log entries, and compare it with the recorded
    one. All values must be equal, bit for bit, except a decision's usage and contract, which are not derived. Stops at
    the first difference. Raises ValueError if a tick has no recorded decision."""
    state = WatermarkState() if state is None else state
    decisions = compacted = unknowable = 0
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Compacted):
                if state.is_missing_entries and not entry.state.is_missing_entries:
                    unknowable += 1
                else:
                    # A compacted entry does not contain its number in the log.
                    derived = replace(state, number=entry.state.number, checkpoint=entry.state.checkpoint)
                    if derived != entry.state:
                        return Verification(decisions, compacted, unknowable, Difference(entry.state, derived))
                    compacted += 1
            state = state.after(state.number + 1, entry)
        if (recorded := tick.recorded) is None:
            raise ValueError("a tick without its recorded decision cannot be verified")
        if state.is_missing_entries and not recorded.decision.knows_of_a_loss:
            unknowable += 1
        else:
            decided = state.decide(recorded.base, recorded.tracking, recorded.policy, recorded.decision.at)
            again = replace(decided, usage=recorded.usage, contract=recorded.contract)  # these two are not derived
            if again != recorded:
                return Verification(decisions, compacted, unknowable, Difference(recorded, again))
            decisions += 1
        state = state.after(state.number + 1, recorded)
    return Verification(decisions, compacted, unknowable, None)


COLUMNS: tuple[tuple[pa.Field, Callable[[Decision], object]], ...] = (
    (pa.field("tick_time", MOMENT, nullable=False), lambda made: made.at),
    (pa.field("watermark", MOMENT), lambda made: made.watermark),
    (pa.field("reason", pa.string(), nullable=False), lambda made: str(made.reason)),
    (pa.field("base_oldest_unacked", MOMENT), lambda made: made.base and made.base.oldest_unacked),
    (pa.field("tracking_oldest_unacked", MOMENT), lambda made: made.tracking and made.tracking.oldest_unacked),
    (pa.field("band_start", MOMENT), lambda made: made.bound and made.bound.start),
    (pa.field("band_end", MOMENT), lambda made: made.bound and made.bound.end),
    (pa.field("messages_in_band", pa.int64(), nullable=False), lambda made: made.bound.messages if made.bound else 0),
)
"""The columns of a written decision, each with the function that returns its value. `watermark` is null before the
first watermark, and a reading is null if it is unknown. `band_start` and `band_end` are null if the decision is a hold
or was made by the idle rule."""

LATE_TOTAL = pa.field("late_total", pa.int64(), nullable=False)
"""The last column of a written decision: the number of late messages that had landed by the tick."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Consecutive ticks that held the watermark. `begin` is the time of the first of these ticks, and `end` the time of
    the next tick that did not hold. If there is no such tick, `end` is the time of the last tick."""

    begin: datetime
    end: datetime
    reason: str

    @property
    def lasted(self) -> timedelta:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay. `decisions` are in order, and there is at least one. `late_total` has, for each decision,
    the number of late messages that had landed by then. `landed` is the number of landed messages, without rejected
    ones."""

    decisions: Sequence[Decision]
    late_total: Ints
    landed: int

    @property
    def watermark(self) -> datetime | None:
        return self.decisions[-1].watermark

    @property
    def late(self) -> int:
        return int(self.late_total[-1])

    @property
    def late_share(self) -> float:
        """Number of late messages divided by the number of landed messages; 0 if no message landed."""
        return self.late / self.landed if self.landed else 0.0

    @property
    def reasons(self) -> Mapping[str, int]:
        return dict(Counter(str(decision.reason) for decision in self.decisions).most_common())

    def lag(self, share: float) -> timedelta | None:
        """Return a quantile of the watermark's lag over the ticks. `share` is the share of ticks with at most this lag.
        Ticks without a watermark are ignored. Return None if no tick has a watermark."""
        lags = [decision.lag.total_seconds() for decision in self.decisions if decision.lag is not None]
        return timedelta(seconds=quantile(lags, share)) if lags else None

    def longest_hold(self) -> Hold | None:
        """Return the longest hold, with the most frequent reason of its ticks. Return None if no tick held the
        watermark."""
        stretches = [list(each) for _, each in groupby(self.decisions, lambda decision: decision.reason.is_hold)]
        holds = []
        for stretch, after in pairwise([*stretches, stretches[-1][-1:]]):
            if stretch[0].reason.is_hold:
                reasons = Counter(str(decision.reason) for decision in stretch)
                holds.append(Hold(stretch[0].at, after[0].at, reasons.most_common(1)[0][0]))
        return max(holds, key=lambda hold: hold.lasted, default=None)


def replayed(decisions: Sequence[Decision], trace: Trace) -> Replayed:
    """Count the messages of a trace that are late according to the decisions of a replay. Reads the trace once.

    A message is late if its event time is below the watermark of the last decision strictly before it landed.
    """
    made_us = np.array([to_us(decision.at) for decision in decisions], dtype=np.int64)
    watermark_us = watermarks_us([decision.watermark for decision in decisions])
    (late,), landed = late_landings(trace, made_us, np.array([watermark_us]))
    return Replayed(decisions, np.cumsum(late), landed)


def write_decisions(path: Path, replayed: Replayed) -> None:
    """Write the decisions to a Parquet file, with a row per tick. Replaces an existing file. Raises TidemarkError if
    the file cannot be written."""
    values = [[value_of(decision) for decision in replayed.decisions] for _, value_of in COLUMNS]
    schema = pa.schema([*(column for column, _ in COLUMNS), LATE_TOTAL], metadata=marks())
    try:
        pq.write_table(pa.table([*values, replayed.late_total], schema=schema), path)
    except OSError as error:
        raise TidemarkError(
            f"the decisions cannot be written to {path} ({error}); name another file with --out"
        ) from error

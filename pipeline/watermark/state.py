"""Where the watermark stands: the fold of the tracking log's entries, pure, so that a restart ends where it was.

state = WatermarkState()
for number, entry in log: state = state.after(number, entry)
"""

from dataclasses import dataclass, field, replace
from datetime import datetime

from pipeline.watermark.decision import Decision, Reason
from pipeline.watermark.estimator import estimate, frontier_of, reachable_from
from pipeline.watermark.histogram import Cell, Histogram, bucket_of, bucket_start
from pipeline.watermark.policy import Policy
from pipeline.watermark.readings import Reading, follow


@dataclass(frozen=True, slots=True)
class Beginning:
    """The log's first entry. `complete_from` is tracking's oldest unacknowledged publish time, read before anything
    was acknowledged: whatever was published since is, or will be, in the histogram."""

    complete_from: datetime


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one tracking batch adds to the histogram; persisted before the batch is acknowledged."""

    histogram: Histogram


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """A decision with what went into it: the two readings of its tick (None: not to be had) and the policy."""

    decision: Decision
    base: Reading | None
    tracking: Reading | None
    policy: Policy


@dataclass(frozen=True, slots=True)
class Lost:
    """Stands where an entry was beyond repair: tracking no longer knows all that it acknowledged before.

    `watermark_at_least` is how far the watermark is known to have come from elsewhere: the entry may have been the
    decision that took it there.
    """

    what: str
    watermark_at_least: datetime | None = None


@dataclass(frozen=True, slots=True)
class Released:
    """An operator let go what was published before `before` and has not landed: it no longer holds the watermark, and
    is late when it lands. `at` is when; `by` names who."""

    before: datetime
    at: datetime
    by: str


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """Everything that the next decision depends on, apart from the next readings.

    `number` is the last entry folded, `checkpoint` the last compacted one. `pruned_before` is the publish-time
    bucket below which cells were dropped, and `passed` the frontier of what was. `is_missing_entries` holds until a
    decision has raised `complete_from`. `watermark_at_least` is the floor that a lost entry left. `released_before`
    holds until base is sought.
    """

    number: int = -1
    checkpoint: int = 0
    histogram: Histogram = field(default_factory=Histogram.empty)
    decided: DecisionRecord | None = None
    complete_from: datetime | None = None
    pruned_before: int | None = None
    reading_violations: int = 0
    is_missing_entries: bool = False
    watermark_at_least: datetime | None = None
    passed: Cell | None = None
    released_before: datetime | None = None

    @property
    def decision(self) -> Decision | None:
        """The newest decision."""
        return None if self.decided is None else self.decided.decision

    @property
    def watermark(self) -> datetime | None:
        """The newest watermark."""
        decided = None if self.decision is None else self.decision.watermark
        return max((moment for moment in (decided, self.watermark_at_least) if moment is not None), default=None)

    def after(self, number: int, entry: "Entry") -> "WatermarkState":
        """The standing with one more entry. Entries are folded in the order of their numbers, each once."""
        match entry:
            case Compacted():
                return replace(entry.state, number=number, checkpoint=number)
            case Beginning():
                return replace(self, number=number, complete_from=entry.complete_from)
            case Snapshot():
                violations = self.reading_violations + self._violations(entry.histogram)
                histogram = self.histogram + entry.histogram
                return replace(self, number=number, histogram=histogram, reading_violations=violations)
            case DecisionRecord():
                return self._after_decision(number, entry)
            case Lost():
                floors = (self.watermark_at_least, entry.watermark_at_least)
                floor = max((moment for moment in floors if moment is not None), default=None)
                return replace(self, number=number, is_missing_entries=True, watermark_at_least=floor)
            case Released():
                before = entry.before if self.released_before is None else max(entry.before, self.released_before)
                return replace(self, number=number, released_before=before)

    def decide(self, base: Reading | None, tracking: Reading | None, policy: Policy, at: datetime) -> DecisionRecord:
        """The decision that follows from here with these readings. Assumption: a Beginning was folded."""
        if self.complete_from is None:
            raise ValueError("a decision before the log's beginning")
        previous = self.decision
        known_base, known_tracking = (None, None) if previous is None else (previous.base, previous.tracking)
        effective_base = follow(known_base, base, policy.seek_tolerance)
        effective_tracking = follow(known_tracking, tracking, policy.seek_tolerance)
        complete_from = self.complete_from
        if self.is_missing_entries:
            # Not from tracking's reading on: what was lost may have been acknowledged out of order, above it.
            complete_from = max(complete_from, at)
        decision = estimate(
            self.histogram,
            base=effective_base,
            tracking=effective_tracking,
            policy=policy,
            previous=self._not_below_the_floor(previous, at),
            complete_from=complete_from,
            at=at,
            pruned_before=self.pruned_before,
            passed=self.passed,
            released_before=self.released_before,
        )
        return DecisionRecord(decision=decision, base=base, tracking=tracking, policy=policy)

    def _not_below_the_floor(self, previous: Decision | None, at: datetime) -> Decision | None:
        if previous is None and self.watermark is not None:
            return Decision(at=at, watermark=self.watermark, reason=Reason.HELD_INCOMPLETE)
        return None if previous is None else replace(previous, watermark=self.watermark)

    def _after_decision(self, number: int, entry: DecisionRecord) -> "WatermarkState":
        decision = entry.decision
        histogram, pruned_before, passed = self.histogram, self.pruned_before, self.passed
        if decision.base is not None and decision.tracking is not None:
            reachable = reachable_from(
                histogram, decision.base.oldest_unacked, decision.tracking.oldest_unacked, entry.policy
            )
            if pruned_before is None or reachable > pruned_before:
                passed = frontier_of(histogram, bucket_start(reachable), entry.policy, pruned_before, passed)
                pruned_before = reachable
            histogram = histogram.pruned(pruned_before)
        return replace(
            self,
            number=number,
            histogram=histogram,
            decided=entry,
            complete_from=decision.complete_from,
            pruned_before=pruned_before,
            passed=passed,
            released_before=None if self._is_sought(decision) else self.released_before,
            # A decision from before the loss was found stands after it in the log and knows nothing of it.
            is_missing_entries=self.is_missing_entries
            and not (decision.complete_from is not None and decision.complete_from >= decision.at),
        )

    def _is_sought(self, decision: Decision) -> bool:
        """Whether base's readings began anew with this decision."""
        before = None if self.decision is None else self.decision.base
        return before is not None and decision.base is not None and decision.base.epoch != before.epoch

    def _violations(self, delta: Histogram) -> int:
        """Messages first seen now although the reading had declared their publish time past. By cells, so a
        lower bound; what was pruned cannot be told from a redelivery and is passed over."""
        if self.decision is None or self.decision.tracking is None or self.pruned_before is None:
            return 0
        return self.histogram.new_below(
            delta, before=bucket_of(self.decision.tracking.oldest_unacked), not_before=self.pruned_before
        )


@dataclass(frozen=True, slots=True)
class Compacted:
    """All entries before it in one, so that a restart reads no further back."""

    state: WatermarkState


Entry = Beginning | Snapshot | DecisionRecord | Compacted | Lost | Released

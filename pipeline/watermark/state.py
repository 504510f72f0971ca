"""The state of a watermark, computed only from the entries of the tracking log. So after a restart, the same log gives
the same state.

state = WatermarkState()
for number, entry in log: state = state.after(number, entry)
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from tidemark.pipeline.figures import newest_of
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import Cell, Histogram, bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading, follow
from tidemark.pipeline.watermark.rules import RULES, Rules, anchor_before, band_start, frontier_of
from tidemark.pipeline.watermark.situation import Situation, base_after_slack, tracking_after_slack, was_sought
from tidemark.pipeline.watermark.usage import Account, Usage


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first entry of the tracking log. `complete_from` is tracking's oldest unacknowledged publish time, read
    before any message was acknowledged. So the log will count every message published from then on."""

    complete_from: datetime
    """The log counts every message that is published at this time or later."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """An entry of the tracking log with the histogram of a batch of messages, written before the messages are
    acknowledged.

    `usage` contains the writer's requests to Pub/Sub since its previous entry. It is None if they were not counted, or
    if the writer's decisions record them. `contract` identifies the contract by which messages are judged;
    it is empty if an earlier entry has it.
    """

    histogram: Histogram
    usage: Usage | None = None
    at: datetime | None = None
    contract: str = ""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """An entry of the tracking log with a decision and its inputs.

    - `base` and `tracking` are the tick's readings; None if there was none.
    - `usage` contains the process's requests to Pub/Sub since its previous decision; None if they were not counted.
    - `contract` identifies the contract by which the process judges messages; empty if unknown.
    """

    decision: Decision
    base: Reading | None
    tracking: Reading | None
    policy: Policy
    usage: Usage | None = None
    contract: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """An entry of the tracking log that records a loss: the log no longer describes all acknowledged messages
    correctly.

    `what` describes which of two cases it is. Either this entry replaces one that cannot be repaired, or messages are
    judged by a different `contract` from this entry on. The lost entry may have been the newest decision, so
    `watermark_at_least` contains the highest watermark that is known from elsewhere.
    """

    what: str
    """The reason why the log no longer describes all earlier messages correctly."""
    watermark_at_least: datetime | None = None
    """The watermark had reached at least this time."""
    contract: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """An entry of the tracking log: an operator released the messages published before `before`. These messages no
    longer hold the watermark, and are late when they land.

    `at` is the moment of the release, and `by` the operator.
    """

    before: datetime
    """Messages published before this time no longer hold the watermark."""
    at: datetime
    """Time of the release."""
    by: str
    """The operator."""


@dataclass(frozen=True, slots=True)
class WatermarkState:
    """Everything that the next decision depends on, except the next readings.

    - `number` is the number of the last entry of the tracking log in this state, and `checkpoint` that of the last
      `Compacted` entry.
    - `record` is the newest decision with its inputs.
    - `pruned_before`: all cells of publish-time buckets below it were dropped. `pruned_frontier` is the frontier of the
      dropped cells.
    - `reading_violations` is the number of messages that arrived although they are older than a reading of tracking. It
      is 0 if all readings were right.
    - `is_missing_entries` is True after a `Lost` entry, until a decision has taken the loss into account.
    - `watermark_at_least` comes from `Lost` entries. The watermark is never below it.
    - `released_before`: an operator released the messages published before this time. A seek of base resets it to None.
    - `account` is the usage that entries of the last day recorded.
    - `contract` identifies the newest contract by which messages are judged.
    - `rejected` is the number of rejected messages, including pruned cells. Redelivered messages are counted again, and
      messages of lost entries are not counted. This number affects no decision. Comparisons ignore it, because
      `Compacted` entries of earlier versions lack it.
    """

    number: int = -1
    checkpoint: int = 0
    histogram: Histogram = field(default_factory=Histogram.empty)
    record: DecisionRecord | None = None
    complete_from: datetime | None = None
    pruned_before: int | None = None
    reading_violations: int = 0
    is_missing_entries: bool = False
    watermark_at_least: datetime | None = None
    pruned_frontier: Cell | None = None
    released_before: datetime | None = None
    account: Account = field(default_factory=Account)
    contract: str = ""
    rejected: int = field(default=0, compare=False)

    @property
    def decision(self) -> Decision | None:
        return None if self.record is None else self.record.decision

    @property
    def watermark(self) -> datetime | None:
        """The newest decision's watermark, or `watermark_at_least`, whichever is higher."""
        return newest_of(None if self.decision is None else self.decision.watermark, self.watermark_at_least)

    def behind(self, now: datetime) -> timedelta | None:
        """Return the time by which the watermark is behind `now`. Before there is a watermark, return the time since
        `complete_from`; None if tracking has not received a message yet."""
        since = self.watermark
        if since is None and len(self.histogram.publish_bucket):
            since = self.complete_from
        return None if since is None else now - since

    def after(self, number: int, entry: "Entry") -> "WatermarkState":
        """Return the state after one more entry. Add each entry once, in the order of the entries' numbers."""
        match entry:
            case Compacted():
                return replace(entry.state, number=number, checkpoint=number)
            case Beginning():
                return replace(self, number=number, complete_from=entry.complete_from)
            case Snapshot():
                violations = self.reading_violations + self._violations(entry.histogram)
                account = self.account if entry.at is None else self.account.after(entry.at, entry.usage)
                return replace(
                    self,
                    number=number,
                    histogram=self.histogram + entry.histogram,
                    reading_violations=violations,
                    account=account,
                    contract=entry.contract or self.contract,
                    rejected=self.rejected + entry.histogram.rejected,
                )
            case DecisionRecord():
                return self._after_decision(number, entry)
            case Lost():
                floor = newest_of(self.watermark_at_least, entry.watermark_at_least)
                contract = entry.contract or self.contract
                return replace(
                    self, number=number, is_missing_entries=True, watermark_at_least=floor, contract=contract
                )
            case Released():
                return replace(self, number=number, released_before=newest_of(entry.before, self.released_before))

    def decide(
        self, base: Reading | None, tracking: Reading | None, policy: Policy, at: datetime, rules: Rules = RULES
    ) -> DecisionRecord:
        """Make a decision from this state and new readings. Raises ValueError if the state lacks the log's
        `Beginning`."""
        decision = estimate(self.situation(base, tracking, policy, at), rules)
        return DecisionRecord(decision=decision, base=base, tracking=tracking, policy=policy)

    def situation(self, base: Reading | None, tracking: Reading | None, policy: Policy, at: datetime) -> Situation:
        """Return the input of a decision with new readings. Raises ValueError if the state lacks the log's
        `Beginning`."""
        if self.complete_from is None:
            raise ValueError("no decision is possible before the log's first entry is read")
        previous, complete_from = self.decision, self.complete_from
        if self.is_missing_entries:
            # Tracking's reading is not used: a lost entry may hold messages published after it, acknowledged out of
            # order. If this clock is behind the server's, a reading may have been observed later than now.
            observed = (reading.observed_at for reading in (base, tracking) if reading is not None)
            complete_from = max(complete_from, at, *observed)
        return Situation(
            self.histogram,
            base=follow(None if previous is None else previous.base, base, policy.seek_tolerance),
            tracking=follow(None if previous is None else previous.tracking, tracking, policy.seek_tolerance),
            policy=policy,
            at=at,
            complete_from=complete_from,
            watermark=self.watermark,
            previous=previous,
            pruned_before=self.pruned_before,
            pruned_frontier=self.pruned_frontier,
            released_before=self.released_before,
        )

    def _after_decision(self, number: int, record: DecisionRecord) -> "WatermarkState":
        decision = record.decision
        base_before = None if self.decision is None else self.decision.base
        return replace(
            self._pruned(record),
            number=number,
            record=record,
            complete_from=decision.complete_from,
            released_before=None if was_sought(decision.base, base_before) else self.released_before,
            # A decision made before the loss was found may come after the `Lost` entry without accounting for it.
            is_missing_entries=self.is_missing_entries and not decision.knows_of_a_loss,
            account=self.account.after(decision.at, record.usage),
            contract=record.contract or self.contract,
        )

    def _pruned(self, record: DecisionRecord) -> "WatermarkState":
        """Return the state without the cells that no later band can include."""
        decision = record.decision
        if decision.base is None or decision.tracking is None:
            return self
        # A release is ignored: base may still name released messages, and a seek ends the release.
        reachable = reachable_from(self.histogram, decision.base, decision.tracking, record.policy)
        if self.pruned_before is not None:
            reachable = max(reachable, self.pruned_before)
        until, known = bucket_start(reachable), (self.pruned_before, self.pruned_frontier)
        passed = frontier_of(self.histogram, until, record.policy, *known)
        rest = self.histogram.pruned(reachable)
        return replace(self, histogram=rest, pruned_before=reachable, pruned_frontier=passed)

    def _violations(self, delta: Histogram) -> int:
        """Count new messages that were published before tracking's previous reading. If the reading was right, there
        are none, because all older messages had been acknowledged.

        The result is a lower bound: cells are compared, not messages, and pruned cells cannot be compared.
        """
        if self.decision is None or self.decision.tracking is None or self.pruned_before is None:
            return 0
        return self.histogram.new_below(
            delta, before=bucket_of(self.decision.tracking.oldest_unacked), not_before=self.pruned_before
        )


def reachable_from(histogram: Histogram, base: EffectiveReading, tracking: EffectiveReading, policy: Policy) -> int:
    """Return the first publish-time bucket that the band of this decision, or of a later one until a seek, may have.

    Buckets below the result may be pruned. The newest valid message from before the band is never in one of them.
    """
    edge = tracking_after_slack(tracking, policy) - policy.band
    anchor = anchor_before(histogram.holding(policy.max_lag), edge)
    return bucket_of(band_start(base_after_slack(base, policy), edge, anchor))


@dataclass(frozen=True, slots=True)
class Compacted:
    """An entry of the tracking log with the state after all earlier entries, so that a restart need not read them."""

    state: WatermarkState


Entry = Beginning | Snapshot | DecisionRecord | Compacted | Lost | Released

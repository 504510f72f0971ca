"""The oracle knows what was published and what became durable when, and checks the invariants."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import numpy as np

from tests.simulation.lake import Row, Table, Written
from tests.simulation.micro_batch import Diffs, Key, missed, rows_of
from tests.simulation.payloads import NO_REVISION
from tests.simulation.plan import WINDOWING, Plan
from tests.simulation.traffic import PATIENCE_US, TOO_OLD, Planned
from tests.watermark.builders import situation_of, uncounted
from tidemark.pipeline.clock import MICROSECOND, from_us, iso
from tidemark.pipeline.contract.heartbeat import RejectionReason
from tidemark.pipeline.pubsub.schemas import AGAIN_US
from tidemark.pipeline.watermark.decision import BandEvidence, Decision, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import BUCKET_US, COPY, NO_EVENT, Histogram, bucket_of, bucket_start
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading
from tidemark.pipeline.watermark.rules import RULES, Rule
from tidemark.pipeline.watermark.state import Beginning, DecisionRecord, Entry, Released, Snapshot

FAR_AHEAD = datetime(2200, 1, 1, tzinfo=UTC)

INVARIANTS = {
    0: "the code says of itself what is so",
    1: "sources inside their band lose nothing",
    2: "the watermark never goes back",
    3: "acknowledged is durable",
    4: "every message ends in one place",
    5: "the watermark is near real time again",
    6: "the same input gives the same rows",
}


class Broken(AssertionError):
    """An invariant does not hold. `number` is its number, and `seed` plays it again."""

    def __init__(self, seed: int, number: int, what: str, last_steps: str, fault: str | None) -> None:
        super().__init__(
            f"seed {seed}: invariant {number} ({INVARIANTS[number]}): {what}\n{last_steps}\n"
            f".venv/bin/python -m tests.simulation --seed {seed} --trace" + (f' --fault "{fault}"' if fault else "")
        )
        self.seed = seed
        self.number = number
        self.what = what


@dataclass
class Oracle:
    """Told of everything that happens; `fail` is called with the number of the invariant that was broken, and how.

    The numbers are those of design.md, section 7; 0 is for what the code says of itself: which messages are late or
    missed, and that a decision depends on all that was tracked and on nothing else.
    """

    plan: Plan
    fail: Callable[[int, str], NoReturn]
    rules: Sequence[Rule] = RULES
    sent: dict[str, Planned] = field(default_factory=dict)
    messages: dict[str, Any] = field(default_factory=dict)
    watermark: datetime | None = None
    decisions: list[Decision] = field(default_factory=list)
    landed: set[str] = field(default_factory=set)
    quarantined: set[str] = field(default_factory=set)
    in_files: set[str] = field(default_factory=set)
    """Messages whose files count as durable although no version lists them: none, but for a planted fault."""
    late: set[str] = field(default_factory=set)
    _released: datetime | None = None
    _let_go_before: datetime | None = None
    _cells: dict[tuple[int, int], int] = field(default_factory=dict)
    _readings: dict[str, list[Reading]] = field(default_factory=lambda: {"base": [], "tracking": []})
    _whole: Histogram = field(default_factory=Histogram.empty)
    _complete_from: datetime | None = None

    def published(self, message: Any, planned: Planned) -> None:
        """This is what that message is."""
        self.sent[message.message_id] = planned
        self.messages[message.message_id] = message

    def logged(self, entry: Entry) -> None:
        """The log has one more entry."""
        match entry:
            case Beginning():
                self._complete_from = entry.complete_from
            case Snapshot():
                self._tracked(entry.histogram)
            case DecisionRecord():
                self._decided(entry)
            case Released():
                self._released = max(entry.before, self._released or entry.before)
                self._let_go_before = max(entry.before, self._let_go_before or entry.before)

    def _tracked(self, histogram: Histogram) -> None:
        columns = (histogram.publish_bucket, histogram.event_bucket, histogram.min_event_us)
        for publish, event, minimum in zip(*(column.tolist() for column in columns), strict=True):
            known = self._cells.get((publish, event))
            if known is None and event > COPY and not self._is_of_a_message(publish, event):
                self.fail(0, f"tracking counts a message published in second {publish} with an event in {event}")
            self._cells[publish, event] = minimum if known is None else min(known, minimum)
        self._whole += histogram

    def _is_of_a_message(self, publish: int, event: int) -> bool:
        """Whether a message with an event time is of this cell: what is rejected for its times is occupancy only."""
        return any(
            one.is_timed and (one.publish_us // BUCKET_US, one.counted_us // BUCKET_US) == (publish, event)
            for one in self.sent.values()
        )

    def _decided(self, entry: DecisionRecord) -> None:
        decision = entry.decision
        if self.watermark is not None and (decision.watermark is None or decision.watermark < self.watermark):
            self.fail(2, f"the watermark went back from {iso(self.watermark)} to {decision.watermark}")
        before = self.decisions[-1] if self.decisions else None
        for name, now, then in (
            ("base", decision.base, before and before.base),
            ("tracking", decision.tracking, before and before.tracking),
        ):
            self._followed(name, now, then, entry)
        self._same_on_everything(entry, before)
        if decision.released_before not in (None, self._released):
            self.fail(0, f"what was published before {decision.released_before} is let go, and not {self._released}")
        if before and before.base and decision.base and decision.base.epoch != before.base.epoch:
            self._released = None  # a release holds until base is sought
        self.decisions.append(decision)
        self.watermark = decision.watermark

    def _followed(
        self, name: str, now: EffectiveReading | None, then: EffectiveReading | None, entry: DecisionRecord
    ) -> None:
        """Rule 1: the effective reading is the largest of its epoch. Rule 7: far lower, observed later, is a seek."""
        raw, of_epoch = entry.base if name == "base" else entry.tracking, self._readings[name]
        is_sought = False
        if raw is not None:
            if of_epoch and raw.observed_at > max(reading.observed_at for reading in of_epoch):
                largest = max(reading.oldest_unacked for reading in of_epoch)
                is_sought = raw.oldest_unacked < largest - entry.policy.seek_tolerance
            if is_sought:
                of_epoch.clear()
            if not of_epoch or raw.observed_at >= of_epoch[0].observed_at:
                of_epoch.append(raw)
        if then is not None and (now is None or now.epoch != then.epoch + is_sought):
            self.fail(0, f"{name} is {'' if is_sought else 'not '}sought back by {raw}: from {then} to {now}")
        if not of_epoch:
            return
        largest = max(reading.oldest_unacked for reading in of_epoch)
        seen_at = max(reading.observed_at for reading in of_epoch if reading.oldest_unacked == largest)
        newest_at = max(reading.observed_at for reading in of_epoch)
        expected = largest, seen_at, newest_at
        if now is None or (now.oldest_unacked, now.observed_at, now.newest.observed_at) != expected:
            self.fail(0, f"the effective reading of {name} is {now}, of {of_epoch}")

    def _same_on_everything(self, entry: DecisionRecord, before: Decision | None) -> None:
        """The decision is that on all that was ever tracked, in one piece: neither what was pruned nor a restart
        changes it. (Not after a seek: then what was pruned is waited for.) And no hole is found where there is none."""
        decision, known_from = entry.decision, before.complete_from if before else self._complete_from
        if known_from is None:
            self.fail(0, "a decision before the log's beginning")
        if decision.complete_from != known_from and self.plan.has_no_hole:
            self.fail(0, f"a hole up to {decision.complete_from}, and there is none")
        whole = estimate(
            situation_of(
                self._whole,
                base=decision.base,
                tracking=decision.tracking,
                policy=entry.policy,
                previous=before,
                complete_from=known_from,
                at=decision.at,
                released_before=self._released,
            ),
            self.rules,
        )
        epochs = [reading.epoch for reading in (decision.base, decision.tracking) if reading is not None]
        if epochs == [1, 1]:
            if _without_counts(decision) != _without_counts(whole):
                self.fail(0, f"decided: {decision}; on everything that was tracked: {whole}")
            self._counts_what_is_passed_over(decision, entry.policy)

    def _counts_what_is_passed_over(self, decision: Decision, policy: Policy) -> None:
        """What is passed over is exactly what is counted: each cell all of whose messages lag more than they may, at
        least once, and at most as often as it was delivered."""
        bound, whole = decision.bound, self._whole
        if bound is None or policy.max_lag is None:
            return
        high = bound.end if isinstance(bound, BandEvidence) else FAR_AHEAD
        start = bound.start if policy.quantile == 0 else bucket_start(bucket_of(bound.start))
        columns = (whole.event_bucket, whole.count, whole.first_publish_us, whole.last_publish_us)
        cells = [
            count
            for event, count, first, last in zip(*(column.tolist() for column in columns), strict=True)
            if event > COPY
            and from_us(last) >= start
            and first // BUCKET_US <= bucket_of(high)
            and timedelta(microseconds=first - (event + 1) * BUCKET_US) >= policy.max_lag
        ]
        if not len(cells) <= bound.passed_over <= sum(cells):
            self.fail(0, f"passed over: {bound.passed_over} messages, of the cells {cells}")

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None:
        """Acknowledged implies durable."""
        if subscription == "base":
            durable = self.landed | self.quarantined | self.in_files
            early = [message.message_id for message in messages if message.message_id not in durable]
        else:
            early = [message.message_id for message in messages if not self._is_tracked(message)]
        if early:
            self.fail(3, f"acknowledged on {subscription}, and not durable: messages {early}")

    def _is_tracked(self, message: Any) -> bool:
        planned = self.sent[message.message_id]
        publish = planned.publish_us // BUCKET_US
        loses_patience = planned.appears_us is None or planned.appears_us > planned.publish_us + 2 * PATIENCE_US
        if not planned.is_timed or (loses_patience and (publish, NO_EVENT) in self._cells):
            return (publish, NO_EVENT) in self._cells
        if planned.flaw == "payload" and planned.lag_us > self.plan.policy.band // MICROSECOND:
            return (publish, NO_EVENT) in self._cells
        if (publish, COPY) in self._cells and any(
            one.heartbeat == planned.heartbeat and one.publish_us <= planned.publish_us and self._is_in_full(one)
            for one in self.sent.values()
        ):
            return True
        return self._is_in_full(planned)

    def _is_in_full(self, planned: Planned) -> bool:
        minimum = self._cells.get((planned.publish_us // BUCKET_US, planned.counted_us // BUCKET_US))
        return minimum is not None and minimum <= planned.counted_us

    def added(self, table: str, file: Written) -> None:
        """Rows have landed. What is below the watermark that their worker knew is late, and nothing else is."""
        for row in file.rows:
            message_id = row["message_id"]
            planned = self.sent[message_id]
            sent = self.messages[message_id]
            whole = (row["payload"], dict(row["attributes"])) == (sent.data, dict(sent.attributes))
            if not _may_be_in(table, planned, row["landed_at"]) or not whole:
                self.fail(4, f"message {message_id} is {planned}, and landed in {table} as {row}")
            if table != "heartbeats":
                is_too_old = row["reason"] == RejectionReason.TOO_OLD
                if (planned.flaw == TOO_OLD) != is_too_old and (is_too_old or planned.appears_us == 0):
                    self.fail(4, f"message {message_id} is {planned}, and was rejected as {row['reason']}")
                self.quarantined.add(message_id)
                continue
            if row["event_time"] != planned.event_us or row["publish_time"] != planned.publish_us:
                self.fail(4, f"message {message_id} is {planned}, and landed as {row}")
            event = from_us(planned.event_us)
            if row["late"] not in {is_below(event, known) for known in file.judged_by}:
                called = "late" if row["late"] else "not late"
                self.fail(0, f"message {message_id} is called {called} at {iso(event)}, and judged by {file.judged_by}")
            if message_id not in self.landed and is_below(event, self.watermark):
                self._late(message_id, planned)
            self.landed.add(message_id)

    @property
    def is_kept(self) -> bool:
        """Whether nothing may be late: a quantile of a publish second with many messages lets go of some."""
        quantile, counts = self.plan.policy.quantile, self._whole.count
        if not self.plan.is_kept or quantile == 0 or not len(counts):
            return self.plan.is_kept
        most = np.bincount(self._whole.publish_bucket - self._whole.publish_bucket[0], weights=counts).max()
        return bool(most * quantile < 1)

    def _late(self, message_id: str, planned: Planned) -> None:
        self.late.add(message_id)
        if self._is_a_copy_of_what_landed(planned):
            return
        if self.is_kept and self.plan.holds(planned) and not self._is_let_go(planned):
            self.fail(1, f"message {message_id}, {planned}, landed below the watermark, {self.watermark}")

    def _is_a_copy_of_what_landed(self, planned: Planned) -> bool:
        if planned.publisher_id is None:
            return False
        return any(self.sent[message_id].heartbeat == planned.heartbeat for message_id in self.landed)

    def _is_let_go(self, planned: Planned) -> bool:
        return self._let_go_before is not None and from_us(planned.publish_us) < self._let_go_before

    def check_missed(self, heartbeats: Table, diffs: Diffs) -> set[Key]:
        """What the micro-batch counts as missed is what landed and is in no row of its computed window."""
        counted = {key for keys in missed(heartbeats, diffs).values() for key in keys}
        there = {diff.key for computed in diffs.windows.values() for diff in computed.rows}
        truly = {key for key in self.heartbeats() if self._window_is_computed(key, diffs)} - there
        if counted != truly:
            self.fail(0, f"counted as missed: {sorted(counted)}; missed: {sorted(truly)}")
        let_go = {_key_of(message_id, one) for message_id, one in self.sent.items() if self._is_let_go(one)}
        holding = {_key_of(message_id, one) for message_id, one in self.sent.items() if self.plan.holds(one)}
        kept = truly & holding - let_go
        if kept and self.is_kept:
            self.fail(1, f"missed: {sorted(kept)}")
        return truly

    def check_rows(self, diffs: Diffs, now: datetime) -> None:
        """Every valid message whose window has closed is in exactly one row, and no window that has not is computed;
        every other one is in quarantine."""
        ahead = [str(window) for window in diffs.windows if not window.is_closed_at(self.watermark)]
        if ahead:
            self.fail(1, f"computed above the watermark, {self.watermark}: {ahead}")
        rows = [diff.key for computed in diffs.windows.values() for diff in computed.rows]
        if len(rows) != len(set(rows)):
            self.fail(4, f"in more than one row: {sorted(key for key in set(rows) if rows.count(key) > 1)}")
        closed = min(self.watermark or now, now)
        due = {key for key in self.heartbeats() if WINDOWING.containing(from_us(key[1])).is_closed_at(closed)}
        absent = due - set(rows)
        if absent:
            self.fail(4, f"in no row although all is quiet: {sorted(absent)}")
        unknown = set(rows) - set(self.heartbeats())
        if unknown:
            self.fail(4, f"rows of what was never published: {sorted(unknown)}")
        flawed = {message_id for message_id, planned in self.sent.items() if planned.flaw is not None}
        doubtful = {message_id for message_id, planned in self.sent.items() if planned.is_doubtful}
        if self.quarantined - doubtful != flawed - doubtful:
            self.fail(4, f"in quarantine: {sorted(self.quarantined)}, rejected: {sorted(flawed)}")

    def check_again(self, heartbeats: Table, diffs: Diffs, shuffled: Callable[[list[Row]], list[Row]]) -> None:
        """Computing a window again from what it was computed from gives the same rows."""
        for window, computed in diffs.windows.items():
            again = rows_of(window, shuffled(heartbeats.rows(computed.version)))
            if again != computed.rows:
                self.fail(6, f"{window} was {computed.rows}, and computed again {again}")

    def heartbeats(self) -> Iterable[Key]:
        """Every valid heartbeat that was published, copies once; where that is doubtful, those that have landed."""
        return {
            _key_of(message_id, one)
            for message_id, one in self.sent.items()
            if one.flaw is None and (message_id in self.landed or not one.is_doubtful)
        }

    def _window_is_computed(self, key: Key, diffs: Diffs) -> bool:
        return WINDOWING.containing(from_us(key[1])) in diffs.windows

    def reasons(self) -> Mapping[Reason, int]:
        """How often each reason was given."""
        return {reason: sum(one.reason is reason for one in self.decisions) for reason in Reason}


def _may_be_in(table: str, planned: Planned, judged_at_us: int) -> bool:
    """Whether the message may have been judged so at that moment. Who knows a listing of revisions does not ask again
    at once."""
    appears_us = planned.appears_us
    if table == "heartbeats":
        return planned.flaw is None and appears_us is not None and appears_us <= judged_at_us
    if planned.flaw not in (None, NO_REVISION):
        return True
    lost_patience = judged_at_us >= planned.publish_us + PATIENCE_US
    return lost_patience and (
        appears_us is None or appears_us > max(planned.publish_us + PATIENCE_US, judged_at_us - AGAIN_US)
    )


def _key_of(message_id: str, planned: Planned) -> Key:
    """What copies of one heartbeat have in common."""
    own = f"m{message_id}" if planned.publisher_id is None else f"p{planned.publisher_id}"
    return planned.stream, planned.event_us, own


def is_below(moment: datetime | None, watermark: datetime | None) -> bool:
    return watermark is not None and (moment is None or moment < watermark)


def _without_counts(decision: Decision) -> Decision:
    """Counts are upper bounds: a redelivery is not counted again in what was pruned."""
    bound = decision.bound
    return decision if bound is None else replace(decision, evidence=uncounted(bound))

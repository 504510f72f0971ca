"""The law: with disorder at most the band, nothing ever lands below the newest watermark.

Checked by brute force over seeded random schedules of one topic with two subscriptions: in which order messages
are tracked and landed, what is redelivered, which readings are missing or old, and when a decision falls between,
is all random. A failure names its seed: `Simulation(seed).run()` plays it again.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Literal

import pytest
from google.pubsub_v1 import PubsubMessage

from tests.clock import ManualClock
from tests.emulator.builders import a_subscription, a_topic
from tests.ingest.model_subscription import ModelBacklog, ModelSubscription
from tests.watermark.builders import START_US, at, disorder, histogram_of, published, reading, situation_of
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.pipeline.clock import MICROSECOND, from_us, to_us
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.replay.replay import RULES_WITHOUT_ANCHOR
from tidemark.pipeline.watermark.decision import Decision, Reason
from tidemark.pipeline.watermark.estimator import estimate
from tidemark.pipeline.watermark.histogram import BUCKET_US, Histogram
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.readings import EffectiveReading, Reading, follow
from tidemark.pipeline.watermark.rules import RULES
from tidemark.pipeline.watermark.state import Beginning, Compacted, Entry, Lost, Snapshot, WatermarkState

SECOND_US = 1_000_000
SCHEDULES = 200
IDLE_SCHEDULES = 120
UNTIL_SEEN = 100
"""More than one in forty of these schedules break a law that does not hold."""

COMPARED = 3
"""One schedule in three decides everything again on the whole histogram."""
TOPIC = "topic"
ACK_DEADLINE = timedelta(seconds=10)

Shape = Literal["any lag", "steady lag with silences"]
Rule = Literal["band", "frontier"]
both_rules = pytest.mark.parametrize("rule", ["band", "frontier"])


@dataclass(eq=False, slots=True)
class Message:
    """A published message; `event_us` is None for one that is rejected. Times in microseconds."""

    publish_us: int
    event_us: int | None


def any_lag(rng: random.Random, band_us: int, rejected_share: float) -> list[tuple[int, int | None]]:
    """Messages in bursts and after gaps, with any distance between event and publish time, and disorder <= band.

    Each has a key between its publish time and a band later, and event times follow the order of the keys. So
    `et_a < et_b` implies `pt_a <= key_a <= key_b <= pt_b + band`.
    """
    publish, times = START_US + rng.randrange(SECOND_US), []
    for _ in range(rng.randint(1, 14)):
        publish += round(rng.choice([0, SECOND_US, band_us, 2 * band_us, 6 * band_us, 30 * SECOND_US]) * rng.random())
        times.append(publish)
    keyed = sorted((time + round(rng.choice([0, 1, rng.random()]) * band_us), time) for time in times)
    event, messages = times[0] - rng.randrange(100 * SECOND_US), []
    for _, time in keyed:
        event += round(rng.choice([0, 0.2, 2, 2, 60]) * rng.random() * SECOND_US)
        messages.append((time, None if rng.random() < rejected_share else event))
    return messages


def steady_lag(rng: random.Random, band_us: int, rejected_share: float) -> list[tuple[int, int | None]]:
    """Bursts between long silences; event times a lag before the keys, so that `pt - et <= recent lag + band`."""
    publish, messages = START_US + rng.randrange(SECOND_US), []
    lag = rng.randint(-60, 280) * SECOND_US
    for _ in range(rng.randint(1, 12)):
        publish += round(rng.choice([0.5, 3, 200, 400]) * rng.random() * SECOND_US)
        event = publish + round(rng.choice([0, 1, rng.random()]) * band_us) - lag
        messages.append((publish, None if rng.random() < rejected_share else event))
    return messages


@dataclass
class Outcome:
    """What a schedule came to."""

    lost: list[Message]
    decisions: list[Decision]
    differing: list[tuple[Decision, Decision]]
    valid: list[Message]


class Simulation:
    """One topic, a tracker and a lander, and decisions in between; everything follows from the seed."""

    def __init__(
        self,
        seed: int,
        *,
        rule: Rule = "band",
        shape: Shape = "any lag",
        anchor: bool = True,
        disorder_beyond_band: timedelta = timedelta(0),
        lost_entries: float = 0.0,
        compares: bool = False,
        rare: bool = False,
    ) -> None:
        self.compares, self.rare = compares, rare
        self.rng = rng = random.Random(seed)
        band = timedelta(seconds=rng.choice([0, 1, 2.5, 5, 10, 10, 20]))
        slack = timedelta(seconds=rng.choice([0, 0, 0.7, 2]))  # how late a message may become visible
        self.policy = Policy(
            rule=rule,
            band=band,
            near_real_time=timedelta(seconds=rng.choice([1, 10])),
            idle="hold" if shape == "any lag" else "advance",
            reading_slack=slack,
            base_slack=slack,
            seek_tolerance=timedelta(hours=1),  # of the old answers here none is a seek
            max_reading_age=timedelta(seconds=1) if rare else Policy().max_reading_age,
        )
        self.rules = RULES if anchor else RULES_WITHOUT_ANCHOR
        band_us = (band + disorder_beyond_band) // MICROSECOND
        make = any_lag if shape == "any lag" else steady_lag
        self.messages = [
            Message(publish, event) for publish, event in make(rng, band_us, rejected_share=rng.choice([0, 0, 0.2]))
        ]
        valid = [(m.publish_us, m.event_us) for m in self.messages if m.event_us is not None]
        assert disorder(valid) <= band_us, f"seed {seed}: the schedule breaks its own assumption"
        self.to_publish = sorted(self.messages, key=lambda message: message.publish_us)
        self.clock = ManualClock(from_us(START_US - SECOND_US))
        self.complete_from = self.clock.now() - timedelta(seconds=5)
        self.model = PubSubModel(rng=rng, faults=Faults(shuffled=True, redelivered=0.1, visible_after=slack))
        self.model.create_topic(a_topic(TOPIC))
        for name in ("base", "tracking"):
            self.model.create_subscription(a_subscription(name, TOPIC, ACK_DEADLINE), self.clock.now())
        self.base, self.tracking = (
            ModelSubscription(self.model, "base", self),
            ModelSubscription(self.model, "tracking", self),
        )
        self.backlogs = {name: ModelBacklog(self.model, name, self) for name in ("tracking", "base")}
        self.past: dict[str, list[Reading]] = {"tracking": [], "base": []}
        self.sent: dict[str, Message] = {}
        self.histogram = Histogram.empty()
        self.effective: dict[str, EffectiveReading | None] = {"base": None, "tracking": None}
        self.entries: list[Entry] = []
        self.state = WatermarkState()
        self.log(Beginning(self.complete_from))
        self.lost_entries = lost_entries
        self.landed: set[int] = set()
        self.outcome = Outcome([], [], [], [m for m in self.messages if m.event_us is not None])

    def run(self) -> Outcome:
        """Tick until everything was published, then until everything is quiet."""
        last = self.to_publish[-1].publish_us
        while to_us(self.clock.now()) <= last:
            self.tick(longest_step=self.rng.choice([2 * SECOND_US, 8 * SECOND_US, max(1, (last - START_US) // 3)]))
        for _ in range(4):
            self.tick(longest_step=SECOND_US)
        self.model.faults = Faults()
        self.pass_time(ACK_DEADLINE // MICROSECOND, exactly=True)  # the last acknowledgements are undone
        while any(self.model.oldest_unacked(name, self.clock.now()) for name in ("base", "tracking")):
            self.tick(longest_step=SECOND_US)
        self.pass_time(self.policy.band // MICROSECOND + 10 * SECOND_US, exactly=True)
        self.decide(honest=True)
        return self.outcome

    def tick(self, longest_step: int) -> None:
        """Pull, persist, acknowledge, read T and B, decide; base lands at any moment in between."""
        self.pass_time(longest_step)
        for _ in range(self.rng.choice([0, 1, 1, 2])):  # none: the tracker was away; two: another one was there
            self.track()
        self.maybe_land()
        self.decide()
        self.maybe_land()

    def track(self) -> None:
        batch, pulled = self.pull(self.tracking)
        delta = histogram_of(
            [(m.publish_us, m.event_us) for m in pulled if m.event_us is not None],
            [m.publish_us for m in pulled if m.event_us is None],
        )
        self.histogram += delta
        self.log(Snapshot(delta))
        self.acknowledge(self.tracking, batch)

    def maybe_land(self) -> None:
        if self.rng.random() < 0.5:
            return
        batch, pulled = self.pull(self.base)
        watermark = self.outcome.decisions[-1].watermark if self.outcome.decisions else None
        for message in pulled:
            first_landing = id(message) not in self.landed
            self.landed.add(id(message))
            if watermark is None or message.event_us is None or not first_landing:
                continue
            if from_us(message.event_us) < watermark:
                self.outcome.lost.append(message)
        self.acknowledge(self.base, batch)

    def pull(self, subscription: ModelSubscription) -> tuple[PulledBatch, list[Message]]:
        """All that is there, or some of it."""
        batch = subscription.pull(self.rng.choice([1000, self.rng.randint(1, 14)]), 1 << 20, 1)
        return batch, [self.sent[message_id] for message_id in batch.messages.table["message_id"].to_pylist()]

    def acknowledge(self, subscription: ModelSubscription, batch: PulledBatch) -> None:
        """Some messages are not acknowledged in the end (a crash, a lost answer) and will be delivered again."""
        ack_ids = list(batch.ack_ids)
        if self.rng.random() < 0.15:
            ack_ids = self.rng.sample(ack_ids, self.rng.randint(0, len(ack_ids)))
        subscription.acknowledge(ack_ids)

    def observe(self, name: str, *, honest: bool) -> Reading | None:
        """A reading. Sometimes there is none, or an older one: a new observation of an old value, or an old
        observation that arrives only now. Where readings are `rare`, most ticks have none of base, by intention."""
        before = self.clock.now()
        if self.rare and name == "base" and self.past[name] and not honest and self.rng.random() < 0.8:
            self.pass_time(SECOND_US // 5)
            return None
        self.pass_time(SECOND_US // 5)
        promised = timedelta(hours=1 if self.rare else 0)
        fresh = replace(self.backlogs[name].read(), observed_at=before, next_within=promised)
        self.past[name].append(fresh)
        chance = 1.0 if honest else self.rng.random()
        if chance < 0.08:
            return None
        if chance < 0.16:
            return self.rng.choice(self.past[name])
        if chance < 0.24:
            return replace(self.rng.choice(self.past[name]), observed_at=before)
        return fresh

    def decide(self, *, honest: bool = False) -> None:
        observed: dict[str, Reading | None] = {}
        for name in ("tracking", "base"):
            observed[name] = self.observe(name, honest=honest)
            self.effective[name] = follow(self.effective[name], observed[name], self.policy.seek_tolerance)
            self.maybe_land()
            if self.rng.random() < 0.1:
                self.track()  # another tracker; its part of the log is folded before the decision
        decided = self.state.decide(observed["base"], observed["tracking"], self.policy, self.clock.now(), self.rules)
        if self.compares:
            whole = self.decision_on_everything()
            if apart_from_counts(decided.decision) != apart_from_counts(whole):
                self.outcome.differing.append((decided.decision, whole))
        self.log(decided)
        self.outcome.decisions.append(decided.decision)
        if self.lost_entries > 0:
            if self.rng.random() < self.lost_entries:
                self.lose_an_entry()
        elif self.rng.random() < 0.1:
            self.log(Compacted(self.state))

    def log(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.state = self.state.after(self.state.number + 1, entry)

    def lose_an_entry(self) -> None:
        """Any snapshot, old or new, is found to be damaged and is forgotten; the log is folded again."""
        snapshots = [number for number, entry in enumerate(self.entries) if isinstance(entry, Snapshot)]
        if snapshots:
            self.entries[self.rng.choice(snapshots)] = Lost("its object was damaged")
        self.state = folded(self.entries)

    def decision_on_everything(self) -> Decision:
        """The decision on all that was ever tracked, never pruned and never restored from the log."""
        previous = self.outcome.decisions[-1] if self.outcome.decisions else None
        return estimate(
            situation_of(
                self.histogram,
                base=self.effective["base"],
                tracking=self.effective["tracking"],
                policy=self.policy,
                previous=previous,
                complete_from=self.complete_from if previous is None else previous.complete_from or self.complete_from,
                at=self.clock.now(),
            ),
            self.rules,
        )

    def pass_time(self, at_most: int, *, exactly: bool = False) -> None:
        ends_us = to_us(self.clock.now()) + (at_most if exactly else self.rng.randint(0, at_most))
        while self.to_publish and self.to_publish[0].publish_us <= ends_us:
            message = self.to_publish.pop(0)
            (message_id,) = self.model.publish(TOPIC, [PubsubMessage()._pb], from_us(message.publish_us))
            self.sent[message_id] = message
        self.clock.advance(from_us(ends_us) - self.clock.now())

    # What the subscriptions ask of the process

    def step(self, what: str) -> None: ...

    def keep(self, _extend: Callable[[], None]) -> Callable[[], None]:
        return lambda: None

    def pulled(self) -> None: ...

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None: ...

    def refuses_untruly(self) -> bool:
        return False


def apart_from_counts(decision: Decision) -> Decision:
    """Counts are upper bounds: a redelivery of pruned messages is not counted again."""
    bound = decision.bound
    return decision if bound is None else replace(decision, evidence=replace(bound, pin=replace(bound.pin, count=0)))


def folded(entries: list[Entry], state: WatermarkState | None = None) -> WatermarkState:
    state = WatermarkState() if state is None else state
    for entry in entries:
        state = state.after(state.number + 1, entry)
    return state


@both_rules
def test_with_disorder_within_the_band_nothing_is_late_and_the_watermark_moves_on(rule: Rule) -> None:
    advanced = fewer = 0
    for seed in range(SCHEDULES):
        simulation = Simulation(seed, rule=rule, compares=seed % COMPARED == 0)
        outcome = simulation.run()
        assert not outcome.lost, f"seed {seed}: {outcome.lost} landed below the watermark"
        assert_no_hole_is_found(simulation, seed)
        assert_it_never_goes_back_and_once_quiet_reaches_the_newest_messages(outcome, seed)
        assert not outcome.differing, f"seed {seed}: on the whole histogram: {outcome.differing[0]}"
        advanced += sum(decision.reason is Reason.ADVANCED for decision in outcome.decisions)
        fewer += simulation.compares and len(simulation.state.histogram) < len(simulation.histogram)
    assert advanced > SCHEDULES  # it was put to the test
    assert fewer > SCHEDULES // COMPARED // 2  # something was pruned


@both_rules
def test_readings_that_are_rare_by_intention_hold_nothing_by_their_age_and_nothing_is_lost(rule: Rule) -> None:
    """The bound on their age is a second here; the promise of the next one stands in its place."""
    advanced = aged = 0
    for seed in range(UNTIL_SEEN):
        simulation = Simulation(seed, rule=rule, rare=True)
        outcome = simulation.run()
        assert not outcome.lost, f"seed {seed}: {outcome.lost} landed below the watermark"
        assert_no_hole_is_found(simulation, seed)
        assert_it_never_goes_back_and_once_quiet_reaches_the_newest_messages(outcome, seed)
        known = [one for one in outcome.decisions if one.base is not None and one.tracking is not None]
        assert Reason.HELD_STALE_READING not in {one.reason for one in known}, f"seed {seed}"
        advanced += sum(one.reason is Reason.ADVANCED for one in known)
        aged += sum(one.at - one.base.newest.observed_at > timedelta(seconds=60) for one in known if one.base)
    assert advanced > UNTIL_SEEN
    assert aged > UNTIL_SEEN // 2


@both_rules
def test_with_its_own_assumption_the_idle_rule_loses_nothing_either(rule: Rule) -> None:
    idled = fewer = 0
    for seed in range(IDLE_SCHEDULES):
        simulation = Simulation(seed, rule=rule, shape="steady lag with silences", compares=seed % COMPARED == 0)
        outcome = simulation.run()
        assert not outcome.lost, f"seed {seed}: {outcome.lost} landed below the watermark"
        assert not outcome.differing, f"seed {seed}: on the whole histogram: {outcome.differing[0]}"
        idled += sum(decision.reason is Reason.IDLE_ADVANCED for decision in outcome.decisions)
        fewer += simulation.compares and len(simulation.state.histogram) < len(simulation.histogram)
    assert idled > IDLE_SCHEDULES // 4
    assert fewer > IDLE_SCHEDULES // COMPARED // 2


def assert_no_hole_is_found(simulation: Simulation, seed: int) -> None:
    """There is none."""
    decisions = simulation.outcome.decisions
    assert {decision.complete_from for decision in decisions} == {simulation.complete_from}, f"seed {seed}"


def assert_it_never_goes_back_and_once_quiet_reaches_the_newest_messages(outcome: Outcome, seed: int) -> None:
    known = [decision.watermark for decision in outcome.decisions if decision.watermark is not None]
    assert known == sorted(known), f"seed {seed}"
    last = outcome.decisions[-1]
    if not outcome.valid:
        assert (last.watermark, last.reason) == (None, Reason.HELD_NO_DATA), f"seed {seed}"
        return
    newest = max(message.publish_us for message in outcome.valid) // BUCKET_US
    beside = [
        min(m.event_us, m.publish_us)
        for m in outcome.valid
        if m.publish_us // BUCKET_US == newest and m.event_us is not None
    ]
    assert last.watermark is not None, f"seed {seed}: {last.sentence()}"
    assert last.watermark >= from_us(min(beside)), f"seed {seed}: {last.sentence()}"


def test_without_the_anchor_messages_are_lost() -> None:
    lost = sum(bool(Simulation(seed, anchor=False).run().lost) for seed in range(UNTIL_SEEN))
    assert lost > UNTIL_SEEN // 40


@both_rules
def test_with_more_disorder_than_the_band_messages_are_lost(rule: Rule) -> None:
    beyond = timedelta(seconds=20)
    lost = sum(bool(Simulation(seed, rule=rule, disorder_beyond_band=beyond).run().lost) for seed in range(UNTIL_SEEN))
    assert lost > UNTIL_SEEN // 40


def test_an_entry_lost_from_the_log_holds_the_watermark_and_loses_no_message() -> None:
    held = 0
    for seed in range(UNTIL_SEEN):
        outcome = Simulation(seed, lost_entries=0.1).run()
        assert not outcome.lost, f"seed {seed}: {outcome.lost} landed below the watermark"
        held += any(decision.reason is Reason.HELD_INCOMPLETE for decision in outcome.decisions)
    assert held > UNTIL_SEEN // 10


def test_messages_of_a_lost_entry_above_tracking_s_reading_do_not_count_as_known() -> None:
    # It held what was published at 100.5 and happened at 95; tracking still held 90.5, and so did base.
    state = folded([Beginning(at(0)), Snapshot(published([(50, 49)])), Lost("published at 100.5")])
    first = state.decide(reading(101, 90.5), reading(101, 90.5), Policy(), at(101))
    later = folded([first, Snapshot(published([(90.5, 89), (100.2, 99), (115, 114)]))], state)
    decision = later.decide(reading(120, 100.5), reading(120), Policy(), at(120)).decision
    assert (decision.reason, decision.watermark) == (Reason.HELD_INCOMPLETE, None)
    passed = later.decide(reading(130), reading(130), Policy(), at(130)).decision
    assert (passed.reason, passed.complete_from) == (Reason.ADVANCED, at(101))


def test_a_decision_from_before_a_loss_was_found_does_not_settle_it() -> None:
    before = folded([Beginning(at(0)), Snapshot(published([(50, 49)])), Snapshot(published([(60, 40)]))])
    unaware = before.decide(reading(61, 60), reading(61), Policy(), at(61))
    found = folded([Beginning(at(0)), Snapshot(published([(50, 49)])), Lost("published at 60"), unaware])
    assert found.is_missing_entries
    decision = found.decide(reading(62, 60), reading(62), Policy(), at(62))
    assert (decision.decision.reason, decision.decision.complete_from) == (Reason.HELD_INCOMPLETE, at(62))
    assert not folded([decision], found).is_missing_entries

"""One run: everything follows from the seed. `Simulation(seed).run()` plays it, and plays it again."""

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NoReturn
from unittest.mock import patch

from tests.clock import ManualClock
from tests.emulator.builders import a_subscription, a_topic, plain
from tests.ingest.fakes import AMPLE
from tests.simulation.faults import AS_IT_IS, Planted
from tests.simulation.lake import Codec, Folds, Objects, Outside, Row, Table, Written
from tests.simulation.micro_batch import Diffs, missed, stale
from tests.simulation.oracle import Broken, Oracle
from tests.simulation.payloads import reader_of
from tests.simulation.plan import CONTRACT, EXTRAS, TO_ADVANCE, WINDOWING, Incident, Plan, plan_of
from tests.simulation.rounds import Driver, PlayedRounds, Run
from tests.simulation.schedule import Schedule
from tests.simulation.traffic import PATIENCE_US, SECOND, Planned, by_age
from tests.simulation.worker import Lander, Operator, Packer, Runner, Tracker, Worker
from tests.watermark.builders import START, START_US
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.pipeline.clock import MICROSECOND, from_us, iso
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.take import SOONEST, Budget
from tidemark.pipeline.lake.log.archive import ARCHIVES, archived_numbers
from tidemark.pipeline.lake.log.tracking_log import FOLDER as LOG
from tidemark.pipeline.lake.log.tracking_log import SUFFIX, TrackingLog
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS
from tidemark.pipeline.watermark.state import WatermarkState

TOPIC = "heartbeats"
LAST_STEPS = 25
"""How many steps a failure tells."""

ENTRIES_AN_ARCHIVE = 6
"""So few, so that there are several archives."""

STEPS_AT_MOST = 150_000
"""A run that takes more does not end."""


class Simulation:
    """A topic, its two subscriptions, a lake, and the workers that tick; `planted` is what is broken on purpose. With a
    filter, messages of others are published beside each of ours: one that came through would be known to nobody."""

    def __init__(
        self,
        seed: int,
        *,
        planted: Planted = AS_IT_IS,
        trace: Callable[[str], None] | None = None,
        filtered: bool = False,
    ) -> None:
        self.seed = seed
        self.filtered = filtered
        self.planted = planted
        # A planted fault is looked for without bounds on age, rounds, and so on, unless it is about them.
        extras = EXTRAS if planted is AS_IT_IS else {planted.about}
        self.plan: Plan = plan_of(seed, extras)
        self.policy = planted.policy(self.plan.policy)
        # A planted fault is looked for by a true clock, so that it shows in the same seeds as ever.
        self.clock_apart = self.plan.clock_apart if planted is AS_IT_IS else timedelta(0)
        # And a planted fault is looked for with a reading at each tick.
        self.snapshot_budget = self.plan.snapshot_budget if "budgets" in extras else None
        self.rng = random.Random(f"{seed} runs")
        self.clock = ManualClock(START - timedelta(seconds=1))
        self.schedule = Schedule(self.clock, self.rng)
        self.model = PubSubModel(rng=random.Random(f"{seed} of Pub/Sub"), faults=self.plan.faults)
        self.codec = Codec(real=self.plan.real_codec)
        self.folds = Folds()
        self.objects = Objects(self._on_create, self._on_delete)
        self.heartbeats = Table("heartbeats", self._on_add, self._on_write)
        self.quarantine = Table("quarantine", self._on_add, self._on_write)
        self.diffs = Diffs()
        max_age_us = self.plan.max_age_us
        max_age = None if max_age_us is None else timedelta(microseconds=max_age_us)
        self._contract = replace(CONTRACT, max_age=max_age)
        if self.plan.payloads is not None:
            self._contract = self.plan.payloads.contract(self._contract)
        self._reader = HeartbeatReader(self._contract)
        self.oracle = Oracle(self.plan, self.fail, planted.judged_by or planted.rules)
        self.is_calm = False
        self.is_over = False
        self.paused: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        self.written: dict[int, bytes] = {}
        self.archived: set[int] = set()
        self.dropped: set[int] = set()
        self.workers: list[Worker] = []
        self.drivers: list[Driver] = []
        self.runs: list[Run] = []
        self._rounds_played = PlayedRounds(self) if self.plan.rounds is not None else None
        self._trace = trace
        self._last: deque[tuple[int, str, str]] = deque(maxlen=LAST_STEPS)

    # What workers use

    def note(self, who: str, what: str) -> None:
        """Something happened. Raises Broken if too much has."""
        self.counts["steps"] += 1
        self._last.append((self.schedule.now_us, who, what))
        if self._trace is not None:
            self._trace(_told(self._last[-1]))
        if self.counts["steps"] > STEPS_AT_MOST:
            self.fail(5, f"{STEPS_AT_MOST} steps, and no end")

    def fail(self, number: int, what: str) -> NoReturn:
        fault = None if self.planted is AS_IT_IS else self.planted.name
        raise Broken(self.seed, number, what, "\n".join(map(_told, self._last)), fault)

    def _on_create(self, name: str, content: bytes) -> None:
        archived = ARCHIVES.key_of(name)
        if archived is not None:
            self.archived.update(archived_numbers(archived))
            return
        if not name.startswith(LOG):  # a note of how far the log has come
            return
        number = int(name.removeprefix(LOG).removesuffix(SUFFIX))
        if number in self.archived:  # its number was free again: whoever took it finds that out, and takes it back
            return
        self.written[number] = content
        self.oracle.logged(self.codec.decode(content, name))

    def _on_delete(self, name: str) -> None:
        archived = ARCHIVES.key_of(name)
        self.dropped.update(archived_numbers(archived) if archived is not None else ())

    def _on_add(self, table: str, file: Written, worker: Outside) -> None:
        worker.late_rows += sum(row["late"] for row in file.rows if table == "heartbeats")
        self.oracle.added(table, file)

    def _on_write(self, rows: list[Row]) -> None:
        if self.planted.files_are_durable:
            self.oracle.in_files.update(row["message_id"] for row in rows)

    def reader(self) -> HeartbeatReader:
        """What a new process judges by."""
        payloads = self.plan.payloads
        reader = self._reader if payloads is None else reader_of(self, self._contract, payloads)
        reader.judged_by = "a contract"
        return reader

    def given_back(self, subscription: str, message_ids: Sequence[str], seconds: int) -> None:
        """Messages were given back. One whose revision is not there waits no longer than it may."""
        now_us = self.schedule.now_us
        for one in map(self.oracle.sent.__getitem__, message_ids):
            ends_us = one.publish_us + PATIENCE_US * (1 if subscription == "base" else 2)
            if now_us >= ends_us or (one.appears_us is not None and one.appears_us <= now_us):
                continue
            self.counts["waited"] += seconds > GIVEN_BACK_SECONDS
            if now_us + seconds * SECOND > ends_us + SOONEST // MICROSECOND:
                self.fail(5, f"{one} waits on {subscription} for {seconds} s more")

    def let_go(self, subscription: str, message_ids: Sequence[str]) -> None:
        """Messages are about to be acknowledged: nobody has to keep their leases any more."""
        for run in self.runs:
            run.kept -= {(subscription, message_id) for message_id in message_ids}

    def delivered(self, subscription: str, message_ids: Sequence[str]) -> None:
        """Messages were pulled: none that a run keeps until it is settled."""
        for run in self.runs:
            again = run.kept & {(subscription, message_id) for message_id in message_ids}
            if again and not run.is_dead:
                self.fail(0, f"delivered again, although a run keeps their leases: {sorted(again)}")

    @property
    def keeps_leases_for_certain(self) -> bool:
        """Whether nothing but the end of its lease has a message delivered again."""
        return self.plan.keeps_leases and not self.plan.faults.duplicate_delivery

    def lease_left(self, subscription: str, ack_id: str) -> timedelta:
        """How long its lease lasts: nothing where that is not the newest of its message."""
        _, delivery, number = ack_id.split(".")
        lease = self.model._state(subscription).outstanding._leases.get(int(number))
        is_newest = lease is not None and lease.delivery == int(delivery)
        return (lease.until_us - self.schedule.now_us) * MICROSECOND if lease and is_newest else timedelta(0)

    @property
    def calls_succeed(self) -> bool:
        """Whether no call to Pub/Sub fails."""
        faults = self.model.faults
        return not (faults.unavailable or faults.deadline_exceeded or faults.throttled)

    @property
    def rounds_played(self) -> PlayedRounds:
        """What drivers play."""
        assert self._rounds_played is not None
        return self._rounds_played

    @property
    def ticks_rest(self) -> bool:
        """Whether ticks pull nothing, because rounds do."""
        rounds = self.plan.rounds
        return rounds is not None and (
            rounds.beside == "deciders"
            or (rounds.beside == "ticks in between" and any(one.is_ticking for one in self.drivers))
        )

    def budget(self, kind: str) -> Budget:
        """How much a tick may take: once it is calm, enough for all there is."""
        return AMPLE if self.is_calm else self.plan.budgets[kind]

    # The run

    def run(self) -> Counter[str]:
        """Trouble, then calm, then the end. Returns what the run was made of, and how often each reason was given while
        there was trouble: what comes after is the same in every run. Raises Broken."""
        with self._world_in_place(), self.planted.in_place():
            self._set_up()
            self.schedule.run(self.plan.ends_us)
            reasons = self.oracle.reasons()
            self._calm()
            self._end()
        return self.counts + Counter(
            {
                "messages": len(self.oracle.sent),
                "dropped": len(self.dropped),
                "windows": len(self.diffs.windows),
                "late": len(self.oracle.late),
                **reasons,
            }
        )

    @contextmanager
    def _world_in_place(self) -> Iterator[None]:
        module, packing = "tidemark.pipeline.lake.log.tracking_log", "tidemark.pipeline.lake.log.packing"
        with ExitStack() as stack:
            stack.enter_context(patch(f"{packing}.decode", self.codec.decode))
            stack.enter_context(patch(f"{packing}.ENTRIES", ENTRIES_AN_ARCHIVE))
            for name in (module, "tidemark.pipeline.ingest.outcome"):
                stack.enter_context(patch(f"{name}.encode", self.codec.encode))
                stack.enter_context(patch(f"{name}.decode", self.codec.decode))
            if self.planted is AS_IT_IS and self.seed % 2:
                stack.enter_context(patch("tidemark.pipeline.ingest.take.FILE_BYTES", 1))  # each part is a file
            if self._rounds_played is not None:
                stack.enter_context(self._rounds_played.in_place())
            after = self.folds.after
            stack.enter_context(patch.object(WatermarkState, "after", lambda *arguments: after(*arguments)))
            catch_up = TrackingLog.catch_up
            stack.enter_context(patch.object(TrackingLog, "catch_up", lambda log: self._caught_up(log, catch_up(log))))
            yield

    def _caught_up(self, log: Any, state: WatermarkState) -> WatermarkState:
        """A worker that looks at the log finds the newest watermark of that moment."""
        worker = log._objects._outside
        if state.watermark != worker.watermark_when_looked:
            known, newest = state.watermark, worker.watermark_when_looked
            self.fail(0, f"{worker.name} has caught up to the watermark {known}, and the newest was {newest}")
        return state

    def _set_up(self) -> None:
        plan = self.plan
        with self.faultless():
            self.model.create_topic(a_topic(TOPIC))
            self._subscribe("base")
        self.schedule.at(plan.tracking_at_us, lambda: self._subscribe("tracking"))
        if plan.hole_until_us is not None and plan.tracking_at_us < START_US:
            self.schedule.at(START_US, lambda: self._begin_hole(plan.hole_until_us))
        for planned in plan.messages:
            self.schedule.at(planned.arrives_us, lambda planned=planned: self.publish(planned))  # type: ignore[misc]
        for incident in plan.incidents:
            self.schedule.at(incident.at_us, lambda incident=incident: self._seek(incident))  # type: ignore[misc]
        rounds = plan.rounds
        self.drivers = [Driver(self, f"driver {number}") for number in range(rounds.drivers if rounds else 0)]
        self.workers = [
            *self.drivers,  # first: at the end those decide after it who read what it has left
            *(Tracker(self, f"tracker {number}") for number in range(plan.trackers)),
            *(Lander(self, f"lander {number}") for number in range(plan.landers)),
            *(Runner(self, f"runner {number}") for number in range(plan.runners)),
            *(Packer(self, f"packer {number}") for number in range(plan.packers)),
            *(Operator(self, f"operator {number}") for number in range(plan.operators)),
        ]
        for worker in self.workers:
            self.schedule.start(worker.body)

    @contextmanager
    def faultless(self) -> Iterator[None]:
        """The model does as it is told: for those who are not put to the test."""
        faults, self.model.faults = (
            self.model.faults,
            Faults(whole_seconds=self.plan.faults.whole_seconds, visible_after=self.plan.faults.visible_after),
        )
        try:
            yield
        finally:
            self.model.faults = faults

    def _subscribe(self, name: str) -> None:
        with self.faultless():
            subscription = a_subscription(name, TOPIC, self.plan.ack_deadline, retain_acked_messages=True)
            subscription.filter = "NOT attributes:of_others" * self.filtered
            self.model.create_subscription(subscription, self.clock.now())
        self.note("somebody", f"created {name}")

    def publish(self, planned: Planned) -> None:
        """A source publishes."""
        if self.plan.payloads is not None and not planned.written:
            planned = self.plan.payloads.of_old(planned)
        planned = by_age(planned, self.plan.max_age_us)
        message: Any = planned.as_message()
        others = [plain("{}", of_others="", stream_id="other", event_time="1"), plain("", of_others="")] * self.filtered
        with self.faultless():
            self.model.publish(TOPIC, [*others, message], self.clock.now())
        self.oracle.published(message, planned)
        self.note("a source", f"published message {message.message_id}, {planned}")

    def _seek(self, incident: Incident) -> None:
        """Back by so much, and at most to what is still outstanding: a seek beyond that loses messages."""
        name = incident.subscription
        with self.faultless():
            if name not in [one.name for one in self.model.list_subscriptions()]:
                return
            outstanding = [self.oracle.sent[one.message_id].publish_us for one in self.model.unacknowledged(name)]
            to_time_us = min([self.schedule.now_us - incident.back_us, *outstanding])
            self.model.seek(name, from_us(to_time_us), self.clock.now())
        self.note("somebody", f"sought {name} back to {iso(from_us(to_time_us))}")

    def _begin_hole(self, until_us: int | None) -> None:
        """Delete the tracking subscription as soon as nothing is outstanding and nobody is at work: what is published
        until it is there again is unknown to it. Whoever looks first then sees a hole, and nothing else."""
        now_us = self.schedule.now_us
        if until_us is None or now_us + SECOND >= until_us:
            return
        newest_us = max((one.arrives_us for one in self.oracle.sent.values()), default=now_us)
        outstanding = [*self.model.unacknowledged("base"), *self.model.unacknowledged("tracking")]
        if (
            outstanding
            or any(worker.is_ticking for worker in self.workers)
            or not self.oracle.decisions
            or now_us // SECOND - newest_us // SECOND < 1 + self.plan.slack_us // SECOND
        ):
            self.schedule.at(now_us + SECOND // 4, lambda: self._begin_hole(until_us))
            return
        self.paused = frozenset({"tracker", "lander", "runner"})
        with self.faultless():
            self.model.delete_subscription("tracking")
        self.note("somebody", "deleted tracking")
        self.schedule.at(until_us - 1, self._end_hole)

    def _end_hole(self) -> None:
        """Tracking is there again; trackers go on once all is visible, and what they read first is right."""
        self._subscribe("tracking")
        faults, known = self.model.faults, len(self.oracle.decisions)
        self.model.faults = Faults(whole_seconds=faults.whole_seconds, visible_after=faults.visible_after)

        def again() -> None:
            if self.is_calm:
                return
            self.paused = frozenset({"lander"})
            if len(self.oracle.decisions) == known:
                self.schedule.at(self.schedule.now_us + SECOND // 4, again)
                return
            self.model.faults = faults
            self.schedule.at(self.schedule.now_us + self.rng.choice([0, 1, 3]) * self.plan.near_us, landers_too)

        def landers_too() -> None:
            self.paused = frozenset()

        self.schedule.at(self.schedule.now_us + self.plan.slack_us + 2, again)

    # Once it is calm

    def _calm(self) -> None:
        """Faults stop, and traffic goes on until the watermark is near real time, which takes so many ticks at most."""
        self.is_calm = True
        if self._rounds_played is not None:
            self._rounds_played.calm_down()
        self.paused = frozenset()
        self.model.faults = Faults(
            whole_seconds=self.plan.faults.whole_seconds, visible_after=self.plan.faults.visible_after
        )
        self.note("somebody", "all is calm")
        tick_us = self.plan.calm_tick_us
        starts_us = math.ceil(self.schedule.now_us / SECOND) * SECOND
        self.calm_event_us = self._first_calm_event(starts_us) - starts_us
        next_us = starts_us
        for tick in range(1, self.plan.calm_ticks + 1):
            until_us = starts_us + tick * tick_us
            while next_us <= until_us:
                self._publish_calmly_at(next_us)
                next_us += SECOND
            self.schedule.run(until_us)
            near = from_us(self.schedule.now_us - self.plan.near_us + min(self.calm_event_us, 0))
            if self.oracle.watermark is not None and self.oracle.watermark >= near:
                return
        decision = self.oracle.decisions[-1].sentence() if self.oracle.decisions else "none"
        self.fail(5, f"{self.plan.calm_ticks} ticks of calm, and it should be at {iso(near)}: {decision}")

    def _first_calm_event(self, publish_us: int) -> int:
        """An event time that adds no disorder: above all before, and after a silence about as far behind."""
        timed = [one for one in self.oracle.sent.values() if one.is_timed]
        above = max((one.counted_us for one in timed), default=START_US) + 1000
        if self.plan.kind in TO_ADVANCE and timed:
            above = max(above, publish_us - min(one.publish_us - one.counted_us for one in timed))
        return -(-max(above, self._lagging_within(publish_us)) // 1000) * 1000

    def _lagging_within(self, publish_us: int) -> int:
        """An event time that holds the watermark for certain, if there is a bound on lag or on age."""
        max_lag, max_age_us = self.policy.max_lag, self.plan.max_age_us
        bounds_us = [max_age_us, None if max_lag is None else max_lag // MICROSECOND]
        return max((publish_us - bound_us // 2 for bound_us in bounds_us if bound_us is not None), default=0)

    def _publish_calmly_at(self, moment_us: int) -> None:
        event_us = moment_us + self.calm_event_us
        planned = Planned(
            moment_us, event_us, event_us, stream="calm", publisher_id=str(moment_us), arrives_us=moment_us
        )
        self.schedule.at(moment_us, lambda: self.publish(planned))
        if self.policy.max_lag is not None:  # a source with a slow clock goes on as well
            self._publish_late_at(moment_us, self.policy.max_lag + timedelta(seconds=3))

    def _publish_late_at(self, moment_us: int, lag: timedelta) -> None:
        event_us = (moment_us - lag // MICROSECOND) // 1000 * 1000
        planned = Planned(
            moment_us, event_us, event_us, stream="slow", publisher_id=str(moment_us), arrives_us=moment_us
        )
        self.schedule.at(moment_us, lambda: self.publish(planned))

    # Once it is over

    def _end(self) -> None:
        """Let the workers end, close every window, and check what must be true once all is quiet."""
        self.is_over = True
        self.schedule.run()
        last_us = max(one.event_us for one in self.oracle.sent.values() if one.flaw is None)
        ahead = 2 * WINDOWING.length
        band = self.policy.band + timedelta(seconds=3) + self.policy.reading_slack + self.policy.base_slack
        for number in (1, 2):
            event_us = last_us + int(ahead / timedelta(microseconds=1)) * number
            event_us = max(event_us, self._lagging_within(self.schedule.now_us) // 1000 * 1000)
            moment_us = -(-max(self.schedule.now_us, event_us) // SECOND) * SECOND  # a clock that runs fast closes none
            self.schedule.pause(moment_us - self.schedule.now_us)
            self.publish(
                Planned(
                    moment_us, event_us, event_us, stream="last", publisher_id=f"last {number}", arrives_us=moment_us
                )
            )
            self._wait_and_tick(band)
        self._wait_and_tick(timedelta(minutes=5))
        self._check_the_end()

    def _wait_and_tick(self, wait: timedelta) -> None:
        self.schedule.pause(wait // timedelta(microseconds=1))
        for worker in self.workers:
            worker.attempt()

    def _check_the_end(self) -> None:
        for name in ("base", "tracking"):
            outstanding = [one.message_id for one in self.model.unacknowledged(name)]
            if outstanding:
                self.fail(4, f"all is quiet, and {name} still holds {outstanding}")
        runner = next(worker for worker in self.workers if isinstance(worker, Runner))
        while runner.compute():
            self.schedule.pause(SECOND)
        self.counts["missed"] = len(self.oracle.check_missed(self.heartbeats, self.diffs))
        self._check_again()
        for window in stale(self.diffs.windows, missed(self.heartbeats, self.diffs)):
            runner.batch.compute([window])
        self._check_again()
        self._check_restart()
        self.oracle.check_rows(self.diffs, self.clock.now())

    def _check_again(self) -> None:
        def shuffled(rows: list[Row]) -> list[Row]:
            return self.rng.sample(rows, len(rows))

        self.oracle.check_again(self.heartbeats, self.diffs, shuffled)

    def _check_restart(self) -> None:
        """A log that is restored from nothing has the state of the logs that have followed it."""
        self.folds.forget()
        log = TrackingLog(self.workers[0].objects, checkpoint_every=10)
        restored = log.catch_up()
        for worker in self.workers:
            if worker.log.catch_up() != restored:
                self.fail(0, f"{worker.name} stands at {worker.log.catch_up()}, and a restart at {restored}")
        if restored.reading_violations and self.plan.sees_all_at_once:
            self.fail(0, f"{restored.reading_violations} reading violations, and no message was seen late")
        kept = {number: content for number, content in self.written.items() if number not in self.dropped}
        # Who slept until its number was dropped may have written under it, and a packer have packed that.
        numbers = [number for number in log.numbers() if number not in self.dropped]
        if numbers != sorted(kept):
            self.fail(0, f"the log has the entries {numbers}, and {sorted(kept)} were written")
        for number, content in kept.items():
            if log.content(number) != content:
                self.fail(0, f"entry {number} is not what was written")


def _told(step: tuple[int, str, str]) -> str:
    moment_us, who, what = step
    return f"{(moment_us - START_US) / SECOND:12.6f} {who:10} {what}"

"""Workers: a process each, whose memory is lost when it crashes, and who tick over and over."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.ingest.fakes import Crash
from tests.ingest.model_subscription import ModelBacklog, ModelSubscription, pubsub_of
from tests.simulation.lake import JudgedBy, WorkersNewFiles, WorkersObjects
from tests.simulation.oracle import Broken, is_below
from tests.simulation.traffic import SECOND
from tidemark.local.emulator.refusals import ModelError
from tidemark.pipeline.clock import MICROSECOND, Clock
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import Settling
from tidemark.pipeline.pubsub.backlog import ReadingTimes
from tidemark.pipeline.pubsub.leases import Acknowledged
from tidemark.pipeline.pubsub.pulls import GIVEN_BACK_SECONDS
from tidemark.pipeline.pubsub.spending import BudgetedBacklog, Spending
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.watermark.state import Released
from tidemark.pipeline.watermark.usage import Usage

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation


"""What all workers judge by."""

ACKNOWLEDGED_IN_A_CALL = 5
"""So few, so that a process dies between two calls that acknowledge."""

SIZE = 100
"""Bytes of a message, for the price of readings."""


class Process:
    """What calls to the outside ask of a process. Every call is a step: others run, time passes, or it dies."""

    def __init__(self, world: "Simulation", name: str) -> None:
        self.world = world
        self.name = name
        self.clock = world.clock
        self.watermark_at_pull: datetime | None = None
        self.watermark_when_looked: datetime | None = None
        self.late_rows = 0
        self.life: object | None = object()

    @property
    def is_dead(self) -> bool:
        """Whether it has crashed: what it does before that is noticed reaches nobody."""
        return self.life is None

    def die(self) -> None:
        """Crash. It keeps no lease any more."""
        self.life = None
        raise Crash

    @property
    def judges_by(self) -> JudgedBy:
        """The watermark that it looked for last."""
        known, at_pull = self.watermark_when_looked, self.watermark_at_pull
        if is_below(known, at_pull):
            self.world.fail(0, f"{self.name} judges by the watermark {known}, and it has to know {at_pull}")
        return JudgedBy(known, known)

    def step(self, what: str, risk: float = 1.0) -> None:
        """Others run and time passes, or this worker dies here."""
        world = self.world
        world.note(self.name, what)
        if self.is_dead:
            raise Crash
        if world.is_calm:
            world.schedule.pause(world.rng.randrange(2000))
        else:
            plan, chance = world.plan, world.rng.random
            if chance() < plan.crash * risk:
                self.die()
            if chance() < plan.slow:
                longest = world.rng.choice([SECOND // 2, 3 * SECOND, int(plan.ack_deadline.total_seconds()) * SECOND])
                world.schedule.pause(world.rng.randrange(2 * longest))
            else:
                world.schedule.pause(world.rng.choice(plan.step_us))

    def found_nothing_more(self) -> None:
        """It knows the whole log as of this moment."""
        self.watermark_when_looked = self.world.oracle.watermark

    def works(self) -> None:
        """Something takes long."""
        self.world.schedule.pause(self.world.rng.randrange(2000 if self.world.is_calm else 10 * SECOND))

    def lake_fails(self, risk: float = 1.0) -> bool:
        """Whether the lake does not answer this time."""
        return not self.world.is_calm and self.world.rng.random() < self.world.plan.lake_fails * risk

    def keep(self, extend: Callable[[], None]) -> Callable[[], None]:
        """Leases are extended every third of the ack deadline, as long as the worker works on the batch, and lives."""
        plan, schedule, life = self.world.plan, self.world.schedule, self.life
        is_working = plan.keeps_leases
        every_us = int(plan.ack_deadline.total_seconds() * SECOND / 3)

        def again() -> None:
            if is_working and self.life is life and not self.is_dead:
                try:
                    extend()
                except ModelError as error:
                    self.leases_not_extended(error)
                schedule.at(schedule.now_us + every_us, again)

        def stop() -> None:
            nonlocal is_working
            is_working = False

        if is_working:
            schedule.at(schedule.now_us + every_us, again)
        return stop

    def leases_not_extended(self, error: ModelError) -> None:
        """Extending leases has failed; it is tried again."""
        self.world.note(self.name, f"leases were not extended: {error}")

    def pulled(self) -> None:
        """What is below the watermark of this moment is late, or below a newer one."""
        self.watermark_at_pull = self.world.oracle.watermark

    def acknowledging(self, subscription: str, messages: Sequence[Any]) -> None:
        """The oracle looks whether they may be."""
        self.world.oracle.acknowledging(subscription, messages)

    def refuses_untruly(self) -> bool:
        """Not before the log has begun: then a refusal is taken to tell how old the backlog is."""
        return bool(self.world.objects.contents) and self.world.rng.random() < 0.5


class Worker(Process):
    """A process that ticks."""

    kind = "worker"

    def __init__(self, world: "Simulation", name: str) -> None:
        super().__init__(world, name)
        self.ticks = 0
        self.is_ticking = False
        self.subscription: WorkersSubscription | None = None
        self.build()

    def build(self) -> None:
        """A new process: it knows what the lake holds, and nothing else."""
        self.life = object()
        self.reader = self.world.reader()
        self.objects = WorkersObjects(self.world.objects, self)
        self.log = self.world.planted.log(self.objects, checkpoint_every=self.world.plan.checkpoint_every)

    def body(self) -> None:
        """Tick until all is over."""
        world = self.world
        while not world.is_over:
            world.schedule.pause(self.pause_us())
            if not self.is_out():
                self.attempt()

    def pause_us(self) -> int:
        """How long until the next tick."""
        if self.world.is_calm:
            return self.world.plan.calm_tick_us * 9 // 10
        plan = self.world.plan
        scale_us = plan.scales_us[self.kind] * (5 if self.world.rng.random() < 0.1 else 1)
        if plan.starts_at_once and self.ticks < 4:
            scale_us = SECOND
        at_most_us = max(plan.ends_us - self.world.schedule.now_us, 0) + self.world.rng.randrange(plan.calm_tick_us)
        return min(self.world.rng.randrange(2 * scale_us), at_most_us)

    def is_out(self) -> bool:
        """Whether this kind of worker is away at this moment."""
        now_us = self.world.schedule.now_us
        return self.kind in self.world.paused or (
            not self.world.is_calm
            and any(kind == self.kind and begins <= now_us < ends for kind, begins, ends in self.world.plan.outages)
        )

    def attempt(self) -> None:
        """One tick, whatever becomes of it."""
        self.ticks += 1
        self.is_ticking = True
        began_calmly = self.world.is_calm  # a driver learns of what went wrong once its readers have ended
        try:
            self.tick()
        except Crash:
            self.world.counts["crashes"] += 1
            self.world.note(self.name, "crashed")
            self.build()
        except Broken:
            raise
        except TidemarkError as error:
            self.world.counts["failed ticks"] += 1
            self.world.note(self.name, f"failed: {type(error).__name__}: {error}")
            self.keeps_no_lease()
            if self.world.is_over and began_calmly:
                self.world.fail(5, f"{self.name} fails although nothing goes wrong: {error}")
        except Exception as error:
            self.world.fail(0, f"{self.name} raised {error!r}")
        else:
            self.keeps_no_lease()
        finally:
            self.is_ticking = False

    def keeps_no_lease(self) -> None:
        """A tick that has ended has acknowledged or given back what it pulled."""
        if self.subscription is not None:
            self.subscription.check_held(())

    def tick(self) -> None:
        """One tick."""
        raise NotImplementedError


class WorkersSubscription(ModelSubscription):
    """A subscription as one worker reaches it, unless it is dead."""

    def check_held(self, held: Collection[str]) -> None:
        """The worker keeps the leases of these messages and of no others, unless it is dead."""
        process: Any = self._outside
        if not process.is_dead and self._held.keys() != set(held):
            process.world.fail(0, f"{process.name} keeps leases on {self._name}: {[*self._held]}, and not {[*held]}")

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        batch = super().pull(max_messages, max_bytes, seconds, ahead)
        process: Any = self._outside
        world, of = process.world, self._name  # after a sleep, another delivery may be newer
        newest = [one for one in batch.ack_ids if world.lease_left(of, one)]
        world.delivered(of, [self._pulled[one].message_id for one in newest])
        return batch

    def acknowledge(self, ack_ids: Sequence[str]) -> Acknowledged:
        process: Any = self._outside
        acknowledged = Acknowledged()
        for first in range(0, len(ack_ids), ACKNOWLEDGED_IN_A_CALL):
            chunk = ack_ids[first : first + ACKNOWLEDGED_IN_A_CALL]
            process.world.let_go(self._name, [self._pulled[one].message_id for one in chunk])
            acknowledged += super().acknowledge(chunk)
        return acknowledged

    def give_back(self, ack_ids: Sequence[str], seconds: int = GIVEN_BACK_SECONDS) -> None:
        process: Any = self._outside
        if not process.is_dead:
            super().give_back(ack_ids, seconds)
            process.world.given_back(self._name, [self._pulled[one].message_id for one in ack_ids], seconds)


class ClockApart:
    """The clock of a machine that disagrees with Pub/Sub's by so much."""

    def __init__(self, true: Clock, apart: timedelta) -> None:
        self._true = true
        self._apart = apart

    def now(self) -> datetime:
        return self._true.now() + self._apart

    def monotonic(self) -> float:
        return self._true.monotonic()

    def sleep(self, seconds: float) -> None:
        self._true.sleep(seconds)


class Tracker(Worker):
    """Ticks the tracking subscription."""

    kind = "tracker"

    def build(self) -> None:
        super().build()
        self.subscription = WorkersSubscription(self.world.model, "tracking", self)
        self.copies = self.world.planted.copies(*self.world.plan.copies_remembered)
        self.own_clock = ClockApart(self.clock, self.world.clock_apart)
        times = ReadingTimes(self.own_clock)
        self.tracking_backlog = ModelBacklog(self.world.model, "tracking", self, self.own_clock, times)
        self.base_backlog = ModelBacklog(self.world.model, "base", self, self.own_clock, times)
        pubsub = pubsub_of(self.world.snapshot_budget)
        self.spending = Spending(self.own_clock, pubsub, timedelta(seconds=1))
        self.budgeted = (
            BudgetedBacklog(self.tracking_backlog, self.spending, pubsub.tracking_path),
            BudgetedBacklog(self.base_backlog, self.spending, pubsub.base_path),
        )

    def tick(self) -> None:
        is_budgeted = self.world.snapshot_budget is not None and not self.world.is_calm
        tracking, base = self.budgeted if is_budgeted else (self.tracking_backlog, self.base_backlog)
        more = {"spending": self.spending} if is_budgeted else {}
        rests = self.world.ticks_rest  # rounds pull instead, and this decides
        tracked = self.world.planted.track(
            Settling(self.log, self.own_clock, {Side.TRACKING: self.subscription}, copies=self.copies),
            {Side.TRACKING: tracking, Side.BASE: base},
            self.reader,
            self.world.policy,
            replace(self.world.budget(self.kind), max_messages=0) if rests else self.world.budget(self.kind),
            rules=self.world.planted.rules,
            **more,
        )
        messages = tracked.persisted.messages
        self.spending.count(Usage(pulls=1, landed=messages, landed_bytes=messages * SIZE))  # as if base had them now
        self.world.note(self.name, tracked.decision.sentence())


class Lander(Worker):
    """Ticks the base subscription."""

    kind = "lander"

    def build(self) -> None:
        super().build()
        self.subscription = WorkersSubscription(self.world.model, "base", self)
        self.heartbeats = WorkersNewFiles(self.world.heartbeats, self)
        self.quarantine = WorkersNewFiles(self.world.quarantine, self)

    def tick(self) -> None:
        if self.world.ticks_rest:
            return
        self.late_rows = self.pulls = 0
        self.watermark_at_pull = self.world.oracle.watermark
        tables = self.heartbeats, self.quarantine
        settling = Settling(self.log, self.clock, {Side.BASE: self.subscription}, tables)
        landed = self.world.planted.land(settling, self.reader, self.world.budget(self.kind))
        self.world.note(self.name, f"landed {landed.heartbeats}, {landed.late} of them late")
        if landed.late != self.late_rows:
            self.world.fail(0, f"{self.name} reports {landed.late} late, and has landed {self.late_rows}")

    def pulled(self) -> None:
        """The first batch of a tick is judged by what was known when that began, and each further one by what is known
        after its pull."""
        self.pulls += 1
        if self.pulls > 1:
            super().pulled()


class Operator(Worker):
    """Lets go what base holds, now and then."""

    kind = "operator"

    def tick(self) -> None:
        decision = self.log.catch_up().decision
        now = self.clock.now()
        if self.world.is_calm or decision is None or decision.base is None or decision.tracking is None:
            return
        oldest = decision.base.oldest_unacked
        before = self.world.rng.choice(
            [oldest + MICROSECOND, oldest + (now - oldest) / 2, decision.tracking.oldest_unacked, now]
        )
        if before > oldest:
            self.log.append(Released(before=before, at=now, by=self.name))


class Runner(Worker):
    """Computes the windows that have closed."""

    kind = "runner"

    def build(self) -> None:
        super().build()
        self.batch = self.world.planted.micro_batch(self.world.heartbeats, self.world.diffs, self.log, self)

    def tick(self) -> None:
        self.compute()

    def compute(self) -> int:
        """The first windows that are due; how many there were."""
        return self.batch.run(self.clock.now())


class Packer(Worker):
    """Moves what is old in the log to archives."""

    kind = "packer"

    def tick(self) -> None:
        packing, plan = self.world.planted.packing(self.objects), self.world.plan
        before = self.clock.now() - plan.packs_after
        packed = packing.pack(before)
        self.world.note(self.name, f"packed {packed['entries']} entries in {packed['archives']} archives")
        if plan.drops_after is not None:
            dropped = packing.drop(before - plan.drops_after)
            self.world.note(self.name, f"dropped {dropped['entries']} entries in {dropped['archives']} archives")
        numbers = [number for number in self.log.numbers() if number not in self.world.dropped]
        first = min(numbers, default=0) if self.world.dropped else 0
        if numbers != list(range(first, first + len(numbers))):
            self.world.fail(0, f"{self.name} lists the entries {numbers}, which are not all")

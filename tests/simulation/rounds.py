"""Continuous landing in the simulation: drivers, the rounds that they settle, and the tasks of their readers.

The steps of a round are the product's own (`tidemark.pipeline.ingest.rounds`). Spark and the threads of the driver are
played: a task is tried again, two attempts of it run at once, and a driver's death ends both of its threads.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tests.ingest.fakes import AMPLE, Crash
from tests.ingest.model_subscription import ModelBacklog, ModelSubscription
from tests.simulation.lake import WorkersNewFiles, WorkersObjects
from tests.simulation.schedule import Beside, Result
from tests.simulation.traffic import SECOND
from tests.simulation.worker import Process, Worker
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.ingest.budget import Budget
from tidemark.pipeline.ingest.continuous import ROUNDS_TOLD
from tidemark.pipeline.ingest.rounds import Provisional, Settled, TakenHeartbeats, TakenTimes
from tidemark.pipeline.ingest.tracking import begin_where_new
from tidemark.pipeline.pubsub.subscription import PulledBatch

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

TRIES = 4
"""How often Spark tries a task before it fails the job."""

ACKNOWLEDGED_IN_A_CALL = 5
"""So few, so that a driver dies between two calls that acknowledge a round."""

CALM_ROUND = timedelta(seconds=0.4)
"""How long a round takes once it is calm: a fraction of a tick."""

NEW_PROCESS = 0.1
"""The chance that a task begins in a new process although one is free."""


class TaskFailed(TidemarkError):
    """Spark has tried a task as often as it does."""


class OneThread(Executor):
    """Calls one after another, in the process that asks for them."""

    def __init__(self, *_args: object, **_names: object) -> None: ...

    def map(  # type: ignore[override]
        self, call: Callable[[Any], Result], *columns: Iterable[Any], **_names: object
    ) -> Iterator[Result]:
        return map(call, *columns)


class RoundSubscription(ModelSubscription):
    """A subscription as a reader of a round or its driver reaches it: a pull waits where nothing comes."""

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        batch = super().pull(max_messages, max_bytes, seconds, ahead)
        if not len(batch):
            process: Any = self._outside
            process.world.schedule.pause(int(seconds * SECOND * process.world.rng.choice([0.4, 1.0])) + 1000)
        return batch


@dataclass
class Run:
    """One run of a driver: its executors, the messages that these have pulled, and whether the driver is dead."""

    processes: list["Python"] = field(default_factory=list)
    pulled: dict[str, Any] = field(default_factory=dict)
    attempts: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=ROUNDS_TOLD))
    started: int = 0
    is_dead: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """What the readers of a round are told."""

    watermark: datetime | None
    settled: frozenset[str]
    budget: Budget


@dataclass(frozen=True, slots=True)
class TakenRound:
    """What the readers of a round have taken, and the watermark by which they have called it late."""

    watermark: datetime | None
    of_base: Sequence[TakenHeartbeats]
    of_tracking: Sequence[TakenTimes]


class Python(Process):
    """A worker process of Spark: what it remembers goes from task to task of one run, and is lost when it dies."""

    def __init__(self, world: "Simulation", name: str) -> None:
        super().__init__(world, name)
        self.is_busy = False
        self.remembered: Provisional = world.planted.provisional(world.planted.copies(*world.plan.copies_remembered))

    def take_heartbeats(self, run: Run, told: Told) -> TakenHeartbeats:
        """One attempt of a reader of base."""
        return self.world.planted.take_heartbeats(
            RoundSubscription(self.world.model, "base", self, run.pulled),
            heartbeats=WorkersNewFiles(self.world.heartbeats, self),
            quarantine=WorkersNewFiles(self.world.quarantine, self),
            watermark=told.watermark,
            reader=self.world.reader,
            budget=told.budget,
            clock=self.clock,
        )

    def take_times(self, run: Run, told: Told) -> TakenTimes:
        """One attempt of a reader of tracking."""
        return self.world.planted.take_times(
            RoundSubscription(self.world.model, "tracking", self, run.pulled),
            reader=self.world.reader,
            remembered=self.remembered,
            laggard=self.world.policy.band,
            budget=told.budget,
            clock=self.clock,
        )


class Settling(Process):
    """The thread of a driver that settles a round. Its death is the driver's, and the driver's is its own."""

    def __init__(self, world: "Simulation", name: str, run: Run, watermark: datetime | None) -> None:
        super().__init__(world, name)
        self._run = run
        self._watermark = watermark

    @property
    def judges_by(self) -> tuple[datetime | None, datetime | None]:
        return self._watermark, self._watermark

    def step(self, what: str, risk: float = 1.0) -> None:
        die_with(self._run, lambda: super(Settling, self).step(what, risk))


class Driver(Worker):
    """Plays runs of rounds, and settles one while the readers of the next are at work."""

    kind = "driver"

    def build(self) -> None:
        super().build()
        self.run = Run()
        self.tracking_backlog = ModelBacklog(self.world.model, "tracking", self)

    def pause_us(self) -> int:
        pause_us = super().pause_us()
        return max(0, pause_us - 2 * CALM_ROUND // timedelta(microseconds=1)) if self.world.is_calm else pause_us

    def step(self, what: str, risk: float = 1.0) -> None:
        die_with(self.run, lambda: super(Driver, self).step(what, risk))

    def tick(self) -> None:
        self.run = Run()
        begin_where_new(self.log, self.tracking_backlog, self.clock)
        under_way: Beside[None] | None = None
        rounds = self.world.plan.rounds
        assert rounds is not None
        try:
            for number in range(rounds.in_a_run):
                if number and self.world.is_calm:
                    break
                taken = self.taken()
                if under_way is not None:
                    under_way.result()
                under_way = self.world.schedule.beside(lambda taken=taken: self.settle(self.run, taken))  # type: ignore[misc]
            if under_way is not None:
                under_way.result()
        finally:  # the run ends once its threads have
            if under_way is not None:
                under_way.wait()

    def taken(self) -> TakenRound:
        """The tasks of one round."""
        world, run = self.world, self.run
        plan = world.plan.rounds
        assert plan is not None
        watermark = self.log.newest_watermark()
        if watermark != self.watermark_when_looked:
            world.fail(0, f"{self.name} tells its readers {watermark}, and it was {self.watermark_when_looked}")
        budget = replace(AMPLE, max_time=CALM_ROUND) if world.is_calm else plan.budget
        told = Told(watermark, frozenset[str]().union(*run.attempts), budget)
        start = world.schedule.beside
        of_base = [start(lambda: self.task(run, told, Python.take_heartbeats)) for _ in range(plan.landers)]
        of_tracking = [start(lambda: self.task(run, told, Python.take_times)) for _ in range(plan.trackers)]
        try:
            return TakenRound(watermark, results(of_base), results(of_tracking))
        finally:
            self.step("the readers have ended")

    def settle(self, run: Run, taken: TakenRound) -> None:
        """Make a round visible and acknowledge it, as the thread beside the readers of the next round does."""
        try:
            settled = self.settled(run, taken)
        except (Crash, TidemarkError):
            self.world.lost_rounds += 1
            raise
        run.attempts.append(frozenset(one.attempt for one in taken.of_tracking))
        self.world.rounds += 1
        self.check(taken, settled)

    def settled(self, run: Run, taken: TakenRound) -> Settled:
        """The product's settling, by a process that shares the driver's fate."""
        world = self.world
        thread = Settling(world, f"{self.name} settling", run, taken.watermark)
        heartbeats, quarantine = (WorkersNewFiles(table, thread) for table in (world.heartbeats, world.quarantine))
        base, tracking = (RoundSubscription(world.model, name, thread, run.pulled) for name in ("base", "tracking"))
        return world.planted.settle(
            taken.of_base,
            taken.of_tracking,
            base=base,
            tracking=tracking,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=world.planted.log(WorkersObjects(world.objects, thread), checkpoint_every=world.plan.checkpoint_every),
            clock=world.clock,
            says={},
        )

    def check(self, taken: TakenRound, settled: Settled) -> None:
        """What was settled is what the readers have taken."""
        files = [file.path for one in taken.of_base for file in one.heartbeats]
        rows = [row for path in files for row in self.world.heartbeats.files[path]]
        landed, late = settled.landed, sum(row["late"] for row in rows)
        if (landed.heartbeats, landed.late) != (len(rows), late):
            self.world.fail(0, f"{self.name} reports {landed}, and has landed {len(rows)}, {late} of them late")

    def task(self, run: Run, told: Told, read: Callable[[Python, Run, Told], Result]) -> Result:
        """One task, as Spark plays it: the answer of the attempt that is used, of one or more."""
        world, plan = self.world, self.world.plan.rounds
        assert plan is not None
        problem: BaseException | None = None
        for tried in range(TRIES):
            chances = 0.0 if world.is_calm or tried == TRIES - 1 else 1.0
            attempts = 2 if world.rng.random() < plan.twice * chances else 1
            started = [world.schedule.beside(lambda: self.attempted(run, told, read)) for _ in range(attempts)]
            answers = []
            for one in started:
                try:
                    answers.append(one.result())
                except (Crash, TidemarkError) as died:
                    problem = died
            if answers and world.rng.random() >= plan.answer_lost * chances:
                return world.rng.choice(answers)
        raise TaskFailed(f"a task of {self.name} was tried {TRIES} times: {problem!r}")

    def attempted(self, run: Run, told: Told, read: Callable[[Python, Run, Told], Result]) -> Result:
        """One attempt, in a process that is free or in a new one."""
        free = [process for process in run.processes if not process.is_busy]
        if free and self.world.rng.random() >= NEW_PROCESS:
            process = self.world.rng.choice(free)
        else:
            process = Python(self.world, f"{self.name} python {run.started}")
            run.started += 1
            run.processes.append(process)
        process.is_busy = True
        try:
            process.remembered.settle(told.settled)
            answer = read(process, run, told)
            process.step("answers")
        except Crash:
            self.world.crashes += 1
            self.world.note(process.name, "crashed")
            run.processes.remove(process)
            raise
        finally:
            process.is_busy = False
        return answer


def die_with(run: Run, step: Callable[[], None]) -> None:
    """A step of one of the driver's threads. Raises Crash where it, or the other one meanwhile, dies."""
    try:
        if not run.is_dead:
            step()
    except Crash:
        run.is_dead = True
        raise
    if run.is_dead:
        raise Crash


def results(tasks: Sequence[Beside[Result]]) -> list[Result]:
    """What the tasks came to, once all have ended. Raises what the first that failed has raised."""
    for task in tasks:
        task.wait()
    return [task.result() for task in tasks]

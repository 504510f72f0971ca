"""Rounds in the simulation: drivers that play the product's own, and the tasks of their readers.

Driver and tasks are those of `pipeline/ingest/rounds.py`, with a reader over the model of Pub/Sub. Spark and the
threads of the driver are played: a task is tried again, two attempts of it run at once, its answer is lost, and a
driver's death ends both of its threads.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import pyarrow as pa

from tests.ingest.fakes import AMPLE, Crash
from tests.ingest.model_subscription import ModelBacklog
from tests.quick import with_policy
from tests.simulation.lake import JudgedBy, WorkersNewFiles, WorkersObjects
from tests.simulation.plan import CALM_ROUND
from tests.simulation.schedule import Beside, Result
from tests.simulation.traffic import SECOND
from tests.simulation.worker import Process, Worker, WorkersSubscription
from tidemark.local.emulator.refusals import ModelError
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.ingest import rounds as module
from tidemark.pipeline.ingest.counting import ATTEMPTS_NOTED
from tidemark.pipeline.ingest.outcome import Side, Taken
from tidemark.pipeline.ingest.rounds import (
    ROUNDS_TOLD,
    TAKEN,
    Reader,
    RoundDone,
    Rounds,
    RunPlan,
    Share,
    read_share,
    taken_of_rows,
)
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.log.tracking_log import Newest
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import IngestSettings, PubSubSettings
from tidemark.pipeline.watermark.histogram import COPY
from tidemark.pipeline.watermark.usage import Usage

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

TRIES = 4
"""How often Spark tries a task before it fails the job."""

NEW_PROCESS = 0.1
"""The chance that a task begins in a new process although one is free."""

HANDED_OVER = timedelta(seconds=20)
"""So short, so that settling takes longer now and then."""


NEVER = JudgedBy(None, None)


class TaskFailed(TidemarkError):
    """Spark has tried a task as often as it does."""


class PlayedRounds:
    """What is common to the rounds of one simulation: their settings, and the bounds of one reader, which are fewer
    messages than the product's."""

    def __init__(self, world: "Simulation") -> None:
        plan, policy = world.plan.rounds, world.policy
        self.plan = plan
        message = MessageSettings()
        if world.plan.payloads is not None:
            message = MessageSettings(event_time="payload:event_time", payload=world.plan.payloads.written)
        settings = Settings(
            message=message,
            pubsub=PubSubSettings(emulator_host="localhost:1"),
            ingest=IngestSettings(readers=plan.readers),
        )
        self.settings = with_policy(settings, **asdict(policy))
        self.run_plan = RunPlan(round=plan.round_takes, stop_below=plan.stop_below)
        self.messages = plan.messages
        self.batch_messages = dict.fromkeys(Side, plan.batch_messages)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Few messages in a round, and calls of few."""
        with ExitStack() as stack:
            stack.enter_context(patch(f"{module.__name__}.BATCH_MESSAGES", self.batch_messages))
            stack.enter_context(patch(f"{module.__name__}.ROUND_MESSAGES", self.messages * self.plan.readers))
            stack.enter_context(patch(f"{module.__name__}.HANDED_OVER", HANDED_OVER))
            yield

    def calm_down(self) -> None:
        """Short rounds, in which a reader takes all there is."""
        self.run_plan = replace(self.run_plan, round=CALM_ROUND)
        self.batch_messages.update(dict.fromkeys(Side, AMPLE.batch_messages))
        self.messages = AMPLE.max_messages
        module.ROUND_MESSAGES = self.messages * self.plan.readers  # `in_place` puts it back


@dataclass(eq=False)
class Run:
    """One run of a driver: the messages that its readers have pulled, those whose leases it keeps, by which watermarks
    its readers judge, the attempts of its newest settled rounds, and whether the driver is dead."""

    pulled: dict[str, Any] = field(default_factory=dict)
    kept: set[tuple[str, str]] = field(default_factory=set)
    judges_by: JudgedBy = NEVER
    told: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=ROUNDS_TOLD - 1))
    is_dead: bool = False


class Taking(NamedTuple):
    """What the readers of a round have taken, and the messages whose leases are kept for certain."""

    taken: list[Taken]
    kept: set[tuple[str, str]]


Heartbeat = tuple[str, int, str | None]

FEW = 1000
"""A memory of fewer may forget what this expects of it."""


class CopiesSeen:
    """What the readers of a run must remember of copies, less than they may: the heartbeats that one worker process has
    counted, by the attempts that were settled since."""

    def __init__(self, world: "Simulation") -> None:
        self._world = world
        self._noted: dict[str, dict[Heartbeat, int]] = {}
        self._publish_us: dict[Heartbeat, int] = {}

    def settle(self, attempts: Collection[str]) -> None:
        """These are in the log."""
        for attempt in [one for one in self._noted if one in attempts]:
            for heartbeat, publish_us in self._noted.pop(attempt).items():
                self._publish_us[heartbeat] = min(publish_us, self._publish_us.get(heartbeat, publish_us))
        for attempt in list(self._noted)[: -ATTEMPTS_NOTED + 1]:
            del self._noted[attempt]

    def counted(self, who: str, taken: Taken, message_ids: Sequence[str]) -> None:
        """An attempt has counted these messages. Fails where it has counted a copy in full of what it must remember."""
        sent, copies, first = self._world.oracle.sent, 0, dict[Heartbeat, int]()
        for one in map(sent.__getitem__, message_ids):
            if one.publisher_id is None or one.flaw is not None:
                continue
            known_us = self._publish_us.get(one.heartbeat)
            if known_us is not None and known_us <= one.publish_us:
                copies += known_us >= self._since_us()
            else:
                first[one.heartbeat] = min(one.publish_us, first.get(one.heartbeat, one.publish_us))
        self._noted[taken.attempt] = first
        counted = int(taken.histogram.count[taken.histogram.event_bucket == COPY].sum())
        self._world.counts["copies"] += counted
        if counted < copies:
            self._world.fail(0, f"{who} has counted {counted} copies, and must remember {copies}")

    def _since_us(self) -> int:
        """What was published since then must be remembered."""
        within, at_most = self._world.plan.copies_remembered
        newest_us = max(one.publish_us for one in self._world.oracle.sent.values())
        return newest_us + 1 if at_most < FEW or not within else newest_us - duration_us(within)


class RoundSubscription(WorkersSubscription):
    """A subscription as the driver of a round reaches it, or one of its readers: a pull waits where nothing comes."""

    def __init__(self, process: Process, side: Side, run: Run) -> None:
        super().__init__(process.world.model, str(side), process, run.pulled)  # type: ignore[arg-type]
        self._process, self._began, self._taken = process, process.clock.monotonic(), 0

    def pull(self, max_messages: int, max_bytes: int, seconds: float, ahead: int = 0) -> PulledBatch:
        world = self._process.world
        rounds, spent = world.rounds_played, self._process.clock.monotonic() - self._began
        if spent >= rounds.plan.round_takes.total_seconds():
            world.fail(0, f"{self._process.name} still pulls after {spent} s")
        batch = super().pull(max_messages, max_bytes, seconds, ahead)
        self._taken += len(batch)
        if self._taken > rounds.messages:
            world.fail(0, f"{self._process.name} has taken {self._taken} messages, and may take {rounds.messages}")
        if not len(batch):
            world.schedule.pause(int(seconds * SECOND * world.rng.choice([0.4, 1.0])) + 1000)
        return batch


class Python(Process):
    """A worker process of Spark: what it remembers goes from task to task, and is lost when it or its driver dies."""

    def __init__(self, world: "Simulation", name: str) -> None:
        super().__init__(world, name)
        self.is_busy = False
        self.run = Run()
        self.kept = Kept()

    @property
    def judges_by(self) -> JudgedBy:
        return self.run.judges_by

    def take(self, share: Share, number: int) -> list[pa.RecordBatch]:
        """What Spark has it do: one attempt of a task."""
        self.kept.get(
            (share.settings.model_dump_json(), share.settings.judged_by), lambda: ModelReader(share.settings, self)
        )
        return list(read_share(share, [pa.RecordBatch.from_pydict({"id": [number]})], self.kept))


class ModelReader(Reader):
    """The product's reader over the model of Pub/Sub and the lake in memory."""

    def __init__(self, settings: Settings, process: Python) -> None:
        world = process.world
        self.settings, self.clock = settings, process.clock
        self.copies = world.planted.copies(*world.plan.copies_remembered)
        self.judge = world.reader()
        self.tables = [WorkersNewFiles(table, process) for table in (world.heartbeats, world.quarantine)]  # type: ignore[assignment]
        self._process = process
        self._seen = CopiesSeen(world)

    def take(self, share: Share, side: Side) -> Taken:
        process = self._process
        self._seen.settle(frozenset().union(*process.run.told))
        with closing(RoundSubscription(process, side, process.run)) as subscription:
            keeper = self.keeper(share, side)
            taken: Taken = process.world.planted.take(share, side, subscription, keeper)
        for left in (process.world.lease_left(str(side), ack_id) for ack_id in taken.ack_ids):
            if process.world.calls_succeed and timedelta(0) < left < share.time + HANDED_OVER - timedelta(seconds=1):
                process.world.fail(0, f"{process.name} hands over leases of {left}")
        if side is Side.TRACKING:
            ids = [process.run.pulled[ack_id].message_id for ack_id in taken.ack_ids]
            self._seen.counted(process.name, taken, ids)
        return taken


class SettlingThread(Process):
    """The thread of a driver that settles a round. Its death is the driver's, and the driver's is its own."""

    def __init__(self, world: "Simulation", name: str, run: Run) -> None:
        super().__init__(world, name)
        self._run = run

    @property
    def is_dead(self) -> bool:
        return self._run.is_dead

    def step(self, what: str, risk: float = 1.0) -> None:
        die_with(self._run, lambda: super(SettlingThread, self).step(what, risk))

    def leases_not_extended(self, error: ModelError) -> None:
        super().leases_not_extended(error)
        self._run.kept.clear()


class Driver(Worker):
    """Plays runs of rounds, and settles one while the readers of the next are at work."""

    kind = "driver"

    def build(self) -> None:
        super().build()
        self.run = Run()
        self.processes: list[Python] = []
        self.started = 0
        self.backlogs = {side: ModelBacklog(self.world.model, str(side), self) for side in Side}  # type: ignore[arg-type]

    @property
    def is_dead(self) -> bool:
        return self.run.is_dead

    def pause_us(self) -> int:
        pause_us = super().pause_us()
        return max(0, pause_us - 2 * CALM_ROUND // timedelta(microseconds=1)) if self.world.is_calm else pause_us

    def step(self, what: str, risk: float = 1.0) -> None:
        die_with(self.run, lambda: super(Driver, self).step(what, risk))

    def tick(self) -> None:
        world, plan, began_calmly = self.world, self.world.rounds_played.plan, self.world.is_calm
        run = self.run = Run()
        world.runs.append(run)
        self.used = Usage()
        self.looked, self.taken, self.settling = list[Newest](), list[Taking](), list[Beside[RoundDone]]()
        thread = SettlingThread(world, f"{self.name} settling", run)
        tracking, base = (RoundSubscription(thread, side, run) for side in Side)
        rounds = self.rounds(run, thread, tracking, base)
        settled = 0
        try:
            for done in rounds.rounds(plan.calm_run if began_calmly else plan.run_for, until_young=plan.until_young):
                settled += 1
                self.check(run, done)
                if world.is_calm and not began_calmly:
                    break  # as if somebody had ended it
        finally:  # the run ends once its threads have
            for one in self.settling:
                one.wait()
            for subscription in (tracking, base):
                subscription.check_held(())
                subscription.close()
            world.runs.remove(run)
            world.counts["rounds"] += settled
            world.counts["lost rounds"] += len(self.taken) - settled

    def rounds(self, run: Run, thread: SettlingThread, tracking: RoundSubscription, base: RoundSubscription) -> Rounds:
        """The product's driver, with its threads and Spark played."""
        world = self.world
        return Rounds(
            settings=world.rounds_played.settings,
            run="a run",
            readers=world.rounds_played.plan.readers,
            settling=world.planted.settling(
                log=world.planted.log(
                    WorkersObjects(world.objects, thread), checkpoint_every=world.plan.checkpoint_every
                ),
                clock=world.clock,
                subscriptions={Side.TRACKING: tracking, Side.BASE: base},
                tables=[WorkersNewFiles(table, thread) for table in (world.heartbeats, world.quarantine)],
            ),
            read=lambda share: self.read(run, share),
            newest=self.newest,
            backlogs=self.backlogs,
            plan=world.rounds_played.run_plan,
            beside=lambda work: self.beside(run, {Side.TRACKING: tracking, Side.BASE: base}, work),  # type: ignore[arg-type, return-value]
        )

    def newest(self) -> Newest:
        """What the log says, as the driver's own log reads it."""
        newest = self.log.newest()
        if newest.watermark != self.watermark_when_looked:
            self.world.fail(0, f"{self.name} finds {newest.watermark}, and the newest is {self.watermark_when_looked}")
        self.looked.append(newest)
        return newest

    def read(self, run: Run, share: Share) -> list[Taken]:
        """The tasks of one round, as Spark plays them."""
        run.judges_by = JudgedBy(self.looked[0].watermark, self.looked[-1].watermark)
        told = self.world.planted.share(share)
        tasks = [self.world.schedule.beside(lambda n=n: self.task(run, told, n)) for n in range(len(share.sides))]
        try:
            answers = results(tasks)
        finally:
            self.step("the readers have ended")
        taken = taken_of_rows(pa.Table.from_batches([batch for answer in answers for batch in answer], TAKEN))
        kept = {
            (str(one.side), run.pulled[ack_id].message_id)
            for one in taken
            for ack_id in one.ack_ids
            if self.world.keeps_leases_for_certain
            and self.world.lease_left(str(one.side), ack_id) > self.world.plan.ack_deadline / 3
        }
        run.kept |= kept
        self.taken.append(Taking(taken, kept))
        return taken

    def beside(
        self, run: Run, held: Mapping[Side, RoundSubscription], work: Callable[[], RoundDone]
    ) -> Beside[RoundDone]:
        """The thread that settles a round, whose leases are kept until it has ended."""
        taken, kept = self.taken[len(self.settling)]

        def settles() -> RoundDone:
            for side, subscription in held.items():
                subscription.check_held([ack_id for one in taken if one.side is side for ack_id in one.ack_ids])
            try:
                return work()
            finally:
                run.kept -= kept

        self.settling.append(self.world.schedule.beside(settles))
        return self.settling[-1]

    def check(self, run: Run, done: RoundDone) -> None:
        """What was settled is what the readers have taken."""
        self.looked.clear()
        taken = self.taken[done.number].taken
        run.told.append(frozenset(one.attempt for one in taken if one.side is Side.TRACKING))
        files = [file.path for one in taken for file in one.heartbeats]
        rows = [row for path in files for row in self.world.heartbeats.files[path].rows]
        self.used = sum((one.used for one in taken), self.used)
        if done.settled.persisted.snapshots:
            self.used = Usage()
        if done.settled.unsaid != self.used:
            self.world.fail(0, f"{self.name} leaves {done.settled.unsaid} to be noted, and used {self.used}")
        landed, late = done.settled.landed, sum(row["late"] for row in rows)
        if (landed.heartbeats, landed.late) != (len(rows), late):
            self.world.fail(0, f"{self.name} reports {landed}, and has landed {len(rows)}, {late} of them late")

    def task(self, run: Run, told: Share, number: int) -> list[pa.RecordBatch]:
        """One task, as Spark plays it: the answer of the attempt that is used, of one or more."""
        world, plan = self.world, self.world.rounds_played.plan
        problem: BaseException | None = None
        for tried in range(TRIES):
            chances = 0.0 if world.is_calm or tried == TRIES - 1 else 1.0
            attempts = 2 if world.rng.random() < plan.twice * chances else 1
            started = [world.schedule.beside(lambda: self.attempted(run, told, number)) for _ in range(attempts)]
            answers = []
            for one in started:
                try:
                    answers.append(one.result())
                except (Crash, TidemarkError) as died:
                    problem = died
            if answers and world.rng.random() >= plan.answer_lost * chances:
                return world.rng.choice(answers)
        raise TaskFailed(f"a task of {self.name} was tried {TRIES} times: {problem!r}")

    def attempted(self, run: Run, told: Share, number: int) -> list[pa.RecordBatch]:
        """One attempt, in a process that is free or in a new one."""
        free = [process for process in self.processes if not process.is_busy]
        if free and self.world.rng.random() >= NEW_PROCESS:
            process = self.world.rng.choice(free)
        else:
            process = Python(self.world, f"{self.name} python {self.started}")
            self.started += 1
            self.processes.append(process)
        process.is_busy, process.run = True, run
        try:
            answer = process.take(told, number)
            process.step("answers")
        except Crash:
            self.world.counts["crashes"] += 1
            self.world.note(process.name, "crashed")
            self.processes = [other for other in self.processes if other is not process]
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

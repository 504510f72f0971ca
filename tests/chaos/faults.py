"""Playing a plan: what is killed and what lasts for a while, and when each was back."""

import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event, Thread
from urllib.parse import urlparse

import psutil

from tests.chaos.house import MARK, ROOT, House, is_alive
from tests.chaos.plan import SERVICES, Plan, Spell, Target, Trouble
from tests.official_emulator import free_port
from tidemark.local.services.processes import Supervisor
from tidemark.local.services.stack import dagster_environment, dagster_services
from tidemark.pipeline.clock import Clock
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.machine import listens
from tidemark.pipeline.settings import Settings

STEP_SECONDS = 0.2
PATIENT_SECONDS = 10.0
"""How long a moment is kept for the target that has its turn: a run that was just started has tasks soon."""

WAITED_SECONDS = 40.0
"""How long a kill waits when no target that is still to be killed is there; then a service is taken instead."""

BACK_WITHIN_SECONDS = 120.0
BESIDE = ("second", "second-daemon")
"""Folders of what runs beside `tidemark up` for a while."""

FILLER, FILLER_BLOCK = "filler", 1 << 20


@dataclass(slots=True)
class Incident:
    """One fault as it was. Seconds are since the first moment at which everything ran; `back_after` is since `at`."""

    at: float
    what: str
    pid: int | None
    note: str = ""
    back_after: float | None = None


@dataclass(slots=True)
class Awaited:
    """An incident, and how one sees that it is over."""

    incident: Incident
    is_back: Callable[[], bool]


@dataclass
class Faults:
    """Plays the plan in a thread of its own. Kills nothing but what belongs to the house: known by process id, moment
    of creation, and the mark in its environment."""

    house: House
    plan: Plan
    disk: Path | None
    clock: Clock
    say: Callable[[str], None]
    incidents: list[Incident] = field(default_factory=list)
    awaited: list[Awaited] = field(default_factory=list)
    failure: Exception | None = None
    _stop: Event = field(default_factory=Event)

    def start(self) -> None:
        """From this moment on seconds are counted."""
        self._began = self.clock.monotonic()
        self._log: TrackingLog = Lake(
            self.house.settings.lake, self.house.settings.message.kinds, self.clock
        ).tracking_log()
        self._moments = [kill.at for kill in self.plan.kills]
        self._targets = [kill.target for kill in self.plan.kills]
        self._spells = list(self.plan.spells)
        self._spell: tuple[Spell, Incident, Callable[[], None]] | None = None
        self._thread = Thread(target=self._run, name="faults", daemon=True)
        self._thread.start()

    def done(self) -> bool:
        """Whether all of the plan has been played. Raises what went wrong with it."""
        if self.failure is not None:
            raise self.failure
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End what lasts, at once."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while (self._moments or self._spells or self._spell) and not self._stop.wait(STEP_SECONDS):
                self._step()
            until = self.clock.monotonic() + BACK_WITHIN_SECONDS
            while self._must_come_back() and self.clock.monotonic() < until and not self._stop.wait(STEP_SECONDS):
                self._look_who_is_back()
        except Exception as error:
            self.failure = error
        finally:
            if self._spell is not None:
                self._spell[2]()

    def _step(self) -> None:
        self._look_who_is_back()
        now = self._now()
        if self._spell is not None and now >= self._spell[1].at + self._spell[0].seconds:
            spell, incident, undo = self._spell
            self._spell = None
            undo()
            ended = self._now()
            incident.note = f"lasted {ended - incident.at:.1f} s"
            entries = max(self._log.numbers(), default=0)
            self.say(f"{spell.trouble}: over")
            self._await(incident, lambda: max(self._log.numbers(), default=0) > entries)
        if self._spell is None and self._spells and now >= self._spells[0].at:
            self._begin(self._spells.pop(0))
        if self._moments and now >= self._moments[0]:
            self._kill_one()

    def _now(self) -> float:
        return self.clock.monotonic() - self._began

    def _await(self, incident: Incident, is_back: Callable[[], bool]) -> None:
        self.awaited.append(Awaited(incident, is_back))

    def _look_who_is_back(self) -> None:
        for one in list(self.awaited):
            if one.is_back():
                one.incident.back_after = self._now() - one.incident.at
                self.awaited.remove(one)

    def _must_come_back(self) -> bool:
        """Whether anything is awaited that comes back by itself, unlike a run's worker or a reader."""
        as_needed = (f"kill -9 {Target.RUN}", f"kill -9 {Target.READER}")
        return any(one.incident.what not in as_needed for one in self.awaited)

    # Kills

    def _kill_one(self) -> None:
        """Kill what has its turn, or, if that is not there for a while, the first later target that is. What was not
        there has its turn at the next moment."""
        planned = self._moments[0]
        patient = self._now() - planned < PATIENT_SECONDS
        for target in self._targets[:1] if patient else self._targets:
            if self._kill(target, planned, ""):
                self._targets.remove(target)
                self._moments.pop(0)
                return
        if self._now() - planned > WAITED_SECONDS:
            missing = self._targets[0]
            if any(self._kill(target, planned, f"instead of a {missing}: none came") for target in SERVICES):
                self._targets.pop(0)
                self._moments.pop(0)

    def _kill(self, target: Target, planned: float, note: str) -> bool:
        there = self._candidates(target)
        if not there:
            return False
        chosen = Random(f"{self.plan.seed} {planned}").choice(sorted(there, key=lambda one: one.pid))
        with suppress(psutil.NoSuchProcess):
            if chosen.environ().get(MARK) != self.house.mark:
                raise RuntimeError(f"process {chosen.pid} is not of {self.house.folder}: it is not killed")
            chosen.kill()
            incident = Incident(self._now(), f"kill -9 {target}", chosen.pid, note)
            self.incidents.append(incident)
            self.say(f"kill -9 {target} {chosen.pid} {note}")
            self._await(incident, self._backs(target, chosen.pid, {one.pid for one in there}))
            return True
        return False

    def _backs(self, target: Target, killed: int, before: set[int]) -> Callable[[], bool]:
        if target not in SERVICES:
            return lambda: any(one.pid not in before for one in self._candidates(target))

        def is_back() -> bool:
            one = self.house.services().get(str(target))
            return one is not None and one.pid != killed and answers(target, self.house.settings)

        return is_back

    def _candidates(self, target: Target) -> list[psutil.Process]:
        services = self.house.services()
        if target in SERVICES:
            one = services.get(str(target))
            return [one] if one is not None and answers(target, self.house.settings) else []
        parent = services.get(Target.CODE_SERVER if target is Target.RUN else Target.SPARK)
        if parent is None:
            return []
        try:
            family = parent.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        belongs = is_run_worker if target is Target.RUN else self._is_reader
        return [one for one in family if is_alive(one) and belongs(one)]

    def _is_reader(self, process: psutil.Process) -> bool:
        """A Python worker of Spark's that talks to Pub/Sub: no other kind does."""
        port = int(str(self.house.settings.pubsub.emulator_host).rpartition(":")[2])
        with suppress(psutil.Error):
            return any(one.raddr and one.raddr.port == port for one in process.net_connections("tcp"))
        return False

    # What lasts

    def _begin(self, spell: Spell) -> None:
        begin = {
            Trouble.PAUSED: self._pause,
            Trouble.DISK_FULL: self._fill,
            Trouble.SECOND_DAEMON: self._second_daemon,
            Trouble.SECOND_PIPELINE: self._second_pipeline,
        }[spell.trouble]
        self.say(f"{spell.trouble} for {spell.seconds:g} s")
        incident = Incident(self._now(), spell.trouble, None)
        self.incidents.append(incident)
        incident.pid, undo = begin()
        self._spell = (spell, incident, undo)

    def _pause(self) -> tuple[int | None, Callable[[], None]]:
        emulator = self.house.services()["PubSub emulator"]
        emulator.send_signal(signal.SIGSTOP)

        def go_on() -> None:
            with suppress(psutil.NoSuchProcess):
                emulator.send_signal(signal.SIGCONT)

        return emulator.pid, go_on

    def _fill(self) -> tuple[int | None, Callable[[], None]]:
        """A file takes what is free, again and again: what the pipeline removes gives it no room."""
        if self.disk is None:
            raise RuntimeError("the lake has no disk of its own to be filled")
        filler, enough = self.disk / FILLER, Event()

        def fill() -> None:
            while not enough.is_set():
                with suppress(OSError), filler.open("ab", buffering=0) as file:
                    while not enough.is_set():
                        file.write(bytes(FILLER_BLOCK))
                enough.wait(STEP_SECONDS)

        thread = Thread(target=fill, name="filling the disk", daemon=True)
        thread.start()

        def empty() -> None:
            enough.set()
            thread.join()
            filler.unlink(missing_ok=True)

        return None, empty

    def _second_daemon(self) -> tuple[int | None, Callable[[], None]]:
        """On the same storage, with the same code server."""
        return self._beside(self.house.settings, self.house.folder / BESIDE[1], ["Dagster daemon"])

    def _second_pipeline(self) -> tuple[int | None, Callable[[], None]]:
        """A code server and a daemon with a storage of their own, on the same subscriptions, lake and Spark."""
        return self._beside(
            second_settings(self.house), self.house.folder / BESIDE[0], ["Dagster code server", "Dagster daemon"]
        )

    def _beside(self, settings: Settings, folder: Path, names: list[str]) -> tuple[int | None, Callable[[], None]]:
        environment = {**dagster_environment(settings, self.house.config, ROOT), MARK: self.house.mark}
        Path(settings.dagster.storage).mkdir(parents=True, exist_ok=True)
        beside = Supervisor(folder, self.clock, self.say)
        for spec in dagster_services(settings, environment, ROOT):
            if spec.name in names:
                beside.start(spec, wait=False)
        return beside.running[-1].process.pid, beside.stop


def second_settings(house: House) -> Settings:
    """The same, for Dagster processes with another port and another storage."""
    settings = house.settings
    dagster = settings.dagster.model_copy(
        update={"code_port": free_port(), "storage": str(house.folder / BESIDE[0] / "dagster")}
    )
    return settings.model_copy(update={"dagster": dagster})


def answers(target: Target, settings: Settings) -> bool:
    """Whether a service serves; of the daemon it is enough that it is there."""
    if target is Target.CODE_SERVER:
        return listens("127.0.0.1", settings.dagster.code_port)
    if target is Target.SPARK:
        return listens("127.0.0.1", urlparse(settings.spark.remote or "").port or 15002)
    return True


def is_run_worker(process: psutil.Process) -> bool:
    """Whether it is a run of Dagster's: forked from the process that the code server keeps for that."""
    with suppress(psutil.Error):
        parent = process.parent()
        return parent is not None and all(
            any("multiprocessing.forkserver" in word for word in one.cmdline()) for one in (process, parent)
        )
    return False

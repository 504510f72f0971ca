"""A run of the whole pipeline, watched: the memory of its processes, and what Dagster has noted of ticks and runs."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Self

import dagster as dg
import psutil
from rich.console import Console

from tidemark.local.demo.script import free_port
from tidemark.local.demo.synthetic import Source
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.local.services.processes import StartedService, Supervisor
from tidemark.local.services.stack import start_emulator
from tidemark.pipeline.clock import Clock, iso
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.orchestrator.names import ENDED, INGEST
from tidemark.pipeline.pubsub.provision import provision_here
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.settings_sections import EmulatorKind

TICKS_AT_MOST = 5000

STREAMS, PERIOD, JITTER = 10_000, timedelta(seconds=30), timedelta(seconds=8)

USUAL_PORTS = {"emulator": 8085, "spark": 15002, "web": 3000, "code": 4266}

CONFIG = """\
[spark]
remote = "sc://localhost:{spark}"

[dagster]
storage = "dagster"
web_port = {web}
code_port = {code}

[pubsub]
emulator_host = "127.0.0.1:{emulator}"
emulator = "{kind}"

[message.fields]
temperature = "number"
status = "text"

[windows]
first = "{first}"
"""
"""The settings of a whole pipeline. The values that differ follow, beginning with those of `[windows]`."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A folder with settings, and a source that publishes to the emulator that runs there. `start_stack` starts the
    rest."""

    config: Path
    settings: Settings
    source: Source
    supervisor: Supervisor
    say: Callable[[str], None]


@contextmanager
def pipeline(
    folder: Path,
    made: SyntheticSource,
    start: datetime,
    first: datetime,
    more: str,
    console: Console,
    clock: Clock,
    *,
    emulator: EmulatorKind,
) -> Iterator[Pipeline]:
    """Empty the folder, and publish `made` from `start` on there. Windows begin in the hour of `first`; `more` is the
    rest of the settings. Stops what was started, whatever happens."""
    began, folder = clock.monotonic(), folder.resolve()

    def say(text: str) -> None:
        console.print(f"{clock.monotonic() - began:6.0f} s  {text}", highlight=False)

    supervisor = Supervisor(folder, clock, say)
    supervisor.take_over()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ports = {name: free_port(usual) for name, usual in USUAL_PORTS.items()}
    hour = iso(first.replace(minute=0, second=0, microsecond=0))
    config = folder / "tidemark.toml"
    config.write_text(CONFIG.format(kind=emulator, first=hour, **ports) + more)
    settings = load_settings(config)
    source = Source(made, settings, folder / "truth.parquet", start, clock)
    with ExitStack() as stopped:
        stopped.callback(supervisor.stop)
        stopped.callback(source.stop)
        start_emulator(supervisor, settings)
        provision_here(settings, clock)
        source.start()
        yield Pipeline(config, settings, source, supervisor, say)


@dataclass(frozen=True, slots=True)
class Ticks:
    """How long the ticks of a sensor took, in seconds, and how many failed."""

    count: int
    failed: int
    median: float
    longest: float


@dataclass(frozen=True, slots=True)
class RunOfDrain:
    """A run whose readers on Spark pull, and what its log said of its rounds."""

    status: str
    ended: str
    seconds: float
    rounds: list[str]


def ticks_of(root: Path) -> dict[str, Ticks]:
    """The ticks of each sensor, from Dagster's storage."""
    seen: dict[str, Ticks] = {}
    with dg.DagsterInstance.from_config(str(root)) as instance:
        for state in instance.all_instigator_state():
            ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=TICKS_AT_MOST)
            took = [tick.end_timestamp - tick.timestamp for tick in ticks if tick.end_timestamp is not None]
            if took:
                failed = sum(tick.status.value == "FAILURE" for tick in ticks)
                median, longest = round(quantile(took, 0.5), 2), round(max(took), 2)
                seen[state.instigator_name] = Ticks(len(took), failed, median, longest)
    return seen


def runs_of_drain(root: Path) -> list[RunOfDrain]:
    """In their order, from Dagster's storage."""
    runs = []
    with dg.DagsterInstance.from_config(str(root)) as instance:
        for record in instance.get_run_records(dg.RunsFilter(job_name=INGEST)):
            run = record.dagster_run
            said = [
                entry.user_message
                for entry in instance.all_logs(run.run_id)
                if entry.user_message.startswith(("round ", "rounds "))
            ]
            seconds = (record.end_time or 0.0) - (record.start_time or 0.0)
            runs.append(RunOfDrain(run.status.value, run.tags.get(ENDED, ""), round(seconds, 1), said))
    return runs[::-1]


@dataclass
class Memory:
    """The peaks of resident memory, in bytes, by kind of process, sampled while the block runs. Pages that processes
    share are counted in each."""

    running: Sequence[StartedService]
    every_seconds: float = 1.0
    peaks: dict[str, int] = field(default_factory=dict)
    _done: Event = field(default_factory=Event)

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._sample, name="memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(self.every_seconds):
            for service in list(self.running):
                with suppress(psutil.Error):  # it ended meanwhile
                    self._look(service.spec.name, psutil.Process(service.process.pid))

    def _look(self, name: str, process: psutil.Process) -> None:
        self._note(name, process.memory_info().rss)
        for child in process.children(recursive=True):
            with suppress(psutil.Error):
                self._note(f"{name}: {_kind(child)}", child.memory_info().rss)

    def _note(self, kind: str, size: int) -> None:
        self.peaks[kind] = max(self.peaks.get(kind, 0), size)


PYTHON_WORKER = "a Python worker"

FORKING = "multiprocessing.forkserver"
"""In the command of the process from which runs are forked, and of each run."""


def _kind(process: psutil.Process) -> str:
    words = " ".join(process.cmdline())
    if "pyspark.daemon" in words or "worker_daemon" in words:
        return PYTHON_WORKER
    if FORKING in words:
        parent = process.parent()
        is_run = parent is not None and FORKING in " ".join(parent.cmdline())
        return "a run" if is_run else "what runs are forked from"
    return str(process.name())

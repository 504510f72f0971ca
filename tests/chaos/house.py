"""A folder with its own settings, what `tidemark up` started in it, and the commands run in it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil
from google.api_core import exceptions as api

from tidemark.local.demo.verification import TruthComparison, compare
from tidemark.local.services.processes import noted_in
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.observe.facts import LakeReport, read_report, read_waiting
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window

ROOT = Path(__file__).resolve().parents[2]
TIDEMARK = str(Path(sys.executable).parent / "tidemark")
LOOK_EVERY_SECONDS = 0.2
STARTED_WITHIN_SECONDS = 120
STOPPED_WITHIN_SECONDS = 60
RUNNING = "Ctrl-C stops it all"
"""What `tidemark up` says last when all of it runs."""

MARK = "CHAOS_HOUSE"
"""A variable in the environment of all that is started here, so that it is known whatever became of its parent."""


@dataclass(frozen=True, slots=True)
class House:
    """Paths and processes of one `tidemark up`. The lake is `folder/lake`, and Dagster's storage below `state`."""

    folder: Path
    settings: Settings
    tidemark: str = TIDEMARK
    started_in: Path = ROOT

    @property
    def config(self) -> Path:
        return self.folder / "tidemark.toml"

    @property
    def truth(self) -> Path:
        return self.folder / "truth.parquet"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def output(self) -> Path:
        """What the last `tidemark up` printed."""
        return self.folder / "up.txt"

    @property
    def mark(self) -> str:
        """What `MARK` is in the environment of what belongs to this house."""
        return str(self.folder)

    def command(self, *arguments: str) -> list[str]:
        return [self.tidemark, "--config", str(self.config), *arguments]

    def environment(self) -> dict[str, str]:
        """The environment of each process: the mark, and no settings beside the file's."""
        kept = {name: value for name, value in os.environ.items() if not is_a_setting(name)}
        return {**kept, MARK: self.mark}

    def report(self) -> LakeReport | None:
        """Where the lake stands; None in the instant in which a table is being made."""
        try:
            return read_report(self._whole_lake())
        except LakeError:
            return None

    def waiting(self, watermark: datetime | None) -> list[Window]:
        """The windows that are closed and not computed yet."""
        return read_waiting(self._whole_lake(), self.settings.windowing, watermark)

    def _whole_lake(self) -> Lake:
        return Lake(self.settings.lake, self.settings.message.kinds, SystemClock())

    def compared(self) -> TruthComparison:
        """The lake against the truth, row by row."""
        return compare(self.truth, self.lake, self.settings.windows)

    def services(self) -> dict[str, psutil.Process]:
        """What `tidemark up` has noted as running, and runs."""
        noted = noted_in(self.state).services.items()
        return {name: process for name, one in noted if (process := one.running()) is not None}

    def processes(self) -> list[psutil.Process]:
        """Everything alive that belongs to this house, whatever became of its parent."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.pid != os.getpid() and is_alive(process) and process.environ().get(MARK) == self.mark:
                    found.append(process)
        return found


def is_a_setting(name: str) -> bool:
    """Whether a variable of this name would change settings."""
    return name.startswith("TIDEMARK_") or name == "PUBSUB_EMULATOR_HOST"


def is_alive(process: psutil.Process) -> bool:
    """Whether it is there, and no zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@dataclass(slots=True)
class Up:
    """A `tidemark up`. `left_over` is what was still there after it had ended, and was killed then."""

    process: "subprocess.Popen[bytes]"
    left_over: list[str] = field(default_factory=list)


@contextmanager
def up(house: House, variables: Mapping[str, str] = {}) -> Iterator[Up]:
    """`tidemark up` while the block runs, asked to end as Ctrl-C asks. Nothing that belongs to the house is there
    afterwards, whatever became of it. `variables` are in its environment."""
    with house.output.open("wb") as file:
        process = subprocess.Popen(
            house.command("up"),
            cwd=house.started_in,
            env={**house.environment(), **variables},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    running = Up(process)
    try:
        yield running
    finally:
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOPPED_WITHIN_SECONDS)
        for one in house.processes():
            with suppress(psutil.NoSuchProcess):
                running.left_over.append(f"{one.pid} {' '.join(one.cmdline())[:120]}")
                one.kill()
        process.wait()


def until(
    what: str,
    reached: Callable[[], bool],
    seconds: float,
    process: "subprocess.Popen[bytes]",
    every: float = LOOK_EVERY_SECONDS,
) -> None:
    """Return once it is so. Raises AssertionError where it does not become so, or where the process has ended."""
    limit = time.monotonic() + seconds
    while not reached():
        assert process.poll() is None, f"the process ended while waiting until {what}"
        assert time.monotonic() < limit, f"not within {seconds} s: {what}"
        time.sleep(every)


def until_running(house: House, process: "subprocess.Popen[bytes]") -> None:
    """Return once `tidemark up` says that all of it runs."""
    try:
        until("it runs", lambda: RUNNING in house.output.read_text(), STARTED_WITHIN_SECONDS, process)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{house.output.read_text()}") from error


def is_provisioned(settings: Settings) -> bool:
    """Whether both subscriptions are there."""
    with publisher_client(settings.pubsub.emulator_host) as client, suppress(api.GoogleAPICallError):
        return len(list(client.list_topic_subscriptions(topic=settings.pubsub.topic_path, retry=None, timeout=2))) == 2
    return False

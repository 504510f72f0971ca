"""A day of mishaps on one lake: what happens to a running pipeline, who tells it, and that nothing is lost.

Run by hand: `python -m tests.chaos.mishaps`. Each mishap is told by `tidemark up` on its terminal, and by the commands
that somebody would ask. At the end every row is compared with what the source published.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.watched import reports
from tests.chaos.disk import small_disk
from tests.chaos.faults import FILLER
from tests.chaos.house import House, is_a_setting, is_provisioned, until, until_running, up
from tests.chaos.plan import Plan
from tests.chaos.play import CALLS_TAKE, Asked, house_of
from tidemark.local.demo.synthetic import Source
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.clock import SystemClock

TOLD_WITHIN_SECONDS = 120.0
DISK_MEGABYTES = 600
STEP_SECONDS = 90
NOBODY_DECIDES = r"[Nn]obody has decided|LakeFull|disk of \S+ is full"


@dataclass(slots=True)
class Told:
    """A mishap, after how many seconds each of those who are asked told it, and after how many `up` said it is over."""

    mishap: str
    by: dict[str, float | None] = field(default_factory=dict)
    words: str = ""
    over: float | None = None


@dataclass(slots=True)
class Day:
    """The pipeline that things happen to."""

    house: House
    process: subprocess.Popen[bytes]
    say: Callable[[str], None]
    clock_file: Path
    table: list[Told] = field(default_factory=list)

    def printed(self) -> str:
        """What `tidemark up` has printed."""
        return self.house.output.read_text()

    def ask(self, command: str) -> str:
        """The words of a command, on one line."""
        done = subprocess.run(
            self.house.command(*command.split()),
            cwd=self.house.folder,
            env=self.house.environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        return " ".join((done.stdout + done.stderr).split())

    def play(
        self,
        mishap: str,
        begin: Callable[[], None],
        told_by: Mapping[str, str],
        end: Callable[[], None],
        over: str | None,
    ) -> None:
        """Let it happen, wait until all who are asked have told it, undo it, and wait until `up` says so."""
        self.say(f"{mishap}: begins")
        noted, began, before = Told(mishap), time.monotonic(), len(self.printed())
        begin()
        waits = dict(told_by)
        while waits and time.monotonic() - began < TOLD_WITHIN_SECONDS:
            for who, words in list(waits.items()):
                said = " ".join(self.printed()[before:].split()) if who == "up" else self.ask(who)
                if found := re.search(words, said):
                    noted.by[who] = time.monotonic() - began
                    noted.words = noted.words or said[max(found.start() - 60, 0) : found.end() + 140]
                    self.say(f"  {who}, after {noted.by[who]:.0f} s: … {said[max(found.start() - 80, 0) :][:300]}")
                    del waits[who]
            time.sleep(0.5)
        noted.by |= dict.fromkeys(waits)
        ended, before = time.monotonic(), len(self.printed())
        end()
        while over and time.monotonic() - ended < TOLD_WITHIN_SECONDS:
            if re.search(over, " ".join(self.printed()[before:].split())):
                noted.over = time.monotonic() - ended
                self.say(f"  over, said after {noted.over:.0f} s")
                break
            time.sleep(0.5)
        self.table.append(noted)

    def settle(self, words: str) -> None:
        """Wait until the status no longer has these words. Raises AssertionError."""
        until(f"no {words}", lambda: not re.search(words, self.ask("status")), 240, self.process, every=2)

    def step(self, seconds: int) -> None:
        """Move the wall clock of everything that `tidemark up` started."""
        with self.clock_file.open("r+b") as file:
            file.write(str(seconds).encode().ljust(64))


@contextmanager
def pubsub(house: House) -> Iterator[None]:
    """tidemark's own Pub/Sub, beside `up`, so that it keeps the time while the pipeline's clock is stepped."""
    process = subprocess.Popen(
        house.command("pubsub"),
        cwd=house.folder,
        env=house.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def stepped(folder: Path) -> tuple[Path, dict[str, str]]:
    """The file with the seconds by which the clock is off, and the variables by which processes go by it."""
    library, file = folder / "stepped_clock.so", folder / "clock"
    source = Path(__file__).parent / "stepped_clock.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"], check=True)  # noqa: S607
    file.write_bytes(b"0".ljust(64))
    return file, {"LD_PRELOAD": str(library), "STEPPED_CLOCK": str(file)}


def main() -> int:
    """Play the day."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.mishaps", description=__doc__)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--folder", type=Path, default=Path("build/mishaps"))
    given = parser.parse_args()
    for name in filter(is_a_setting, list(os.environ)):
        del os.environ[name]
    console, clock = Console(width=200, file=sys.stdout), SystemClock()
    began = clock.monotonic()

    def say(text: str) -> None:
        console.print(f"{clock.monotonic() - began:6.1f} s  {text}", highlight=False, markup=False)

    traffic = SyntheticSource(streams=given.streams, jitter=timedelta(seconds=3), duplicates=0.02, broken=0.001, seed=7)
    asked = Asked(Plan(1, (), ()), given.folder, traffic, timedelta(minutes=5), disk_megabytes=DISK_MEGABYTES)
    house = house_of(asked, clock)
    with ExitStack() as undone:
        if why_none := undone.enter_context(small_disk(house.lake, DISK_MEGABYTES)):
            say(f"the disk cannot be filled: {why_none}")
        undone.enter_context(pubsub(house))
        clock_file, variables = stepped(house.folder)
        time.sleep(3)
        process = undone.enter_context(up(replace(house, started_in=house.folder), variables)).process
        source = Source(traffic, house.settings, house.truth, asked.first(clock), clock, CALLS_TAKE)
        undone.callback(source.stop)
        until("both subscriptions are there", lambda: is_provisioned(house.settings), 120, process)
        source.start()
        until_running(house, process)
        day = Day(house, process, say, clock_file)
        until("a window is computed", lambda: bool((one := house.report()) and one.computed), 240, process)
        happen(day)
        published = source.stop()
        assert published is not None
        assert published.last_event_time is not None
        assert published.first_event_time is not None
        windowing = house.settings.windowing
        last = windowing.containing(published.last_event_time)
        wanted = {window.key for window in windowing.closed_at(last.end, published.first_event_time)}
        patience = timedelta(minutes=8)
        for report in reports(
            house.settings, source, lambda: None, say, clock, patience=patience, every=timedelta(seconds=2)
        ):
            if wanted <= set(report.computed):
                break
        comparison = house.compared()
    shown = Table("mishap", "told by, after", "over, said after", "words")
    for one in day.table:
        by = ", ".join(f"{who} {'NEVER' if after is None else f'{after:.0f} s'}" for who, after in one.by.items())
        shown.add_row(one.mishap, by, "" if one.over is None else f"{one.over:.0f} s", one.words)
    console.print(shown)
    console.print(f"published {published.messages:,}; {comparison}")
    untold = [one.mishap for one in day.table if None in one.by.values()]
    wrong = comparison.differences + comparison.quarantine_differences + comparison.late + comparison.missed
    return 1 if untold or wrong or comparison.rows != comparison.expected_rows else 0


def happen(day: Day) -> None:
    """What happens, in its order."""
    house, settings = day.house, day.house.config.read_text()

    def fill() -> None:
        with (house.lake / FILLER).open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 16))
            except OSError:
                return

    everybody = {"up": NOBODY_DECIDES, "status": NOBODY_DECIDES, "explain": NOBODY_DECIDES, "doctor": NOBODY_DECIDES}
    day.play("the lake's disk is full", fill, everybody, (house.lake / FILLER).unlink, "resolved after")

    def edit() -> None:
        house.config.write_text(settings.replace("[windows]", "# a word more\n[windows]"))

    changed = {"up": "settings file", "status": "settings file", "doctor": "settings file"}
    day.play(
        "the settings file is edited",
        edit,
        changed,
        lambda: house.config.write_text(settings) and None,
        "resolved after",
    )

    def kill_spark() -> None:
        psutil.Process(house.services()["Spark Connect"].pid).kill()

    day.play("Spark is killed", kill_spark, {"up": "Spark Connect ended"}, lambda: None, None)
    held = "HELD_TRACKING_BEHIND|HELD_CLOCK_SKEW"
    for seconds in (STEP_SECONDS, -STEP_SECONDS):
        day.settle(held)
        step = partial(day.step, seconds)
        told = f"{held}|{NOBODY_DECIDES}"  # a daemon whose clock went back asks for no tick until its last one's time
        day.play(f"the clock is {seconds:+} s off", step, {"status": told, "explain": told}, partial(day.step, 0), None)
    day.settle(held)


if __name__ == "__main__":
    sys.exit(main())

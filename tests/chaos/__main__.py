"""The command line: one run of a seed, its summary, and exit code 1 if anything is not right."""

import argparse
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

from rich.console import Console

from tests.chaos.house import is_a_setting
from tests.chaos.plan import Trouble, plan_of
from tests.chaos.play import Asked, house_of, play
from tests.chaos.summary import show
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.local.services.stack import token_environment
from tidemark.pipeline.clock import SystemClock, parse_duration

TROUBLES = (Trouble.PAUSED, Trouble.PAUSED, Trouble.DISK_FULL, Trouble.SECOND_DAEMON, Trouble.SECOND_PIPELINE)
JITTER = timedelta(seconds=3)
DISK_MEGABYTES = 2000


def main() -> int:
    """Play a seed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which faults at which moments (default 1)")
    parser.add_argument("--kills", type=int, default=20, help="how often something is killed (default 20)")
    parser.add_argument("--streams", type=int, default=2500, help="that beat every 30 s (default 2500)")
    parser.add_argument("--backlog", type=parse_duration, default=timedelta(minutes=40), help="at the beginning (40m)")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"), help="everything is below it")
    given = parser.parse_args()
    for name in filter(is_a_setting, list(os.environ)):
        del os.environ[name]
    os.environ |= token_environment()  # the second pipeline uses the first one's Spark
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is stopped
    console, clock = Console(width=None if sys.stdout.isatty() else 150), SystemClock()
    began = clock.monotonic()

    def say(text: str) -> None:
        console.print(f"{clock.monotonic() - began:6.1f} s  {text}", highlight=False)

    source = SyntheticSource(
        streams=given.streams, jitter=JITTER, duplicates=0.02, broken=0.001, seed=given.seed & 0x7FFFFFFF
    )
    asked = Asked(
        plan=plan_of(given.seed, given.kills, TROUBLES),
        folder=given.folder,
        source=source,
        backlog=given.backlog,
        disk_megabytes=DISK_MEGABYTES,
    )
    for planned in (*asked.plan.kills, *asked.plan.spells):
        say(f"planned: {planned}")
    summary = play(asked, house_of(asked, clock), say, clock)
    show(summary, console)
    return 1 if summary.problems else 0


if __name__ == "__main__":
    sys.exit(main())

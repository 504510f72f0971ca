"""Peak memory of tracking and landing as the backlog grows; each run in a process of its own, which this module is too.

The child makes its messages as they are pulled, so that its memory is the tick's and not a server's.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from benchmarks.measures import Measure
from benchmarks.traffic import LIVE_RATE, REGULAR, MadeSubscription
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import Settling, new_files
from tidemark.pipeline.ingest.take import BATCH_MESSAGES, Budget
from tidemark.pipeline.ingest.ticks import TICK_BYTES, land, tick_budget, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.watermark.readings import Reading

FLAT = 1.25
MESSAGES = BATCH_MESSAGES[Side.BASE]
"""A backlog of 1x, and a batch as ticks of base pull it: of fifty of them, one is held at a time."""

START = datetime(2026, 11, 1, 12, tzinfo=UTC)
CHILD_SECONDS = 300
MB = 1 << 20


def measure_memory(rounds: int, scale: float) -> list[Measure]:
    """The peak of what the ticks add to their process's memory over ten and fifty backlogs, beside one. Linux only."""
    messages = max(1000, round(MESSAGES * scale))
    peaks: dict[tuple[str, int], list[float]] = {}
    for _ in range(rounds):
        for stage in ("land", "track"):
            for times in (1, 10, 50):
                peaks.setdefault((stage, times), []).append(_peak(stage, messages * times, messages))
    return [
        Measure(
            f"{stage}_memory{name}",
            peaks[stage, times],
            peaks[stage, 1],
            FLAT,
            "lower",
            "MB",
            f"peak of what {stage} adds to the memory of a process that has landed before, over {times * messages:,} "
            f"messages in batches of {messages:,}, beside a single batch",
        )
        for stage in ("land", "track")
        for name, times in (("", 50), ("_10x", 10))
    ]


def _peak(stage: str, messages: int, batch: int) -> float:
    with TemporaryDirectory(prefix="tidemark-bench-memory-") as folder:
        command = [sys.executable, "-m", "benchmarks.memory", stage, str(messages), str(batch), folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=CHILD_SECONDS, check=False)
    if done.returncode:
        raise ServiceFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-1000:]}")
    return float(done.stdout)


class Emptied:
    """Readings of a subscription of which nothing is outstanding."""

    def __init__(self, clock: SystemClock) -> None:
        self._clock = clock

    def read(self) -> Reading:
        """Nothing is outstanding now."""
        now = self._clock.now()
        return Reading(observed_at=now, oldest_unacked=now, names_a_message=False)


def _run(stage: str, messages: int, batch: int, folder: Path) -> float:
    settings, clock = load_settings(), SystemClock()
    lake = Lake(settings.lake.model_copy(update={"uri": f"file:{folder}"}), settings.message.kinds, clock)
    subscription = MadeSubscription(REGULAR, START, START + timedelta(seconds=2 * (messages + batch) / LIVE_RATE))
    reader, log = HeartbeatReader(settings.contract), lake.tracking_log()
    tables, emptied = new_files(lake, clock), Emptied(clock)

    def track_tick(budget: Budget) -> int:
        settling = Settling(log, clock, {Side.TRACKING: subscription})
        return track(settling, dict.fromkeys(Side, emptied), reader, settings.policy, budget).persisted.messages

    def land_tick(budget: Budget) -> int:
        settling = Settling(log, clock, {Side.BASE: subscription}, tables)
        return land(settling, reader, budget).messages

    tick: Callable[[Budget], int] = {"track": track_tick, "land": land_tick}[stage]

    def run(left: int) -> None:
        while left > 0:
            left -= tick(Budget(left, TICK_BYTES, tick_budget(settings, Side.BASE).max_time, batch))

    run(batch)  # loads the libraries that a tick uses: their pages are no memory of a backlog
    forget_peak()
    before = psutil.Process().memory_info().rss
    run(messages)
    return float(peak_bytes() - before) / MB


def forget_peak() -> None:
    """Begin the peak of `peak_bytes` anew, with what the process has now."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most memory that this process has had, of its own: what `getrusage` says begins with its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM:"))) << 10


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("stage", choices=("track", "land"))
    parser.add_argument("messages", type=int)
    parser.add_argument("batch", type=int)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    print(_run(asked.stage, asked.messages, asked.batch, asked.folder))

"""Ten hours of 10,000 streams at once, 12 million rows: seconds, and the peak memory of whoever computes."""

import argparse
import json
import shutil
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from benchmarks.diffs import ENGINES, SPAN, START, fill, ours, work_of
from benchmarks.engines import Work
from benchmarks.machine import Machine, World
from benchmarks.measures import Measure
from benchmarks.memory import MB, peak_bytes
from benchmarks.watched import PYTHON_WORKER, Memory
from tidemark.local.services.own_files import SPARK_CONNECT
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.ingest.settle import new_files

HOURS = 10
GOAL = 1.0
ROUNDS = 2
"""At most so many: an engine takes about twenty seconds, and as much memory as a small machine has."""

ROWS_OF_A_FILE = 200_000
"""About as many as housekeeping leaves in a file."""

CHILD_SECONDS = 300
WORK = TypeAdapter(Work)


def measure_large(machine: Machine, rounds: int, scale: float) -> list[Measure]:
    """Seconds and megabytes of ours, on a warm server, and of the faster of the two engines, each run a process."""
    world = machine.world()
    _fill(world, scale)
    work = work_of(world, SPAN * HOURS)
    seconds: dict[str, list[float]] = {name: [] for name in ("tidemark", *ENGINES)}
    peaks: dict[str, list[float]] = {name: [] for name in seconds}
    rows = sum(ours(machine, world, SPAN).rows.values())
    servers = [one for one in machine.supervisor.running if one.spec.name == SPARK_CONNECT]
    for _ in range(min(rounds, ROUNDS)):
        for name in seconds:
            if name == "tidemark":
                began = machine.clock.monotonic()
                with Memory(servers, every_seconds=0.1) as memory:
                    rows = sum(ours(machine, world, SPAN * HOURS).rows.values())
                took = machine.clock.monotonic() - began
                peak = memory.peaks.get(f"{SPARK_CONNECT}: {PYTHON_WORKER}", 0) / MB
            else:
                took, peak = _engine(name, work, machine.folder / "engine")
            seconds[name].append(took)
            peaks[name].append(peak)
    machine.forget(world)
    faster = min(ENGINES, key=lambda name: quantile(seconds[name], 0.5))
    told = "; ".join(
        f"{name} {quantile(seconds[name], 0.5):.1f} s, {quantile(peaks[name], 0.5):,.0f} MB" for name in seconds
    )
    of_what = f"{rows:,} rows of {HOURS} hours in {len(work.files)} files, beside {faster} ({told})"
    return [
        Measure("diffs_large", seconds["tidemark"], seconds[faster], GOAL, "lower", "s", of_what),
        Measure(
            "diffs_large_memory",
            peaks["tidemark"],
            peaks[faster],
            None,
            "lower",
            "MB",
            f"peak of the largest Python worker, of which there is one for each core, beside the process of {faster}",
        ),
    ]


def _fill(world: World, scale: float) -> None:
    """Land an hour, and what it holds once more for each further one of HOURS."""
    lookback = world.settings.windows.lookback
    fill(world, START - lookback, START + SPAN, scale)
    table = world.heartbeats.in_place()
    if table is None:
        raise ServiceFailed("nothing has landed for the benchmark")
    files, _ = new_files(world.lake, world.clock)
    hour = table.to_pyarrow_dataset().to_table(filter=pc.field("event_time") >= pa.scalar(START))
    for number in range(1, HOURS):
        later = _later(hour, SPAN * number)
        for first in range(0, len(later), ROWS_OF_A_FILE):
            files.add(files.write(later.slice(first, ROWS_OF_A_FILE)), {})


def _later(rows: pa.Table, by: timedelta) -> pa.Table:
    moved = {name: pc.add(rows[name], pa.scalar(by)).cast(rows[name].type) for name in ("event_time", "publish_time")}
    hours = pc.strftime(pc.floor_temporal(moved["event_time"], unit="hour"), format="%Y-%m-%dT%HZ")
    for name, column in {**moved, "event_hour": hours}.items():
        rows = rows.set_column(rows.column_names.index(name), rows.schema.field(name), column)
    return rows


def _engine(name: str, work: Work, out: Path) -> tuple[float, float]:
    """The seconds and the peak megabytes of an engine in a process of its own, its start not counted."""
    shutil.rmtree(out, ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.large", name, str(out)],
        input=WORK.dump_json(work),
        capture_output=True,
        timeout=CHILD_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ServiceFailed(f"{name} ended with {done.returncode}: {done.stderr.decode()[-1000:]}")
    took, peak = json.loads(done.stdout)
    return float(took), float(peak)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("engine", choices=list(ENGINES))
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    given = WORK.validate_json(sys.stdin.buffer.read())
    began = time.monotonic()
    ENGINES[asked.engine](given, asked.out)
    print(json.dumps([time.monotonic() - began, peak_bytes() / MB]))

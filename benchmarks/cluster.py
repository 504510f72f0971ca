"""Rounds of readers and a long backfill on a standalone cluster of 1, 2 and 4 workers, each with the work of one core.

`python -m benchmarks.cluster --help`. The cluster is that of the tests. Every number of workers is a program of its
own, since a process has one classic session.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

from pyspark.sql import SparkSession
from rich.console import Console

from benchmarks.diffs import SPAN, START, ours
from benchmarks.large import WorkersPeak, fill_hours
from benchmarks.machine import Machine, World, machine
from benchmarks.memory import MB
from benchmarks.ticks import pull_and_acknowledge
from tests.spark.standalone import Cluster, cluster
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.rounds import RoundDone, Rounds, read_on_spark
from tidemark.pipeline.ingest.settle import Settling, new_files
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import EmulatorKind, IngestSettings
from tidemark.pipeline.spark.java import set_java_home
from tidemark.pipeline.spark.session import session_config

PART_SECONDS = 1200
WARM_UP_MESSAGES = 20_000
PACED_SECONDS = 40.0

WITHOUT_FORKS = {**os.environ, "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""PySpark forks to start a JVM, and gRPC's own fork handlers abort forks where calls are under way."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What one program measures."""

    workers: int
    messages: int
    rates: list[int]
    hours: int
    emulator: EmulatorKind
    out: Path


def main() -> None:
    """Parse what is asked for; measure each number of workers in a program of its own, and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster", description=__doc__)
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers, each with one core (default 1,2,4)")
    parser.add_argument("--messages", type=int, default=300_000, help="of the backlog that is landed (default 300000)")
    parser.add_argument("--rates", default="333,3300", help="messages a second of live traffic (default 333,3300)")
    parser.add_argument("--hours", type=int, default=24, help="of 10,000 streams that are computed; 0: none (24)")
    parser.add_argument("--emulator", choices=("auto", "official", "local"), default="auto", help="which Pub/Sub")
    parser.add_argument("--out", type=Path, default=Path("build/cluster.json"), help="the results as JSON")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    rates = [int(rate) for rate in asked.rates.split(",") if rate]
    if asked.part:
        part = Asked(int(asked.workers), asked.messages, rates, asked.hours, asked.emulator, asked.out)
        asked.out.write_text(json.dumps(measured(part)))
        return
    console, found = Console(width=140), []
    for workers in asked.workers.split(","):
        with tempfile.TemporaryDirectory(prefix="tidemark-cluster-") as folder:
            out = Path(folder) / "part.json"
            given = ["--part", "--workers", workers, "--messages", str(asked.messages), "--rates", asked.rates]
            given += ["--hours", str(asked.hours), "--emulator", asked.emulator]
            command = [sys.executable, "-m", "benchmarks.cluster", *given]
            subprocess.run([*command, "--out", str(out)], env=WITHOUT_FORKS, check=True, timeout=PART_SECONDS)
            found.append(json.loads(out.read_text()))
        console.print_json(json.dumps(found[-1]))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(asked: Asked) -> dict[str, Any]:
    """What a cluster of so many workers does."""
    found: dict[str, Any] = {"workers": asked.workers}
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-cluster-") as folder,
        machine(Path(folder), asked.emulator, print) as parts,
        cluster(Path(folder) / "cluster", workers=asked.workers + 1) as spread,
        session_on(spread) as spark,
    ):
        if asked.messages:
            found["backlog"] = backlog(parts, spark, asked)
        for rate in asked.rates:
            found[f"live at {rate} a second"] = live(parts, spark, asked.workers, rate)
        if asked.hours:
            found["backfill"] = backfill(parts, spread, spark, asked.hours)
    return found


@contextmanager
def session_on(spread: Cluster) -> Iterator[SparkSession]:
    """A classic session whose executors are the workers'."""
    set_java_home()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    session = SparkSession.builder.config(map={**session_config(Settings(spark=spread.classic()))}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def a_run(world: World, spark: SparkSession, landers: int, run: str) -> Iterator[Rounds]:
    """A run with one reader of base for each worker; one worker more tracks."""
    pubsub = world.settings.pubsub
    chosen = IngestSettings(mode="continuous", readers=landers + 1)
    with (
        closing(world.subscription(pubsub.tracking_path)) as tracking,
        closing(world.subscription(pubsub.base_path)) as base,
    ):
        both = {Side.TRACKING: tracking, Side.BASE: base}
        yield Rounds(
            settings=world.settings.model_copy(update={"ingest": chosen}),
            run=run,
            readers=chosen.readers,
            settling=Settling(world.tracking_log, world.clock, both, new_files(world.lake, world.clock)),
            read=partial(read_on_spark, spark, lambda: None),
            newest=world.landing_log.newest,
            backlogs={Side.TRACKING: world.backlog(pubsub.tracking_path), Side.BASE: world.backlog(pubsub.base_path)},
        )


def backlog(parts: Machine, spark: SparkSession, asked: Asked) -> dict[str, Any]:
    """Messages a second of rounds over a backlog, beside as many threads that only pull and acknowledge another's."""
    warm = parts.world()
    warm.publish(WARM_UP_MESSAGES)
    _land(warm, spark, asked.workers, WARM_UP_MESSAGES)
    parts.forget(warm)
    world = parts.world()
    messages = world.publish(asked.messages)
    began = parts.clock.monotonic()
    rounds = _land(world, spark, asked.workers, messages)
    seconds = parts.clock.monotonic() - began
    parts.forget(world)
    bare = parts.world()
    messages = bare.publish(asked.messages)
    began = parts.clock.monotonic()
    path, each = bare.settings.pubsub.base_path, messages // asked.workers
    clients = [subscriber_client(bare.settings.pubsub.emulator_host) for _ in range(asked.workers)]
    with ThreadPoolExecutor(asked.workers) as pool:
        list(pool.map(lambda client: pull_and_acknowledge(client, path, each, 20_000), clients))
    bare_seconds = parts.clock.monotonic() - began
    parts.forget(bare)
    return {
        "messages": messages,
        "landers": asked.workers,
        "landed_and_tracked_per_second": round(messages / seconds),
        "pulled_per_second": round(2 * messages / seconds),
        "bare_pulled_per_second": round(each * asked.workers / bare_seconds),
        "rounds": len(rounds),
        "longest_settling_seconds": round(max(one.settle_seconds for one in rounds), 2),
    }


def _land(world: World, spark: SparkSession, landers: int, messages: int) -> list[RoundDone]:
    """Rounds until so many messages have landed and were tracked."""
    done, landed, tracked = list[RoundDone](), 0, 0
    with a_run(world, spark, landers, "backlog") as rounds:
        for one in rounds.rounds(timedelta(minutes=10), until_young=False):
            done.append(one)
            landed += one.settled.landed.messages
            tracked += one.settled.persisted.messages
            if min(landed, tracked) >= messages:
                break
    return done


def live(parts: Machine, spark: SparkSession, landers: int, rate: int) -> dict[str, Any]:
    """Commits and entries a second while so many messages a second are published."""
    world, over = parts.world(), Event()
    published = [0]

    def publish() -> None:
        began = parts.clock.monotonic()
        while not over.wait(0.2):
            due = round((parts.clock.monotonic() - began) * rate) - published[0]
            if due > 0:
                published[0] += world.publish(due)

    publisher = Thread(target=publish, daemon=True)
    publisher.start()
    began = parts.clock.monotonic()
    with a_run(world, spark, landers, "live") as rounds:
        done = list(rounds.rounds(timedelta(seconds=PACED_SECONDS), until_young=False))
    seconds = parts.clock.monotonic() - began
    over.set()
    publisher.join()
    table = world.heartbeats.current()
    commits = 0 if table is None else table.version()
    entries = len(world.lake.tracking_log().numbers())
    parts.forget(world)
    return {
        "published_per_second": round(published[0] / seconds),
        "landed_per_second": round(sum(one.settled.landed.messages for one in done) / seconds),
        "commits_per_second": round(commits / seconds, 3),
        "entries_per_second": round(entries / seconds, 3),
        "files": 0 if table is None else len(table.file_uris()),
        "longest_settling_seconds": round(max(one.settle_seconds for one in done), 2),
    }


def backfill(parts: Machine, spread: Cluster, spark: SparkSession, hours: int) -> dict[str, Any]:
    """Seconds for the windows of so many hours of 10,000 streams, and the memory of the largest Python worker."""
    world = parts.world()
    fill_hours(world, 1.0, hours)
    parts.__dict__["spark"] = spark
    servers = [one.process.pid for one in spread.supervisor.running if one.spec.name.startswith("worker-")]
    ours(parts, world, SPAN)
    began = parts.clock.monotonic()
    with WorkersPeak(servers) as workers:
        computed = ours(parts, world, SPAN * hours)
    seconds = parts.clock.monotonic() - began
    del parts.__dict__["spark"]
    parts.forget(world)
    return {
        "first_window": START.isoformat(),
        "rows": sum(computed.rows.values()),
        "seconds": round(seconds, 1),
        "largest_worker_mb": round(workers.largest_bytes / MB),
    }


if __name__ == "__main__":
    main()

"""A backlog of honest messages beside the same with one hostile message in a hundred: when the honest ones land, how
long ticks take, and the peak of the process's memory. `python -m benchmarks.hostile_backlog --help` has the rest.

Hostile are gzip bombs, JSON of many values, JSON of too many, garbage, and event times in thousands of hours.
"""

import argparse
import gzip
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import cycle
from pathlib import Path

import orjson
import psutil
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from benchmarks.machine import World, machine
from benchmarks.memory import MB, peak_bytes
from tidemark.pipeline.clock import Clock, iso, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.ticks import tick_budget

MESSAGES, HOSTILE_OF, BOMB_OF = 1_000_000, 100, 100
"""One message in a hundred is hostile, and one of a hundred of those inflates to 41 MB."""

AT_ONCE = 1000
MANY = b'{"load":1,"many":[' + b"{}," * 300_000 + b"0]}"


@dataclass
class Hostile:
    """Makes hostile messages. Few of them are large: each kind comes as often as its work allows."""

    at: datetime

    def __post_init__(self) -> None:
        self._bomb, self._many = gzip.compress(b" " * 41_000_000), gzip.compress(MANY)
        self._number = 0

    def message(self) -> dict[str, object]:
        """The next one."""
        self._number += 1
        event, data = self.at, b"{"
        if self._number % BOMB_OF == 0:
            data = self._bomb
        elif self._number % BOMB_OF == 50:
            data = self._many
        elif self._number % 2:
            event, data = self.at - timedelta(hours=self._number % 8000), _beat(self.at, "hostile")
        return {"data": data, "attributes": {"stream_id": "hostile", "event_time": iso(event)}}


def _beat(at: datetime, device: str) -> bytes:
    return orjson.dumps({"at": to_us(at) // 1000, "device": device, "load": 1.5})


def _published(world: World, messages: int, *, with_hostile: bool) -> int:
    """Publish the backlog; how many are honest."""
    now = world.clock.now()
    hostile, honest, publisher = Hostile(now), 0, world.publisher
    numbers = cycle(range(10_000))
    batch: list[dict[str, object]] = []
    for number in range(messages):
        if with_hostile and number % HOSTILE_OF == 0:
            batch.append(hostile.message())
        else:
            device = f"stream-{next(numbers)}"
            batch.append({"data": _beat(now, device), "attributes": {"stream_id": device, "event_time": iso(now)}})
            honest += 1
        if len(batch) == AT_ONCE:
            publisher.publish(topic=world.settings.pubsub.topic_path, messages=batch)
            batch = []
    return honest


def _ticks(world: World, honest: int, clock: Clock) -> Iterator[tuple[float, float]]:
    """Ticks of both subscriptions until all honest ones have landed: how long each of the two took."""
    landed, pubsub = 0, world.settings.pubsub
    tracking, base = world.subscription(pubsub.tracking_path), world.subscription(pubsub.base_path)
    budgets = [tick_budget(world.settings, side) for side in (Side.TRACKING, Side.BASE)]
    while landed < honest:
        began = clock.monotonic()
        world.track(budgets[0], tracking)
        tracked = clock.monotonic()
        world.land(budgets[1], base)
        yield tracked - began, clock.monotonic() - tracked
        table = world.heartbeats.current()
        streams = [] if table is None else [table.to_pyarrow_dataset().to_table(columns=["stream_id"])["stream_id"]]
        landed = sum(pc.sum(pc.not_equal(one, "hostile")).as_py() or 0 for one in streams)


def play(messages: int, folder: Path, *, with_hostile: bool) -> None:
    """Play one backlog, and print what came of it as JSON."""
    with machine(folder, "local", lambda _: None) as parts:
        world = parts.world()
        contract = replace(world.settings.contract, first_event_time=parts.clock.now() - timedelta(hours=9000))
        world.__dict__["reader"] = HeartbeatReader(contract)
        honest = _published(world, messages, with_hostile=with_hostile)
        before, began = psutil.Process().memory_info().rss, parts.clock.now()
        ticks = list(_ticks(world, honest, parts.clock))
        table = world.heartbeats.current()
        if table is None:
            raise ValueError("nothing has landed")
        rows = table.to_pyarrow_table(columns=["stream_id", "landed_at"])
        rows = rows.filter(pc.not_equal(rows["stream_id"], "hostile"))
        lags = [(at - began).total_seconds() for at in rows["landed_at"].to_pylist()]
        quarantined = world.quarantine.current()
        said = {
            "honest": len(rows),
            "half landed after, s": quantile(lags, 0.5),
            "all landed after, s": max(lags),
            "longest tick of tracking, s": max(tracking for tracking, _ in ticks),
            "longest tick of landing, s": max(landing for _, landing in ticks),
            "quarantined": 0 if quarantined is None else quarantined.to_pyarrow_dataset().count_rows(),
            "memory before, MB": before // MB,
            "peak of memory, MB": peak_bytes() // MB,
        }
    print(orjson.dumps(said).decode())


def main() -> None:
    """Play the backlog without and with the hostile messages, each in a process of its own, and print both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile_backlog", description=__doc__)
    parser.add_argument("--messages", type=int, default=MESSAGES, help=f"(default {MESSAGES:,})")
    parser.add_argument("--folder", type=Path, default=Path("build/hostile-backlog"), help="everything is below it")
    parser.add_argument("--alone", choices=("honest", "hostile"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        play(given.messages, given.folder, with_hostile=given.alone == "hostile")
        return
    found = {}
    for kind in ("honest", "hostile"):
        options = [f"--messages={given.messages}", f"--folder={given.folder}/{kind}", f"--alone={kind}"]
        command = [sys.executable, "-m", "benchmarks.hostile_backlog", *options]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=3600).stdout
        found[kind] = orjson.loads(said.splitlines()[-1])
    table = Table("", "honest alone", "with hostile ones")
    for name in found["honest"]:
        table.add_row(name, *(f"{found[kind][name]:,.10g}" for kind in found))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()

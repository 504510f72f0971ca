"""An upgrade and a rollback while sources publish: `python -m tests.upgrade_under_load`.

It begins with a copy of the lake that is kept, on a real Pub/Sub server. Program A is this version. Program B is the
same source with a later number and a later format. Each is a process that tracks, lands and computes, again and again:

1. A alone.
2. B beside A: A refuses from B's first entry on. Then A is stopped.
3. The rollback: B is stopped and A started. A refuses, writes nothing, and acknowledges nothing.
4. B again, until everything is computed.

At the end every message must have landed, and be in exactly one row of `heartbeat_diffs`.
"""

import argparse
import hashlib
import json
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from google.pubsub_v1 import PublisherClient

from tests.fixtures_emulator import QUICK_LEASE, why_no_official_emulator
from tests.lake_fixture import FIXTURES, closed, compute_here
from tests.lake_reading import lake_in, settings_in
from tests.official_emulator import running_emulator, running_own_pubsub
from tidemark.pipeline import version
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import NewerFormat
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.windows import runs_of_neighbours

CLOCK = SystemClock()
BUDGET = Budget(20_000, 1 << 26, timedelta(seconds=3), 2_000)
FASTER, BEGAN_AGO = 20, timedelta(hours=6)
"""Event time runs so much faster than the clock, from so long ago on, that five-minute windows close in seconds."""

STREAMS, EVERY_SECONDS = 10, 0.25
PATIENCE_SECONDS = 240.0
"""The longest wait for one thing. It ends a play that hangs; nothing else depends on it."""

Told = dict[str, Any]


# A program


def run_program(folder: Path, number: str, format_number: int) -> None:
    """Tick until SIGTERM, and print what each tick did, or what it was refused."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if number != version.own_version():
        version.FORMAT = format_number
        version.own_version = lambda: number  # type: ignore[assignment]
    settings, lake = settings_in(folder), lake_in(folder, CLOCK)
    client, reader = subscriber_client(settings.pubsub.emulator_host), HeartbeatReader(settings.contract)
    base, tracking = (
        PubSubSubscription(client, path, CLOCK, settings.pubsub)
        for path in (settings.pubsub.base_path, settings.pubsub.tracking_path)
    )
    base_backlog, tracking_backlog = (
        SnapshotBacklog(client, path, CLOCK) for path in (settings.pubsub.base_path, settings.pubsub.tracking_path)
    )
    log, landing_log = lake.tracking_log(), lake.tracking_log()
    heartbeats, quarantine = new_files(lake, CLOCK)

    def tick() -> Told:
        landed = land(
            base,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=landing_log,
            reader=reader,
            budget=BUDGET,
            clock=CLOCK,
        )
        tracked = track(
            tracking,
            tracking_backlog=tracking_backlog,
            base_backlog=base_backlog,
            log=log,
            reader=reader,
            policy=settings.policy,
            budget=BUDGET,
            clock=CLOCK,
        )
        windows = closed(lake, settings)
        for stretch in runs_of_neighbours(windows):
            compute_here(lake, settings, stretch)
        return {
            "landed": landed.messages,
            "tracked": tracked.persisted.messages,
            "entry": tracked.state.number,
            "computed": [window.key for window in windows],
        }

    while True:
        try:
            print(json.dumps(tick()), flush=True)
        except NewerFormat as refused:
            print(json.dumps({"refused": str(refused)}), flush=True)
        CLOCK.sleep(0.5)


class Program:
    """A program in a process of its own, and what it prints."""

    def __init__(self, name: str, folder: Path, number: str, format_number: int) -> None:
        self.name, self.number = name, number
        self._lines: queue.Queue[Told] = queue.Queue()
        command = [sys.executable, "-m", "tests.upgrade_under_load", "--program", str(folder)]
        self._errors = (folder / f"{name}.log").open("ab")
        self._process = subprocess.Popen(
            [*command, "--number", number, "--format", str(format_number)],
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(json.loads(line))

    def next(self) -> Told:
        """What the next tick did."""
        return self._lines.get(timeout=PATIENCE_SECONDS)

    def until(self, reached: Callable[[list[Told]], bool]) -> list[Told]:
        """Its ticks, until they are enough."""
        found: list[Told] = []
        until = CLOCK.monotonic() + PATIENCE_SECONDS
        while not reached(found):
            assert CLOCK.monotonic() < until, f"{self.name} came no further than {found[-3:]}"
            found.append(self.next())
        return found

    def stop(self) -> list[Told]:
        """End it, and return what it did since it was last asked."""
        self._process.terminate()
        self._process.wait(timeout=60)
        self._errors.close()
        left = []
        while not self._lines.empty():
            left.append(self._lines.get())
        return left


@contextmanager
def program(name: str, folder: Path, number: str, format_number: int) -> Iterator[Program]:
    """A program, which is stopped whatever happens."""
    started = Program(name, folder, number, format_number)
    try:
        yield started
    finally:
        if started._process.poll() is None:
            started.stop()


# The sources


class Sources:
    """Publishes all the time, from a thread: each message with an id of its own."""

    def __init__(self, client: PublisherClient, topic: str) -> None:
        self._client, self._topic = client, topic
        self._began, self._stop = CLOCK.now(), threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)
        self.published: list[str] = []
        self._thread.start()

    def _publish(self) -> None:
        while not self._stop.wait(EVERY_SECONDS):
            self.send(self._began - BEGAN_AGO + FASTER * (CLOCK.now() - self._began))

    def send(self, event_time: datetime) -> list[str]:
        """One message of each stream; their ids."""
        ids = [f"{stream}-{len(self.published) + stream}" for stream in range(STREAMS)]
        messages = [
            {
                "data": b'{"load": 1}',
                "attributes": {
                    "stream_id": f"load-{stream}",
                    "event_time": str(to_us(event_time) // 1000),
                    "heartbeat_id": ids[stream],
                },
            }
            for stream in range(STREAMS)
        ]
        self._client.publish(topic=self._topic, messages=messages)
        self.published += ids
        return ids

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


# The play


def play(folder: Path, say: Callable[[str], None] = print) -> Told:
    """Play it in an empty folder, and return the figures. Raises AssertionError where something is not as it must."""
    official = why_no_official_emulator() is None
    shutil.copytree(FIXTURES / f"lake-{version.FORMAT}", folder, dirs_exist_ok=True)
    start = running_emulator if official else running_own_pubsub
    with start(folder / "pubsub.log") as address:
        configure(folder, address)
        settings = settings_in(folder)
        clients = subscriber_client(address), publisher_client(address)
        provision(*clients, settings.pubsub, settings.contract, CLOCK, lease=QUICK_LEASE)
        say(f"Pub/Sub: {'the official emulator' if official else 'tidemark pubsub'}; the lake is a copy of the fixture")
        sources = Sources(clients[1], settings.pubsub.topic_path)
        try:
            figures = _phases(folder, sources, say)
        finally:
            sources.stop()
            for client in clients:
                client.transport.close()
    return figures


def configure(folder: Path, address: str) -> None:
    """The fixture's settings, on this server, with a band and an idle timeout of seconds."""
    written = (folder / "tidemark.toml").read_text().replace("127.0.0.1:1", address)
    more = '\n[watermark]\nband = "2s"\nidle_timeout = "2s"\nmax_idle_lag = "0s"\n'
    (folder / "tidemark.toml").write_text(written)
    with (folder / "tidemark.toml").open("a") as file:
        file.write(more)


def _phases(folder: Path, sources: Sources, say: Callable[[str], None]) -> Told:
    own = version.own_version()
    old, new = (own, version.FORMAT), ("9.0.0", version.FORMAT + 1)
    with program("A", folder, *old) as a:
        ticks = a.until(lambda ticks: sum(tick["landed"] > 0 for tick in ticks) >= 4)
        say(f"1. A ({own}) alone: {figures_of(ticks)}")
        with program("B", folder, *new) as b:
            beside = b.until(lambda ticks: sum(tick["landed"] > 0 for tick in ticks) >= 3)
            refused = a.until(lambda ticks: len(refusals(ticks)) >= 3)
            say(f"2. B (9.0.0) beside A: B {figures_of(beside)}")
            say(f"   A {figures_of(refused)}; it says: {refusals(refused)[-1]}")
            a.stop()
            rest = b.until(lambda ticks: sum(tick["landed"] > 0 for tick in ticks) >= 4)
            say(f"   B alone: {figures_of(rest)}")
    before, landed_before = content_of(folder), len(landed(folder))
    published_before = len(sources.published)
    with program("A", folder, *old) as a:
        rolled_back = a.until(lambda ticks: len(ticks) >= 5)
    assert len(refusals(rolled_back)) == len(rolled_back), "A did something"
    assert content_of(folder) == before, "A wrote something"
    say(
        f"3. rolled back to A: {figures_of(rolled_back)}; {len(sources.published) - published_before} messages were "
        f"published meanwhile, {landed_before} rows had landed and {len(landed(folder))} have; no object changed"
    )
    say(f"   it says: {refusals(rolled_back)[-1]}")
    with program("B", folder, *new) as b:
        catching_up = b.until(lambda ticks: sum(tick["landed"] > 0 for tick in ticks) >= 3)
        sources.stop()
        closing = set(sources.send(CLOCK.now()))
        catching_up += b.until(lambda _: set(sources.published) - closing <= set(computed(folder)))
    say(f"4. B again: {figures_of(catching_up)}")
    return _verdict(folder, sources, closing, say)


def _verdict(folder: Path, sources: Sources, closing: set[str], say: Callable[[str], None]) -> Told:
    """Every message against every row."""
    published = Counter(sources.published)
    rows, copies = computed(folder), landed(folder)
    lost = sorted(set(published) - set(copies))
    wrong = {key: rows[key] for key in published if rows[key] != 1 and not (key in closing and rows[key] == 0)}
    marks = sorted(path.name for path in (folder / "lake" / "format").iterdir())
    say(
        f"published {published.total()} messages; landed {len(set(published) & set(copies))} of them in "
        f"{sum(copies[key] for key in published)} rows; {sum(rows[key] == 1 for key in published)} are in exactly one "
        f"row of heartbeat_diffs, {len(closing)} are in the window that is still open; lost {len(lost)}, wrong "
        f"{len(wrong)}; the lake's formats: {', '.join(marks)}"
    )
    assert not lost, lost[:10]
    assert not wrong, list(wrong.items())[:10]
    return {"published": published.total(), "lost": len(lost), "wrong": len(wrong), "formats": marks}


def figures_of(ticks: list[Told]) -> str:
    """What some ticks did, in short."""
    done = [tick for tick in ticks if "landed" in tick]
    windows = sum(len(tick["computed"]) for tick in done)
    return (
        f"{len(ticks)} ticks, {len(refusals(ticks))} of them refused; landed {sum(tick['landed'] for tick in done)}, "
        f"tracked {sum(tick['tracked'] for tick in done)}, computed {windows} windows"
    )


def refusals(ticks: list[Told]) -> list[str]:
    return [tick["refused"] for tick in ticks if "refused" in tick]


def landed(folder: Path) -> Counter[str]:
    """How often each message of the sources has landed, by the id that its source gave it."""
    return Counter(row["publisher_id"] for row in _rows(folder, "heartbeats", "publisher_id"))


def computed(folder: Path) -> Counter[str]:
    """How many rows of heartbeat_diffs each has; a row has its message's id."""
    names = {
        row["message_id"]: row["publisher_id"] for row in _rows(folder, "heartbeats", "message_id", "publisher_id")
    }
    return Counter(names[row["message_id"]] for row in _rows(folder, "heartbeat_diffs", "message_id"))


def _rows(folder: Path, table: str, *columns: str) -> list[dict[str, Any]]:
    """A table's rows of the sources' streams. Opened as a reader opens it that is not tidemark, which would refuse."""
    found = DeltaTable(folder / "lake" / table).to_pyarrow_table(columns=["stream_id", *columns]).to_pylist()
    return [row for row in found if row["stream_id"].startswith("load-")]


def content_of(folder: Path) -> dict[str, str]:
    files = (file for file in (folder / "lake").rglob("*") if file.is_file())
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=Path)
    parser.add_argument("--number")
    parser.add_argument("--format", type=int)
    given = parser.parse_args()
    if given.program is None:
        with tempfile.TemporaryDirectory() as place:
            play(Path(place))
    else:
        run_program(given.program, given.number, given.format)

"""Live traffic beside a hostile source: how long after its end each window is ready meanwhile, in a table, and the peak
of any process's memory.

What the source sends follows one after another, a few windows apart: 299 messages 26 hours apart, one a day for 324
days, and one an hour for 7,798 hours, each kind twice. Ten times a minute it sends a gzip bomb besides.
"""

import argparse
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread

import psutil
from google.pubsub_v1 import PublisherClient
from rich.console import Console
from rich.table import Table

from benchmarks.freshness import SETTLES, Played, play
from tidemark.pipeline.clock import Clock, SystemClock, iso
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.pubsub.connection import publisher_client
from tidemark.pipeline.settings import Settings

KINDS = {
    "299 messages, 26 h apart": (timedelta(hours=26), 299),
    "324 messages, one a day": (timedelta(days=1), 324),
    "7,798 messages, one an hour": (timedelta(hours=1), 7798),
}
"""How far apart, and how many, back from the moment at which they are sent."""

APART = timedelta(seconds=150)
AT_ONCE = 1000
BOMB_EVERY = timedelta(seconds=6)
BOMB_BYTES = 41_000_000
"""More than a payload may have, in 40 KB of gzip."""
GOAL_SECONDS = 45.0


class Hostile:
    """Publishes the kinds, beginning once live traffic has settled, and notes when."""

    def __init__(self, clock: Clock) -> None:
        self.sent: list[tuple[datetime, str]] = []
        self.bombs, self.peak_mb = 0, 0
        self._clock, self._over = clock, Event()

    @contextmanager
    def beside(self, settings: Settings) -> Iterator[None]:
        """Publishes while the block runs."""
        publisher = publisher_client(settings.pubsub.emulator_host)
        threads = [
            Thread(target=target, args=(settings, publisher), name="hostile", daemon=True)
            for target in (self._publish, self._bomb)
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _bomb(self, settings: Settings, publisher: PublisherClient) -> None:
        bomb = gzip.compress(b" " * BOMB_BYTES)
        while not self._over.wait(BOMB_EVERY.total_seconds()):
            attributes = {"stream_id": "bomb", "event_time": iso(self._clock.now())}
            publisher.publish(topic=settings.pubsub.topic_path, messages=[{"data": bomb, "attributes": attributes}])
            self.bombs += 1
            started = psutil.Process().children(recursive=True)
            python = [one.memory_info().rss for one in started if one.is_running() and "python" in one.name()]
            self.peak_mb = max(self.peak_mb, *(size >> 20 for size in python))

    def _publish(self, settings: Settings, publisher: PublisherClient) -> None:
        wait = SETTLES
        for number, (kind, (apart, count)) in enumerate([*KINDS.items()] * 2):
            if self._over.wait(wait.total_seconds()):
                return
            now, wait = self._clock.now(), APART
            messages = [
                {
                    "data": b'{"temperature": 1.0, "status": "hostile"}',
                    "attributes": {"stream_id": f"hostile-{number}", "event_time": iso(now - back * apart)},
                }
                for back in range(count)
            ]
            for first in range(0, count, AT_ONCE):
                publisher.publish(topic=settings.pubsub.topic_path, messages=messages[first : first + AT_ONCE])
            self.sent.append((now, kind))


def main() -> None:
    """Play it, and print each live window with how long after its end it was ready. Exit code 1: one was too late."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("--windows", type=int, default=16, help="live windows that are counted (default 16)")
    clock, console, windows = SystemClock(), Console(width=160), parser.parse_args().windows
    hostile = Hostile(clock)
    asked = Played("band", 10, windows, "auto", Path("build/hostile"), first=timedelta(days=400))
    fresh = play(asked, console, clock, hostile.beside)
    table = Table("window", "ready after", "sent meanwhile")
    for window, seconds in sorted(fresh.ready_by_window.items()):
        end = datetime.fromisoformat(window) + timedelta(minutes=1)
        sent = [kind for at, kind in hostile.sent if end - timedelta(minutes=1) <= at < end]
        table.add_row(window, f"{seconds:.1f} s", "; ".join(sent))
    console.print(table)
    late = [seconds for seconds in fresh.ready if seconds > GOAL_SECONDS]
    console.print(
        f"{len(fresh.ready)} live windows, ready {quantile(fresh.ready, 0.5):.1f} s after their end by the median, "
        f"{max(fresh.ready):.1f} s at the most; {len(late)} after more than {GOAL_SECONDS:g} s; "
        f"{hostile.bombs} bombs beside; at most {hostile.peak_mb} MB in a Python process"
    )
    if late:
        raise SystemExit(1)


if __name__ == "__main__":
    main()

"""An outage's backlog on the whole pipeline: published while it is down, landed by N readers while traffic goes on,
and compared with the truth row by row. `make drain-demo`, or `python -m benchmarks.drain --help`.

Real parts: tidemark's own Pub/Sub server, Spark Connect, Dagster's daemon and code server, a lake on disk.
"""

import argparse
import json
import os
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.watched import JITTER, PERIOD, STREAMS, Memory, Pipeline, pipeline, runs_of_drain, ticks_of
from tidemark.local.demo.script import LakeWatch
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.local.demo.verification import TruthComparison, compare
from tidemark.local.services.own_files import dagster_home
from tidemark.local.services.stack import start_stack
from tidemark.pipeline.clock import Clock, SystemClock, format_duration, iso, parse_duration
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.lake.layout import OpenLake

PER_SECOND = STREAMS / PERIOD.total_seconds()
"""What the sources publish in real time: a multiple of real time is a multiple of this."""

CONFIG = """\
length = "{window}"

[ingest]
readers = {readers}

[lake]
uri = "file:lake"

[spark.config]
"spark.master" = "local[{places},4]"
"""


@dataclass(frozen=True, slots=True)
class Asked:
    """What is played."""

    messages: int
    readers: int
    live: timedelta
    window: str
    patience: timedelta
    folder: Path


def main() -> None:
    """Parse what is asked for, play it, and print what came of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drain", description=__doc__)
    parser.add_argument("--messages", type=int, default=3_000_000, help="of the backlog (default 3000000)")
    parser.add_argument("--readers", type=int, default=4, help="on Spark (default 4)")
    parser.add_argument("--live", type=parse_duration, default=timedelta(minutes=2), help="traffic afterwards (2m)")
    parser.add_argument("--window", default="5m", help="length of a window (default 5m)")
    parser.add_argument("--patience", type=parse_duration, default=timedelta(hours=1), help="for each wait (1h)")
    parser.add_argument("--folder", type=Path, default=Path("build/drain"), help="everything is below it")
    asked = Asked(**vars(parser.parse_args()))
    console = Console(width=160)
    found, figures = play(asked, console, SystemClock())
    text = json.dumps({**asdict(found), **figures}, indent=1, default=str)
    (asked.folder / "drain.json").write_text(text + "\n")
    console.print(text, highlight=False)
    right = not (found.differences or found.missed or found.quarantine_differences)
    console.print("every row is right" if right and found.rows == found.expected_rows else "NOT RIGHT")


def play(asked: Asked, console: Console, clock: Clock) -> tuple[TruthComparison, dict[str, Any]]:
    """The backlog, the pipeline, live traffic, silence, the comparison, and figures: seconds are since the pipeline was
    started, and multiples are of real time. Stops what it started, whatever happens."""
    start = clock.now().replace(second=0, microsecond=0) - timedelta(seconds=asked.messages / PER_SECOND)
    source = SyntheticSource(streams=STREAMS, period=PERIOD, jitter=JITTER)
    more = CONFIG.format(window=asked.window, readers=asked.readers, places=asked.readers + 2)
    first = start - timedelta(hours=1)
    with pipeline(asked.folder, source, start, first, more, console, clock, emulator="local") as played:
        return _play(asked, played, start, clock)


def _play(asked: Asked, played: Pipeline, start: datetime, clock: Clock) -> tuple[TruthComparison, dict[str, Any]]:
    settings, publishing, supervisor, say = played.settings, played.source, played.supervisor, played.say
    while publishing.sent < asked.messages or publishing.reached < clock.now() - timedelta(seconds=1):
        publishing.raise_failure()
        clock.sleep(0.2)
    backlog, reached = publishing.sent, publishing.reached
    say(f"{backlog:,} messages of {STREAMS:,} streams wait, up to {iso(reached)}; the sources go on live")
    with Memory(supervisor.running) as memory:
        pipeline_began = clock.monotonic()
        start_stack(supervisor, settings, played.config)
        watch = LakeWatch(settings, publishing, supervisor.restart_what_died, clock, say, asked.patience)
        rejected = OpenLake(settings.lake, settings.message.kinds, clock).quarantine()
        watch.until(lambda report: report.landed.rows + rejected.rows_of() >= backlog)
        landed_after = clock.monotonic() - pipeline_began
        say(f"the backlog has landed {landed_after:.0f} s after the pipeline was started")
        first = settings.windowing.containing(start)
        windows = {window.key for window in settings.windowing.between(first.start, reached)}
        watch.until(lambda report: windows <= set(report.computed))
        computed_after = clock.monotonic() - pipeline_began
        say(f"its {len(windows)} windows are computed after {computed_after:.0f} s")
        until = clock.monotonic() + asked.live.total_seconds()
        watch.until(lambda _: clock.monotonic() >= until)
        published = publishing.stop()
        if published is None or published.last_event_time is None:
            raise ServiceFailed("the source left no record of what it published")
        last = settings.windowing.containing(published.last_event_time)
        say("the sources fall silent; the idle rule closes what is left")
        everything = {window.key for window in settings.windowing.between(first.start, last.end)}
        watch.until(lambda report: everything <= set(report.computed))
    say("comparing every row with the truth")
    found = compare(publishing.truth, asked.folder / "lake", settings.windows)
    os.environ["TIDEMARK_DAGSTER_STORAGE"] = settings.dagster.storage
    return found, {
        "backlog": backlog,
        "backlog_event_time": format_duration(timedelta(seconds=round((reached - start).total_seconds()))),
        "published": published.messages,
        "duplicates": published.duplicates,
        "landed_after_seconds": round(landed_after, 1),
        "computed_after_seconds": round(computed_after, 1),
        "landed_multiple": round(backlog / PER_SECOND / landed_after, 1),
        "computed_multiple": round(backlog / PER_SECOND / computed_after, 1),
        "drains": [asdict(run) for run in runs_of_drain(dagster_home(settings))],
        "ticks": {name: asdict(seen) for name, seen in ticks_of(dagster_home(settings)).items()},
        "peak_memory_mb": {name: round(size / (1 << 20), 1) for name, size in memory.peaks.items()},
    }


if __name__ == "__main__":
    main()

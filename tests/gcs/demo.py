"""`make demo LAKE=gs`: the demonstration with its lake in a bucket of the Cloud Storage server on loopback, and a table
of the calls that it made there.

The server is started for it, in a process of its own, and ends with it.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from rich.table import Table

from tests.gcs.counting import ELSE, LANDING, LOOKS, RUNS, TRACKING, Call, Class, by_part, calls_in, place_of
from tests.gcs.tools import fake_gcs_server
from tidemark.pipeline.cli.output import columns, console
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.demo.script import run_demo
from tidemark.pipeline.demo.summary import Summary
from tidemark.pipeline.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.durations import format_duration, parse_duration
from tidemark.pipeline.errors import ServiceFailed, TidemarkError
from tidemark.pipeline.settings_sections import LakeSettings, WatermarkSettings

BUCKET = "tidemark-demo"
STOP_SECONDS = 15.0


@contextmanager
def counting_server(calls: Path) -> Iterator[str]:
    """The address of a server with an empty BUCKET that writes its calls down, until the block is left."""
    fake_gcs_server()
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.gcs.counting", str(calls), BUCKET],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (endpoint := process.stdout.readline().strip()):
            raise ServiceFailed("the Cloud Storage server did not start")
        yield endpoint
    finally:
        process.stdin.close()  # which ends it
        process.wait(STOP_SECONDS)
        process.stdout.close()


def tables_of(calls: Sequence[Call], summary: Summary, tick: timedelta) -> Iterator[Table]:
    """The calls by part and folder while live traffic went on, and by kind in the whole demonstration."""
    assert summary.live is not None
    start, end = (moment.timestamp() for moment in summary.live)
    seconds = end - start
    ticks = seconds / tick.total_seconds()
    live = by_part(call for call in calls if start <= call.at < end)
    title = f"calls in {format_duration(tick)}, the length of a tick: the mean of {seconds:.0f} s of live traffic"
    table = columns("part", "folder", right=["class A", "class B", "free"], gap=2, title=title)
    for part in (TRACKING, LANDING, LOOKS, RUNS, ELSE):
        of_part = Counter((place_of(call.name), call.charge) for call in live.get(part, ()))
        for place in sorted({place for place, _ in of_part}):
            table.add_row(part, place or "the bucket", *_figures({c: of_part[place, c] for c in Class}, ticks))
    for name, of in ((TRACKING, (TRACKING,)), (LANDING, (LANDING,)), ("all sensors", (TRACKING, LANDING, LOOKS))):
        total = Counter(call.charge for part in of for call in live.get(part, ()))
        table.add_row(f"[bold]{name}[/]", "[bold]in all[/]", *_figures(total, ticks))
    yield table
    kinds = Counter(
        (call.charge, call.kind) for part, found in by_part(calls).items() if part != ELSE for call in found
    )
    table = columns("kind", "charged as", right=["calls"], gap=2, title="calls of ticks and runs in all")
    for (charge, kind), count in sorted(kinds.items()):
        table.add_row(kind, charge, f"{count:,}")
    yield table


def _figures(counts: Mapping[Class, int], ticks: float) -> list[str]:
    return [f"{counts[charge] / ticks:.1f}" for charge in Class]


def main() -> int:
    options = argparse.ArgumentParser(prog="make demo LAKE=gs", description=__doc__)
    options.add_argument("--folder", type=Path, default=Path("build/demo"))
    options.add_argument("--streams", type=int, default=10_000)
    options.add_argument("--backlog", type=parse_duration, default=timedelta(minutes=20))
    options.add_argument("--live", type=parse_duration, default=timedelta(minutes=3))
    asked = options.parse_args()
    folder, terminal = asked.folder.resolve(), console()
    calls = folder.parent / f"{folder.name}-calls.jsonl"
    calls.parent.mkdir(parents=True, exist_ok=True)
    try:
        with counting_server(calls) as endpoint:
            summary = run_demo(
                folder,
                SyntheticSource(streams=asked.streams, jitter=timedelta(seconds=8)),
                terminal,
                SystemClock(),
                backlog=asked.backlog,
                live=asked.live,
                lake=LakeSettings(uri=f"gs://{BUCKET}/lake", endpoint=endpoint),
            )
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return 1
    for table in tables_of(calls_in(calls), summary, WatermarkSettings().tick):
        terminal.print()
        terminal.print(table)
    terminal.print(f"\nEach call is a line of {calls}. The server has ended, and the bucket with it.", style="dim")
    return 0 if summary.is_right else 1


if __name__ == "__main__":
    sys.exit(main())

"""`make demo LAKE=gs`: the demonstration with its lake in a bucket of the Cloud Storage server on loopback, and a table
of the calls that it made there.

The server is started for it, in a process of its own, and ends with it.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Self

from rich.table import Table

from tests.gcs.counting import (
    BUCKET,
    ELSE,
    LANDING,
    LOOKS,
    RUNS,
    TRACKING,
    Call,
    Class,
    by_part,
    calls_in,
    counting_server,
    place_of,
)
from tidemark.local.demo.script import FULL, QUICK, run_demo
from tidemark.local.demo.summary import Summary
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.cli.output import columns, console
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.state import DecisionRecord

COMMIT = "/heartbeats/_delta_log/"
OK = 200
PARTS = (TRACKING, LANDING, LOOKS, RUNS, ELSE)


@dataclass(frozen=True, slots=True)
class Live:
    """The part of the demonstration in which live traffic alone was landed, in seconds since the epoch, and how many
    ticks decided and landed in it."""

    start: float
    end: float
    decisions: int
    landings: int

    @classmethod
    def of(cls, summary: Summary, lake: LakeSettings, calls: Sequence[Call]) -> Self:
        """Count decisions in the log, and landings by their commits."""
        assert summary.live is not None
        start, end = (moment.timestamp() for moment in summary.live)
        log = Lake(lake, {}, SystemClock()).tracking_log()
        entries = (log.entry(number) for number in log.numbers())
        decided = (entry.decision.at.timestamp() for entry in entries if isinstance(entry, DecisionRecord))
        commits = [call.at for call in calls if call.kind == "create" and COMMIT in call.name and call.status == OK]
        return cls(start, end, *(sum(start <= at < end for at in moments) for moments in (decided, commits)))

    def ticks(self, part: str) -> int:
        """How many ticks the calls of a part are divided by."""
        return max(1, self.landings if part == LANDING else self.decisions)


def tables_of(calls: Sequence[Call], live: Live) -> Iterator[Table]:
    """The calls a tick while live traffic went on: by part and folder, and by kind."""
    by = by_part(call for call in calls if live.start <= call.at < live.end)
    table = columns("part", "folder", right=["class A", "class B", "free"], gap=2, title="calls a tick, by folder")
    for part in PARTS:
        found = Counter((place_of(call.name), call.charge) for call in by.get(part, ()))
        for place in sorted({place for place, _ in found}):
            figures = (found[place, charge] / live.ticks(part) for charge in Class)
            table.add_row(part, place or "the bucket", *(f"{figure:.1f}" for figure in figures))
    for name, parts in (("tracking", [TRACKING]), ("landing", [LANDING]), ("all sensors", [TRACKING, LANDING, LOOKS])):
        total = dict.fromkeys(Class, 0.0)
        for part in parts:
            for call in by.get(part, ()):
                total[call.charge] += 1 / live.ticks(part)
        table.add_row(f"[bold]{name}[/]", "[bold]in all[/]", *(f"{total[charge]:.1f}" for charge in Class))
    yield table
    kinds = Counter((call.charge, call.kind, part) for part, found in by.items() for call in found)
    everywhere = Counter((call.charge, call.kind) for part, found in by_part(calls).items() for call in found)
    table = columns("kind", "charged as", right=[*PARTS, "whole demonstration"], gap=2, title="calls a tick, by kind")
    for (charge, kind), count in sorted(everywhere.items()):
        figures = (kinds[charge, kind, part] / live.ticks(part) for part in PARTS)
        table.add_row(kind, charge, *(f"{figure:.1f}" for figure in figures), f"{count:,}")
    yield table


def main() -> int:
    options = argparse.ArgumentParser(prog="make demo LAKE=gs", description=__doc__)
    options.add_argument("--folder", type=Path, default=Path("build/demo"))
    options.add_argument("--full", action="store_true", help="as large as `make demo FULL=1`")
    asked = options.parse_args()
    folder, terminal = asked.folder.resolve(), console()
    calls = folder.parent / f"{folder.name}-calls.jsonl"
    calls.parent.mkdir(parents=True, exist_ok=True)
    try:
        with counting_server(calls) as endpoint:
            lake = LakeSettings(uri=f"gs://{BUCKET}/lake", endpoint=endpoint)
            summary = run_demo(
                folder,
                SyntheticSource(jitter=timedelta(seconds=8)),
                terminal,
                SystemClock(),
                scale=FULL if asked.full else QUICK,
                lake=lake,
            )
            counted = calls_in(calls)
            live = Live.of(summary, lake, counted)
    except TidemarkError as error:
        print(f"tidemark: {error}", file=sys.stderr)
        return 1
    terminal.print(
        f"\nIn {live.end - live.start:.0f} s of live traffic {live.decisions} ticks of tracking decided and "
        f"{live.landings} ticks landed. Calls of landings are divided by these, all others by the decisions."
    )
    for table in tables_of(counted, live):
        terminal.print()
        terminal.print(table)
    terminal.print(f"\nEach call is a line of {calls}. The server has ended, and the bucket with it.", style="dim")
    return 0 if summary.is_right else 1


if __name__ == "__main__":
    sys.exit(main())

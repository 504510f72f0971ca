"""`make demo-shapes`: a small demonstration of each message shape, one after the other, and a line for each."""

import argparse
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from tidemark.local.demo.script import Scale, run_demo
from tidemark.local.demo.shapes.all_shapes import SHAPES
from tidemark.local.demo.shapes.shape import ShapeName
from tidemark.local.demo.summary import Summary
from tidemark.local.demo.synthetic_beats import SyntheticSource
from tidemark.pipeline.cli.output import columns, console
from tidemark.pipeline.clock import SystemClock, parse_duration
from tidemark.pipeline.errors import TidemarkError

SOURCE = SyntheticSource(jitter=timedelta(seconds=8), duplicates=0.05, broken=0.05)
"""Broken enough that each reason occurs in both variants within minutes."""

COUNTS = ("published", "landed", "quarantined", "rows", "differences", "late", "missed")


def counts_of(summary: Summary) -> list[str]:
    """The counts of a summary, as COUNTS names them."""
    found = summary.comparison
    counts = (
        summary.published.messages,
        found.landed,
        sum(found.quarantined.values()),
        found.rows,
        found.differences + found.quarantine_differences,
        found.late,
        found.missed,
    )
    return [f"{count:,}" for count in counts]


def main() -> int:
    options = argparse.ArgumentParser(prog="make demo-shapes", description=__doc__)
    options.add_argument("shapes", nargs="*", type=ShapeName, default=list(ShapeName), help="only these")
    options.add_argument("--folder", type=Path, default=Path("build/demo-shapes"))
    options.add_argument("--streams", type=int, default=200)
    options.add_argument("--backlog", type=parse_duration, default=timedelta(minutes=2))
    options.add_argument("--live", type=parse_duration, default=timedelta(minutes=1))
    options.add_argument("--idle-timeout", type=parse_duration, default=timedelta(seconds=30))
    asked = options.parse_args()
    terminal, all_are_right = console(), True
    table = columns("shape", right=COUNTS, gap=2)
    table.add_column("")
    for shape in asked.shapes:
        terminal.rule(shape)
        source = replace(SOURCE, shape=SHAPES[shape])
        try:
            summary = run_demo(
                (asked.folder / shape).resolve(),
                source,
                terminal,
                SystemClock(),
                scale=Scale(asked.streams, asked.backlog, asked.live, asked.idle_timeout),
            )
        except TidemarkError as error:
            print(f"tidemark: {error}", file=sys.stderr)
            table.add_row(shape, *("" for _ in COUNTS), "failed")
            all_are_right = False
            continue
        table.add_row(shape, *counts_of(summary), "right" if summary.is_right else "NOT RIGHT")
        all_are_right &= summary.is_right
    terminal.print(table)
    return 0 if all_are_right else 1


if __name__ == "__main__":
    sys.exit(main())

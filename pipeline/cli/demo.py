"""`tidemark demo`: the demonstration."""

from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from pipeline.cli.options import Span, duration_option
from pipeline.cli.output import console
from pipeline.clock import SystemClock
from pipeline.demo.synthetic_beats import SyntheticSource


def demo(
    folder: Annotated[Path, typer.Option(help="Where everything goes. The folder is emptied first.")] = Path(
        "build/demo"
    ),
    streams: Annotated[
        int, typer.Option(min=1, help="The number of streams, each with a heartbeat every 30s.")
    ] = 10_000,
    backlog: Annotated[
        timedelta, duration_option("The outage: how much is published before the pipeline starts.")
    ] = Span(minutes=20),
    live: Annotated[timedelta, duration_option("Live traffic after the backlog has landed.")] = Span(minutes=1),
) -> None:
    """Play an outage and live traffic on real parts, and compare every row with what was published."""
    from pipeline.demo.script import DemoPlan, run_demo  # needs DuckDB, which only the demonstration does

    source = SyntheticSource(streams=streams, jitter=timedelta(seconds=8))
    summary = run_demo(folder.resolve(), DemoPlan(backlog, live, source), console(), SystemClock())
    if not summary.is_right:
        raise typer.Exit(code=1)

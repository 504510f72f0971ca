"""`tidemark diffs`: rows of heartbeat_diffs, of a window or of a stream."""

from typing import Annotated, Any

import pyarrow.compute as pc
import typer

from pipeline.cli.options import AsJson, lake_of, no_window, window_named
from pipeline.cli.output import columns, console, print_json, safe
from pipeline.lake.tables.windowed import PARTITION
from pipeline.settings import load_settings

LEFT_OUT = ("publish_time", "message_id")
"""Columns that people do not see, beside the previous values: the comparisons must fit a terminal."""


def diffs(
    window: Annotated[
        str | None,
        typer.Option(help="A window's key (2026-11-21T05-20Z), or any time within it (2026-11-21T05:22:10Z)."),
    ] = None,
    stream: Annotated[str | None, typer.Option(help="A stream's id.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="The most rows to print; the newest are kept.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Print rows of heartbeat_diffs: of one window, of one stream, or of both."""
    if window is None and stream is None:
        raise typer.BadParameter("name a window or a stream")
    settings = load_settings()
    table = lake_of(settings).diffs().table.current()
    if table is None:
        raise no_window(settings)
    wanted: Any = pc.scalar(True)
    if window is not None:
        wanted &= pc.field(PARTITION) == window_named(settings, window).key
    if stream is not None:
        wanted &= pc.field("stream_id") == stream
    found = table.to_pyarrow_dataset().to_table(filter=wanted)
    found = found.sort_by([("event_time", "ascending"), ("stream_id", "ascending")])
    rows = found.slice(max(0, found.num_rows - limit))
    if as_json:
        for row in rows.to_pylist():
            print_json(row)
        return
    names = [name for name in rows.column_names if not name.startswith("previous_") and name not in LEFT_OUT]
    shown = columns(*names)
    for row in rows.select(names).to_pylist():
        shown.add_row(*("" if value is None else safe(value) for value in row.values()))
    terminal = console()
    terminal.print(shown)
    terminal.print(f"[dim]{rows.num_rows} of {found.num_rows} rows; --json has every column[/]")

"""What the lake holds: `tidemark status` in figures, and `tidemark diffs`, rows of heartbeat_diffs."""

from typing import Annotated, Any

import pyarrow.compute as pc
import typer

from tidemark.pipeline.cli.options import (
    MOST_ROWS,
    AsJson,
    AsJsonLines,
    lake_of,
    landing_only,
    no_window,
    option,
    window_named,
)
from tidemark.pipeline.cli.output import columns, console, facts_table, print_json, safe, shown_rows, warn
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import WindowNotComputed
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.observe.facts import read_status
from tidemark.pipeline.quality.computed import Stage, WindowProgress, words
from tidemark.pipeline.settings import load_settings

LEFT_OUT = ("publish_time", "message_id")
"""Columns that people do not see, beside the previous values: the comparisons must fit a terminal."""

KEY_WIDTH = len("2026-11-21T05-20Z")
"""A window's key is shown whole however many columns there are: it is what `--window` takes."""


def status(as_json: AsJson = False) -> None:
    """Show where the watermark stands, and what has landed and been computed."""
    settings, clock = load_settings(), SystemClock()
    status = read_status(lake_of(settings, clock), settings, clock.now(), clock)
    if as_json:
        print_json({**status.facts, **status.details})
        return
    terminal = console()
    terminal.print(f"[dim]{safe(settings.lake.uri)}[/]")
    terminal.print(facts_table({name.replace("_", " "): value for name, value in status.facts.items()}))
    warn(terminal, [*status.of_ticks, *status.of_runs])


@landing_only
def diffs(
    window: Annotated[
        str | None,
        option("A window's key (2026-11-21T05-20Z), or any time within it (2026-11-21T05:22:10Z)."),
    ] = None,
    stream: Annotated[str | None, option("A stream's id.")] = None,
    limit: Annotated[int, option("The most rows to print; the newest are kept.", min=1, max=MOST_ROWS)] = 20,
    as_json: AsJsonLines = False,
) -> None:
    """Print rows of heartbeat_diffs: of one window, of one stream, or of both."""
    if window is None and stream is None:
        raise typer.BadParameter("name a window or a stream")
    if stream is not None and not stream.isascii() and stream != stream.encode(errors="ignore").decode():
        raise typer.BadParameter(f"--stream {stream} is not UTF-8; no stream has such an id")
    settings = load_settings()
    named = None if window is None else window_named(settings, window)
    lake = lake_of(settings)
    table = lake.diffs().table.current()
    if table is None:
        raise no_window(settings)
    wanted: Any = pc.scalar(True)
    if named is not None:
        wanted &= pc.field(PARTITION) == named.key
    if stream is not None:
        wanted &= pc.field("stream_id") == stream
    found = table.to_pyarrow_dataset().to_table(filter=wanted)
    nothing = ""
    if named is not None and not found.num_rows:
        stage = WindowProgress(lake, settings.windowing, settings.windows).stage(named)
        if stage not in (Stage.COMPUTED, Stage.EMPTY):
            raise WindowNotComputed(words(stage, named))
        nothing = f"{words(stage, named)}; " if stage is Stage.EMPTY else ""
    found = found.sort_by([("event_time", "ascending"), ("stream_id", "ascending")])
    rows = found.slice(max(0, found.num_rows - limit))
    if as_json:
        for row in rows.to_pylist():
            print_json(row)
        return
    names = [name for name in rows.column_names if not name.startswith("previous_") and name not in LEFT_OUT]
    shown = columns(*names, rows=shown_rows(rows.select(names)))
    shown.columns[names.index(PARTITION)].min_width = KEY_WIDTH
    terminal = console()
    terminal.print(shown)
    terminal.print(f"[dim]{nothing}{rows.num_rows} of {found.num_rows} rows; --json has every column[/]")

"""`tidemark diffs`: rows of heartbeat_diffs, of a custom table, or what changed in either."""

from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from tidemark.pipeline.cli.here import Here, here, no_window
from tidemark.pipeline.cli.look.corrections import show_corrections
from tidemark.pipeline.cli.options import AsJson, InWindow, Limit, apart_from, only_with, option, since_option
from tidemark.pipeline.cli.options import window_named as named_window
from tidemark.pipeline.cli.output import print_rows
from tidemark.pipeline.errors import LakeError, WindowNotComputed
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.quality.gate import Stage, WindowProgress, words

LEFT_OUT = ("publish_time", "message_id")
"""Columns that only --json has, like the previous values: the comparisons must fit a terminal."""


def diffs(
    window: InWindow = None,
    stream: Annotated[str | None, option("Only this stream, by its id; in all windows without --window.")] = None,
    table: Annotated[str | None, option("A custom table instead of heartbeat_diffs.")] = None,
    corrections: Annotated[bool, option("Instead, what changed in recomputed windows.", "--corrections")] = False,
    since: Annotated[Any, since_option("With --corrections: only windows replaced since")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Print computed rows, or what changed in them.

    Without --window and --stream: the newest window.

    With --corrections: the newest changes, each row as it was and as it is. Runs record them if windows.corrections is
    true. --json prints one object per line, and nothing without rows.
    """
    at = here("diffs")
    if corrections:
        apart_from("--corrections", stream=stream)
        show_corrections(at, table, window, since, limit, as_json=as_json)
        return
    only_with("--corrections", since=since)
    if table not in (None, HEARTBEAT_DIFFS):
        apart_from("--table", stream=stream)
        _of_custom(at, table, window, limit, as_json=as_json)
        return
    if stream is not None and not stream.isascii() and stream != stream.encode(errors="ignore").decode():
        raise typer.BadParameter(f"--stream {stream} is not UTF-8; no stream has such an id")
    _of_diffs(at, window, stream, limit, as_json=as_json)


def _of_diffs(at: Here, window: str | None, stream: str | None, limit: int, *, as_json: bool) -> None:
    named = None if window is None else named_window(at.settings, window)
    stored = at.lake.diffs().table.current()
    if stored is None:
        raise no_window(at.settings)
    key = named.key if named else None if stream else max(at.lake.diffs().computed(), default=None)
    wanted: Any = pc.scalar(True)
    if key is not None:
        wanted &= pc.field(PARTITION) == key
    if stream is not None:
        wanted &= pc.field("stream_id") == stream
    found = stored.to_pyarrow_dataset().to_table(filter=wanted)
    nothing = ""
    if named is not None and not found.num_rows:
        stage = WindowProgress(at.lake, at.settings.windowing, at.settings.windows).stage(named)
        if stage not in (Stage.COMPUTED, Stage.EMPTY):
            raise WindowNotComputed(words(stage, named))
        nothing = f"{words(stage, named)}; " if stage is Stage.EMPTY else ""
    found = found.sort_by([("event_time", "ascending"), ("stream_id", "ascending")])
    rows = found.slice(max(0, found.num_rows - limit))
    names = [name for name in rows.column_names if not name.startswith("previous_") and name not in LEFT_OUT]
    said = f"{nothing}{rows.num_rows} of {found.num_rows} rows; --json has every column"
    print_rows(rows.to_pylist(), said, names, whole=PARTITION, as_json=as_json)


def _of_custom(at: Here, name: str, window: str | None, limit: int, *, as_json: bool) -> None:
    table = at.lake.own_table(name)
    made = table.made()
    if not made:
        raise LakeError(
            f"no window of {name} is computed in {at.settings.lake.uri}; `tidemark status --all` lists the tables"
        )
    key = max(made) if window is None else window
    if key not in made:
        raise LakeError(f"window {key} of {name} is not computed; the newest is {max(made)}")
    found: pa.Table = table.read([key])
    rows = found.slice(0, limit)
    said = f"{rows.num_rows} of {found.num_rows} rows of window {key}"
    print_rows(rows.to_pylist(), said, rows.column_names, as_json=as_json)

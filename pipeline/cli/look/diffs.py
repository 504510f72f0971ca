"""`tidemark diffs`: print rows of heartbeat_diffs or of a custom table, or the changes in either."""

import json
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc
import typer

from tidemark.pipeline.cli.here import Here, here, no_window
from tidemark.pipeline.cli.options import (
    AsJson,
    InWindow,
    Limit,
    apart_from,
    moment,
    only_with,
    option,
    since_option,
    window_named,
)
from tidemark.pipeline.cli.output import console, grid, print_json, print_rows, safe
from tidemark.pipeline.clock import iso
from tidemark.pipeline.compute.table_definition import read_table
from tidemark.pipeline.errors import InvalidSettings, LakeError, WindowNotComputed
from tidemark.pipeline.figures import counted
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS
from tidemark.pipeline.lake.tables.corrections import Change, Sought
from tidemark.pipeline.lake.tables.windowed import PARTITION
from tidemark.pipeline.quality.gate import Stage, stage_of, words
from tidemark.pipeline.windows import KEY_FORMAT

LEFT_OUT = ("publish_time", "message_id")
"""Columns of heartbeat_diffs that are printed only with --json, so that the table fits a terminal."""


def diffs(
    window: InWindow = None,
    stream: Annotated[str | None, option("Only this stream, by its id; without --window, in all windows.")] = None,
    table: Annotated[str | None, option("Print this custom table instead of heartbeat_diffs.")] = None,
    corrections: Annotated[bool, option("Print only the changes in recomputed windows.", "--corrections")] = False,
    since: Annotated[datetime | None, since_option("With --corrections: only windows replaced since")] = None,
    limit: Limit = 20,
    as_json: AsJson = False,
) -> None:
    """Print computed rows, or the changes in recomputed windows.

    Without --window and --stream, prints the newest window.

    With --corrections, prints the newest changes, each row with its old and new values. Runs record changes if
    windows.corrections is true. --json prints one object per line, and nothing if there are no rows.
    """
    at = here("diffs")
    if corrections:
        apart_from("--corrections", stream=stream)
        _corrections(at, table, window, since, limit, as_json=as_json)
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
    named = None if window is None else window_named(at.settings, window)
    table = at.lake.diffs().table
    if (stored := table.current()) is None:
        raise no_window(at.settings)
    key = named.key if named else None if stream is not None else max(at.lake.diffs().computed(), default=None)
    every, wanted = [field.name for field in stored.schema().fields], pc.field("stream_id") == stream
    found = table.rows(stored, every, None if stream is None else wanted, None if key is None else [key])
    nothing = ""
    if named is not None and not found.num_rows:
        if (stage := stage_of(named, at.lake, at.settings)) not in (Stage.COMPUTED, Stage.EMPTY):
            raise WindowNotComputed(words(stage, named))
        nothing = f"{words(stage, named)}; " if stage is Stage.EMPTY else ""
    elif key is not None and not found.num_rows:
        filled = pc.max(table.listed(stored).filter(pc.field("num_records") > 0)[f"partition.{PARTITION}"]).as_py()
        nothing = _empty(key, filled)
    found = found.sort_by([("event_time", "ascending"), ("stream_id", "ascending")])
    rows = found.slice(max(0, found.num_rows - limit))
    names = [name for name in rows.column_names if not name.startswith("previous_") and name not in LEFT_OUT]
    said = f"{nothing}{rows.num_rows} of {counted(found.num_rows, 'row')}; --json has every column"
    print_rows(rows.to_pylist(), said, names, whole=PARTITION, as_json=as_json)


def _of_custom(at: Here, name: str, window: str | None, limit: int, *, as_json: bool) -> None:
    table = at.lake.own_table(name)
    if not (made := table.made()):
        raise LakeError(
            f"no window of {name} is computed in {at.settings.lake.uri}; `tidemark status --all` lists the tables"
        )
    key = max(made) if window is None else _key(at, name, window)
    if key not in made:
        raise LakeError(f"window {key} of {name} is not computed; the newest is {max(made)}")
    found: pa.Table = table.read([key])
    rows, nothing = found.slice(0, limit), ""
    if window is None and not found.num_rows:
        nothing = _empty(key, max((other for other, one in made.items() if one.rows), default=None))
    said = f"{nothing}{rows.num_rows} of {counted(found.num_rows, 'row')} of window {key}; --json has every column"
    print_rows(rows.to_pylist(), said, rows.column_names, as_json=as_json)


def _empty(newest: str, filled: str | None) -> str:
    """Return a note that the newest window has no rows. It names the newest window that has rows, if there is one."""
    other = "nor has any other window" if filled is None else f"--window {filled} prints the newest one with rows"
    return f"{newest}, the newest window, has no rows; {other}; "


JSON_COLUMNS = ("key", "old_row", "new_row")


def _corrections(
    at: Here, table: str | None, window: str | None, since: datetime | None, limit: int, *, as_json: bool
) -> None:
    settings, lake = at.settings, at.lake
    known = {HEARTBEAT_DIFFS, *settings.tables, *lake.own_tables()}
    if table is not None and table not in known:
        raise InvalidSettings(f"there is no table {table}; the tables are {', '.join(sorted(known))}")
    rows = lake.corrections().newest(Sought(table, window and _key(at, table, window), since), limit)
    if as_json:
        for row in rows:
            print_json({**row, **{name: _object(row[name]) for name in JSON_COLUMNS}}, exact=True)
        return
    terminal = console()
    for row in rows:
        terminal.print(f"\n[bold]{safe(_title(row))}[/]")
        shown = ((f"  [dim]{safe(name)}[/]", safe(old), safe(new)) for name, old, new in _shown(row))
        terminal.print(grid(3, shown))
    if not rows:
        is_every = table is None and window is None and since is None
        said = "no corrections were recorded" if is_every else "no correction matches"
        off = "" if settings.windows.corrections else "; runs record them if windows.corrections is true"
        terminal.print(f"{said}{off}")


def _key(at: Here, table: str | None, text: str) -> str:
    """Return the key of the window of `table` that `text` names. `text` is the key, or a time in the window. Only the
    form of a key is checked, because a custom table may have had windows of any length."""
    with suppress(ValueError):
        datetime.strptime(text, KEY_FORMAT)  # noqa: DTZ007 (only checked)
        return text
    settings = at.settings
    windowing = settings.windowing
    if table is not None and table in settings.tables:
        windowing = read_table(settings, table).windowing(settings.windows)
    return windowing.containing(moment(text, "neither a window's key nor a time")).key


def _title(row: dict[str, Any]) -> str:
    window = row["window"] or "its windows"
    at: datetime | None = row["corrected_at"]
    when = "" if at is None else f", replaced at {iso(at)}"
    return f"{row['table']} {window}: {row['change']}{when} (version {row['table_version']})"


def _shown(row: dict[str, Any]) -> list[tuple[str, object, object]]:
    if row["change"] == Change.UNKNOWN:
        return [("why", row["detail"], "")]
    key, old, new = (_object(row[name]) or {} for name in JSON_COLUMNS)
    of_key: list[tuple[str, object, object]] = [(name, _text(value), "") for name, value in key.items()]
    names = [name for name in {**old, **new} if name not in key]
    if row["change"] == Change.CHANGED:
        differing = (name for name in names if old.get(name) != new.get(name))
        return [*of_key, *((name, _text(old.get(name)), f"→ {_text(new.get(name))}") for name in differing)]
    return [*of_key, *((name, _text((old or new)[name]), "") for name in names)]


def _text(value: object) -> str:
    return "—" if value is None else value if isinstance(value, str) else json.dumps(value)


def _object(text: str | None) -> dict[str, Any] | None:
    found: dict[str, Any] | None = None if text is None else json.loads(text)
    return found

"""`tidemark diffs --corrections`: what changed in recomputed windows."""

import json
from datetime import datetime, timedelta
from typing import Any

import typer

from tidemark.pipeline.cli.here import Here
from tidemark.pipeline.cli.options import since_when
from tidemark.pipeline.cli.output import console, grid, print_json, safe
from tidemark.pipeline.clock import iso
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.layout import HEARTBEAT_DIFFS
from tidemark.pipeline.lake.tables.corrections import Change, Sought
from tidemark.pipeline.windows import KEY_FORMAT

JSON_COLUMNS = ("key", "old_row", "new_row")


def show_corrections(
    at: Here, table: str | None, window: str | None, since: timedelta | datetime | None, limit: int, *, as_json: bool
) -> None:
    """Print the newest corrections: of one table, of one window by its key, or since a moment."""
    settings, lake = at.settings, at.lake
    known = {HEARTBEAT_DIFFS, *settings.tables, *lake.own_tables()}
    if table is not None and table not in known:
        raise InvalidSettings(f"there is no table {table}; there are {', '.join(sorted(known))}")
    meant = Sought(table, window and _key(window), since_when(since, at.clock.now()))
    rows = lake.corrections().newest(meant, limit)
    if as_json:
        for row in rows:
            print_json({**row, **{name: _object(row[name]) for name in JSON_COLUMNS}}, exact=True)
        return
    terminal = console()
    for row in rows:
        terminal.print(f"\n[bold]{safe(_title(row))}[/]")
        told = ((f"  [dim]{safe(name)}[/]", safe(old), safe(new)) for name, old, new in _shown(row))
        terminal.print(grid(3, told))
    if not rows:
        off = "" if settings.windows.corrections else "; runs note them if windows.corrections is true"
        terminal.print(f"no corrections were noted{off}")


def _key(text: str) -> str:
    """Validate a window's key. Windows of custom tables may have any length."""
    try:
        datetime.strptime(text, KEY_FORMAT)  # noqa: DTZ007 (only checked)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a window's key such as 2026-11-21T05-20Z") from error
    return text


def _title(row: dict[str, Any]) -> str:
    window = row["window"] or "its windows"
    at: datetime | None = row["corrected_at"]
    when = "" if at is None else f", replaced at {iso(at)}"
    return f"{row['table']} {window}: {row['change']}{when} (version {row['table_version']})"


def _shown(row: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Return names with old and new values: the key's, and what differs between the rows. An added or removed row is
    shown whole."""
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

"""Output of the commands: JSON for scripts, tables and lines for people, and values as text.

All external text, such as stream names, paths and errors, is passed through `safe` or `printable`, so that neither Rich
nor the terminal interprets it. JSON contains it unchanged, with JSON's escapes for characters outside ASCII.
"""

import base64
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tidemark.pipeline.clock import format_duration, iso
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.figures import counted
from tidemark.pipeline.phrases import printable
from tidemark.pipeline.windows import Window

FILE_WIDTH = 150
"""Width of a line that is written to a file or a pipe. At Rich's default of 80, table cells would wrap."""


LEAST_OF_NAME, LEAST_OF_VALUE = 12, 24
"""`print_rows` cuts a column's name to at least LEAST_OF_NAME characters, and its values to at least LEAST_OF_VALUE: a
time takes 24. In a very narrow terminal, it cuts the first column further."""


class QuietConsole(Console):
    """A console that prints nothing. Unlike Rich's quiet console, it skips the rendering, which takes a millisecond
    per message."""

    def print(self, *_: Any, **__: Any) -> None:
        """Print nothing."""


def console(*, quiet: bool = False) -> Console:
    """Return the console for human-readable output. It is as wide as the terminal, or FILE_WIDTH without a terminal.
    With `quiet`, it prints nothing."""
    made = QuietConsole if quiet else Console
    return made(width=None if sys.stdout.isatty() else FILE_WIDTH, highlight=False, emoji=False)


def printed(facts: Mapping[str, Any], *, as_json: bool, exact: bool = False) -> Console:
    """Print a command's result as JSON if `as_json`. Return the console for its human-readable output, which prints
    nothing if `as_json`."""
    if as_json:
        print_json(facts, exact=exact)
    return console(quiet=as_json)


def safe(value: object, at_most: int | None = None) -> str:
    """Convert an external value to a string that Rich prints literally, without control characters. A string longer
    than `at_most` is cut, and ends with an ellipsis."""
    text = text_of(value)
    if at_most is not None and len(text) > at_most:
        text = f"{text[: at_most - 1]}…"
    return escape(printable(text))


def safe_lines(text: str) -> str:
    """Like `safe`, but for a string of several lines. All lines except the first are indented."""
    return "\n  ".join(safe(line.strip()) for line in text.strip().split("\n"))


def _time(moment: datetime, *, exact: bool = False) -> str:
    """Like `iso`, but formats a time without a time zone as it is, without converting it to UTC."""
    return iso(moment, exact=exact) if moment.tzinfo else moment.isoformat()


def text_of(value: object) -> str:
    """Format a value as human-readable text."""
    match value:
        case None:
            return "—"
        case datetime():
            return _time(value)
        case timedelta():
            return format_duration(value)
        case dict():
            return ", ".join(f"{count} {name}" for name, count in sorted(value.items())) or "none"
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:.6g}"
        case _:
            return str(value)


def key_range(first: str | None, last: str | None) -> str:
    """Format a range of windows by the keys of the first and the last window."""
    return f"{first}" if first == last else f"{first} to {last}"


def print_json(facts: Mapping[str, Any], *, exact: bool = False) -> None:
    """Print one line of JSON. A data class becomes an object with its fields, and a window becomes its key. Durations
    are in seconds. Times have milliseconds or, with `exact`, microseconds.

    A number that JSON cannot express becomes a string: `"Infinity"`, `"-Infinity"` or `"NaN"`. Bytes are base64.
    """

    def plain(value: object) -> Any:
        match value:
            case bytes():
                return base64.b64encode(value).decode()
            case datetime():
                return _time(value, exact=exact)
            case timedelta():
                return value.total_seconds()
            case Window():
                return value.key
            case Mapping():
                return dict(value)
            case _ if is_dataclass(value):
                return {field.name: getattr(value, field.name) for field in fields(value)}
        return str(value)

    # The second pass makes strings of the numbers that Python writes, but JSON cannot express.
    strict = json.loads(json.dumps(facts, default=plain), parse_constant=str)
    print(json.dumps(strict, allow_nan=False))


def grid(columns: int, rows: Iterable[Iterable[str]], *, gap: int = 2) -> Table:
    """Build a table without a header. The rows are in Rich's markup. The columns wrap, the widest first."""
    table = Table.grid(padding=(0, gap))
    for _ in range(columns):
        table.add_column(overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def facts_table(facts: Mapping[str, object]) -> Table:
    """Build a table of names in bold and their values. Both may be external text. Underscores in names become
    spaces."""
    return grid(2, ((f"[bold]{safe(name.replace('_', ' '))}[/]", safe(value)) for name, value in facts.items()), gap=3)


def columns(
    *left: str,
    right: Iterable[str] = (),
    rows: Iterable[Iterable[object]] = (),
    gap: int = 1,
    title: str | None = None,
    folds: bool = False,
) -> Table:
    """Build a table with a bold header and no borders: first the left-aligned columns, then the right-aligned columns.
    Long values in left-aligned columns are cut or, with `folds`, wrapped. Right-aligned columns wrap. Without `folds`,
    a long left-aligned value may leave them no width. The rows may contain external text."""
    table = Table(box=None, header_style="bold", padding=(0, gap), title=title)
    for name in left:
        table.add_column(safe(name), no_wrap=not folds, overflow="fold" if folds else "ellipsis")
    for name in right:
        table.add_column(safe(name), justify="right", overflow="fold")
    for row in rows:
        table.add_row(*map(safe, row))
    return table


def print_rows(
    rows: Sequence[Mapping[str, Any]], foot: str, names: Sequence[str] = (), *, whole: str = "", as_json: bool = False
) -> None:
    """Print rows as a table or, with `as_json`, as one JSON object per line, with exact times. The table has the
    columns `names`, by default those of the first row, as far as they fit legibly. A null is an empty cell. The column
    `whole` is never cut or left out. The text `foot` follows the table."""
    if as_json:
        for row in rows:
            print_json(row, exact=True)
        return
    terminal, every = console(), names or list(rows[0] if rows else ())
    cells = {name: ["" if row[name] is None else text_of(row[name]) for row in rows] for name in every}
    values = {name: max((cell_len(printable(cell)) for cell in cells[name]), default=0) for name in every}
    wanted = {name: max(cell_len(name), values[name]) for name in every}
    least = {name: min(wanted[name], max(LEAST_OF_NAME, min(LEAST_OF_VALUE, values[name]))) for name in every}
    least |= {whole: wanted[whole]} if whole else {}
    others, room = [name for name in every if name != whole], terminal.width - (least[whole] + 2 if whole else 0)
    if others:
        least[others[0]] = max(1, min(least[others[0]], room - 2))
    fits = max(1, sum(end <= room for end in accumulate(least[name] + 2 for name in others)))  # 2: the padding
    hidden, names = others[fits:], [name for name in every if name not in others[fits:]]
    if hidden:
        foot += f"; left out for lack of width: {counted(len(hidden), 'column')} from {hidden[0]} on"
    table = columns(*names, rows=zip(*(cells[name] for name in names), strict=True))
    room = terminal.width - sum(least[name] + 2 for name in names)
    for name, column in zip(names, table.columns, strict=True):
        more = max(0, min(room, wanted[name] - least[name]))
        column.width, room = least[name] + more, room - more
    if names:
        terminal.print(table)
    terminal.print(f"[dim]{safe(foot)}[/]")


def write_text(file: Path, text: str, what: str, named_by: str) -> None:
    """Write `text` to the file that was given with the option `named_by`. `what` names the text in the error message.
    Raises TidemarkError if the file cannot be written."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TidemarkError(
            f"the {what} cannot be written to {file} ({error}); name another file with {named_by}"
        ) from error


def warn(terminal: Console, *sentences: str, apart: bool = False) -> None:
    """Print warnings, which may contain external text. With `apart`, an empty line precedes each warning."""
    for sentence in sentences:
        if apart:
            terminal.print()
        terminal.print(f"[yellow]warning[/] {safe(sentence)}", soft_wrap=not apart)


@contextmanager
def progress_bar(*shown: ProgressColumn, quiet: bool = False) -> Iterator[Progress]:
    """Show a temporary progress bar on standard error. Show nothing with `quiet`, or if standard error is not a
    terminal."""
    target = Console(stderr=True)
    bars = (TextColumn("{task.description}"), BarColumn(), *(shown or (TimeElapsedColumn(),)))
    with Progress(*bars, console=target, transient=True, disable=quiet or not target.is_terminal) as progress:
        yield progress

"""The options that several commands have, and functions that parse the values of options."""

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.pipeline.clock import EPOCH, SystemClock, TooLong, format_duration, iso, parse_duration
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.windows import Window

LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""Times given as options must be before this time, so that times computed from them stay before the year 10000."""

MOST_ROWS = 1_000_000
"""Maximum value of `--limit`, because all rows are held in memory before they are printed."""


class Span(timedelta):
    """The default value of a duration option. `--help` shows it as `30s`, not as `0:00:30`."""

    def __str__(self) -> str:
        return format_duration(self)


def option(help_text: str, *names: str, **more: Any) -> Any:
    """Define an option. `names` are needed only if they differ from the parameter's name; `more` are arguments of
    `typer.Option`."""
    return typer.Option(*names, help=help_text, **more)


def duration(text: str | timedelta) -> timedelta:
    """Parse a duration such as `10s` or `5m`. A timedelta is returned unchanged."""
    try:
        return parse_duration(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def positive(text: str | timedelta) -> timedelta:
    """Parse a duration that is longer than zero."""
    if (read := duration(text)) <= timedelta(0):
        raise typer.BadParameter(f"{text} must be longer than zero")
    return read


NEARLY_A_KEY = re.compile(r"(\d{4}-\d\d-\d\dT\d\d)(-\d\d)")
"""A window's key without its final Z. It is ambiguous, because in ISO 8601 it is a time with an offset in hours."""


def moment(text: str, otherwise: str = "not a time") -> datetime:
    """Parse a time with its time zone, and convert it to UTC. If `text` is not such a time, the error message
    is "`text` is `otherwise`", followed by an example."""
    if nearly := NEARLY_A_KEY.fullmatch(text):
        hour, offset = nearly.groups()
        raise typer.BadParameter(
            f"{text} is ambiguous: write {text}Z for the window with that key, or {hour}:00{offset}:00 for the time"
        )
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is {otherwise} such as 2026-11-21T05:22:10Z") from error
    if read.tzinfo is None:
        raise typer.BadParameter(f"{text} has no time zone; write it as {read.isoformat()}Z")
    if not EPOCH <= read < LATEST:
        raise typer.BadParameter(f"{text} is not between the years {EPOCH.year} and {LATEST.year} in UTC")
    return read.astimezone(UTC)


def past(text: str, otherwise: str = "not a time") -> datetime:
    """Like `moment`, but refuses a time in the future."""
    if (read := moment(text, otherwise)) > (now := SystemClock().now()):
        raise typer.BadParameter(f"{text} is in the future; it is {iso(now)} now")
    return read


def ago(text: str) -> datetime:
    """Parse a past time, or a duration such as `2h`, which is subtracted from the current time. The result is never
    before the epoch."""
    try:
        before = parse_duration(text)
    except TooLong as error:
        raise typer.BadParameter(str(error)) from error
    except ValueError:
        return past(text, "neither a duration such as 2h nor a time")
    now = SystemClock().now()
    return now - min(before, now - EPOCH)


def share(text: str | float) -> float:
    """Parse a fraction, such as `0.0001` or `0.01%`. It must be at least 0 and less than 1."""
    written = str(text)
    try:
        read = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a share; write it as 0.01% or 0.0001") from error
    if not 0 <= read < 1:
        raise typer.BadParameter(f"{text} must be at least 0 and less than 1 (100%)")
    return read


def duration_option(help_text: str, *names: str, parser: Any = duration, **more: Any) -> Any:
    """Define an option that takes a duration."""
    return option(help_text, *names, parser=parser, metavar="<duration>", **more)


def time_option(help_text: str, *names: str, parser: Any = moment, **more: Any) -> Any:
    """Define an option that takes a time with its time zone."""
    return option(help_text, *names, parser=parser, metavar="<time>", **more)


def since_option(help_text: str, **more: Any) -> Any:
    """Define an option that takes a past time with its time zone, or a duration before now. Its value is the time."""
    return option(f"{help_text}: 2h, or a time with its zone.", parser=ago, metavar="<duration|time>", **more)


AsJson = Annotated[bool, option("Print JSON, for scripts.", "--json")]
DryRun = Annotated[bool, option("Change nothing; say what would be done.", "--dry-run")]
From = Annotated[str | None, option("The first window: its key (2026-11-21T05-20Z), or a time in it.", "--from")]
To = Annotated[str | None, option("The last window: its key, or a time in it.", "--to")]
InWindow = Annotated[str | None, option("Only this window: its key (2026-11-21T05-20Z), or a time in it.", "--window")]
Limit = Annotated[int, option("Maximum number of rows to print.", min=1, max=MOST_ROWS)]


def only_with(main: str, **given: object) -> None:
    """Refuse options that were given without the option `main`, on which they depend. `given` maps their names to their
    values."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(f"it only works with {main}", param_hint=f"--{name.replace('_', '-')}")


def apart_from(main: str, **given: object) -> None:
    """Refuse options that were given together with the option `main`. `given` maps their names to their values."""
    for name, value in given.items():
        if value:
            raise typer.BadParameter(f"it cannot be combined with {main}", param_hint=f"--{name.replace('_', '-')}")


def refuse_output(name: str, file: Path | None, trace: Path | None) -> None:
    """Refuse the file of the option `name`, before the work begins, if it cannot be written or is the trace."""
    if file is None:
        return
    why, folder = "", file.parent
    try:
        if file.is_dir():
            why = "is a folder; name a file"
        elif not folder.is_dir():
            why = f"would be in {folder}, which is not a folder; name a file in an existing folder"
        elif not os.access(file if file.exists() else folder, os.W_OK):
            why = "cannot be written; name a file that you may write"
        elif trace is not None and file.exists() and trace.exists() and file.samefile(trace):
            why = "is the trace itself; name another file"
    except OSError as error:  # such as a name that is too long
        why = f"cannot be written: {error.strerror}"
    if why:
        raise typer.BadParameter(f"{name} {file} {why}")


def window_named(settings: Settings, text: str) -> Window:
    """Return the window that an option names: by its key, or by any time in the window."""
    try:
        window = settings.windowing.named(text)
    except ValueError as error:
        if text.endswith("Z") and NEARLY_A_KEY.fullmatch(text[:-1]):
            raise typer.BadParameter(str(error)) from error
        window = settings.windowing.containing(moment(text, "neither a window's key nor a time"))
    if not EPOCH <= window.start < LATEST:
        raise typer.BadParameter(f"{text} is not between the years {EPOCH.year} and {LATEST.year}")
    return window

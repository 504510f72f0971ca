"""What the commands share on the way in: options, how their values are read, and the lake that they open."""

import os
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.pipeline.clock import EPOCH, Clock, SystemClock
from tidemark.pipeline.durations import format_duration, parse_duration
from tidemark.pipeline.errors import BaseReadByOthers, LakeError
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.settings import Settings, load_settings
from tidemark.pipeline.windows import Window


def option(help_text: str, *names: str, **more: Any) -> Any:
    """An option: what `--help` says of it, its names if they are not those of the parameter, and typer's own words."""
    return typer.Option(*names, help=help_text, **more)


AsJson = Annotated[bool, option("Print JSON, for scripts: one object.", "--json")]
AsJsonLines = Annotated[bool, option("Print JSON, for scripts: one object a line.", "--json")]
"""For commands that list rows: each row is an object, and without rows nothing is printed."""


LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""No option names a later time: what is reckoned from it must stay before the year 10000."""


MOST_ROWS = 1_000_000
"""The largest `--limit`: all rows are held in memory before they are printed."""


class Span(timedelta):
    """The default of a duration option. `--help` shows it as it is typed, `30s`; a timedelta would read `0:00:30`."""

    def __str__(self) -> str:
        return format_duration(self)


def duration(text: str | timedelta) -> timedelta:
    """Read a duration such as `10s` or `5m`. A default, which comes by here too, is returned as it is."""
    try:
        return parse_duration(text) if isinstance(text, str) else text
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def positive(text: str | timedelta) -> timedelta:
    """Read a duration that is longer than zero."""
    read = duration(text)
    if read <= timedelta(0):
        raise typer.BadParameter(f"{text} is no time at all; it must be longer")
    return read


NEARLY_A_KEY = re.compile(r"(\d{4}-\d\d-\d\dT\d\d)(-\d\d)")
"""A window's key without its Z. ISO 8601 reads a time with an offset of hours in it."""


def moment(text: str, otherwise: str = "not a time") -> datetime:
    """Read a time, which must have a time zone. The error says that the text is `otherwise`."""
    if nearly := NEARLY_A_KEY.fullmatch(text):
        hour, offset = nearly.groups()
        raise typer.BadParameter(
            f"{text} may be a window or a time; write {text}Z for the window with that key, or {hour}:00{offset}:00 "
            "for the time"
        )
    try:
        read = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is {otherwise} such as 2026-11-21T05:22:10Z") from error
    if read.tzinfo is None:
        raise typer.BadParameter(f"{text} has no time zone; write it as {read.isoformat()}Z")
    try:
        read = read.astimezone(UTC)
    except OverflowError:
        read = datetime.max.replace(tzinfo=UTC)
    if not EPOCH <= read < LATEST:
        raise typer.BadParameter(f"{text} is not between the years {EPOCH.year} and {LATEST.year} in UTC")
    return read


def ago(text: str) -> timedelta | datetime:
    """Read a duration such as `2h`, or a time with its zone."""
    try:
        return parse_duration(text)
    except ValueError:
        return moment(text, "neither a duration such as 2h nor a time")


def share(text: str | float) -> float:
    """Read a share from 0 up to, but not including, 1: `0.0001` or `0.01%`."""
    written = str(text)
    try:
        read = float(written.removesuffix("%")) / (100 if written.endswith("%") else 1)
    except ValueError as error:
        raise typer.BadParameter(f"{text} is not a share; write it as 0.01% or 0.0001") from error
    if not 0 <= read < 1:
        raise typer.BadParameter(f"{text} is not from 0 up to, but not including, 1 (100%)")
    return read


def duration_option(help_text: str, *names: str, parser: Any = duration, **more: Any) -> Any:
    """An option that takes a duration."""
    return option(help_text, *names, parser=parser, metavar="<duration>", **more)


def time_option(help_text: str, *names: str, **more: Any) -> Any:
    """An option that takes a time with its zone."""
    return option(help_text, *names, parser=moment, metavar="<time>", **more)


def since_option(what: str) -> Any:
    """An option that takes how long ago, or since when: what `since_when` makes a time of."""
    help_text = f"Only {what} since: 2h, or a time with its zone."
    return option(help_text, parser=ago, metavar="<duration|time>")


def since_when(since: timedelta | datetime | None, now: datetime) -> datetime | None:
    """The moment of such an option; no duration reaches before the epoch."""
    return now - min(since, now - EPOCH) if isinstance(since, timedelta) else since


def window_named(settings: Settings, text: str) -> Window:
    """The window that an option names by its key or by any time within it."""
    try:
        try:
            window = settings.windowing.named(text)
        except ValueError:
            window = settings.windowing.containing(moment(text, "neither a window's key nor a time"))
    except OverflowError:
        window = None
    if window is None or not EPOCH <= window.start < LATEST:
        raise typer.BadParameter(f"{text} is not between the years {EPOCH.year} and {LATEST.year}")
    return window


def config_file() -> Path:
    """The settings file that is in force."""
    return Path(os.environ.get("TIDEMARK_CONFIG", "tidemark.toml")).resolve()


def lake_of(settings: Settings, clock: Clock | None = None) -> OpenLake:
    """The configured lake, of which a command opens each part once."""
    return OpenLake(settings.lake, settings.message.kinds, clock or SystemClock())


def landing_only(command: Callable[..., None]) -> Callable[..., None]:
    """The command, which is refused where nothing lands: with `pubsub.attach`."""

    @wraps(command)
    def refusing(*given: Any, **named: Any) -> None:
        refuse_attached(load_settings(), command.__name__)
        command(*given, **named)

    return refusing


def refuse_attached(settings: Settings, command: str) -> None:
    """Raise BaseReadByOthers where nothing lands: with `pubsub.attach`."""
    pubsub = settings.pubsub
    if pubsub.attach:
        raise BaseReadByOthers(
            f"`tidemark {command}` is about what tidemark lands, and with pubsub.attach = true somebody "
            f"else reads {pubsub.base_path}: nothing lands, and only its reader can let messages go"
        )


def no_decision(settings: Settings) -> LakeError:
    """The error of a command that needs a decision, on a lake without one."""
    return LakeError(
        f"no decision has been made in {settings.lake.uri} yet; start the pipeline with "
        f"`tidemark {'attach' if settings.pubsub.attach else 'up'}`, and try again "
        "after the first tick"
    )


def no_window(settings: Settings) -> LakeError:
    """The error of a command that needs a computed window, on a lake without one."""
    return LakeError(f"no window has been computed in {settings.lake.uri} yet; `tidemark status` shows what is waiting")

"""Definitions of custom tables over closed windows, in Python or SQL."""

import hashlib
import importlib.util
import inspect
import linecache
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from keyword import kwlist
from pathlib import Path
from string import Formatter
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tidemark.pipeline.clock import EPOCH, format_duration, parse_duration
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.lake.layout import HEARTBEATS, PARTITIONS
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LENGTHS, TableSettings, WindowSettings
from tidemark.pipeline.windows import Window, Windowing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

NAME = re.compile(r"[a-z][a-z0-9_]{0,59}")
TAKEN = {
    *(*PARTITIONS, "corrections", "watermark", "watermark_tuning", "tracking_histogram", "windows", "backlog"),
    *("topic", "base_subscription", "tracking_subscription", "windows_by_name"),
    *("heartbeats_missed", "heartbeats_late", "heartbeats_lost_outside", "heartbeats_passed_over"),
    *("heartbeats_fields_present", "heartbeats_subscriptions", "quarantine_quarantine_share"),
    "watermark_watermark_age",
}
"""Names that custom tables may not use, because tidemark uses them for tables, assets, jobs or the ops of checks."""

JOBS = {
    *("compute_windows", "compute_windows_by_name", "housekeeping", "ingest", "repair", "requeue"),
    *("tune_watermark", "keep_house", "judge_again", "look_and_compute_again", "read_rounds"),
    *("context", "conf", "config", "meta", "dict", "arg_dict", "input_arg_dict", "output_arg_dict"),
    *("int", "str", "float", "bool", "input", "output", "type", *kwlist),
}
"""Names of jobs and ops, and the names that Dagster reserves. Custom tables may use them only if `dagster.name` is set,
because all jobs and ops then have that name as a prefix."""

MOST_WINDOWS_REACHED = 100
"""Maximum number of windows that may read the same heartbeat because of the lookback. Each of them gets its own copy of
the heartbeat's row."""

MOST_SOURCE_BYTES = 1 << 20

UNUSABLE = "unusable"
"""Stands in for the version of a table, and for the digest of its file, if the file is unusable."""


@dataclass(frozen=True, slots=True)
class Windows:
    """Contiguous windows, in order, that a table's definition computes in one call. Each window reads the heartbeats of
    `[start - lookback, end)`."""

    windows: Sequence[Window]
    lookback: timedelta

    @property
    def start(self) -> datetime:
        return self.windows[0].start

    @property
    def end(self) -> datetime:
        return self.windows[-1].end

    @property
    def length(self) -> timedelta:
        return self.windows[0].end - self.windows[0].start

    def __iter__(self) -> Iterator[Window]:
        return iter(self.windows)

    def __len__(self) -> int:
        return len(self.windows)


Build = Callable[["DataFrame", Windows], "DataFrame"]


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """A custom table.

    - `build` computes the table's rows from heartbeats.
    - `source` is the code of `build` as text.
    - `version` changes whenever the code or an option changes.
    - `key` names the columns that identify a row within a window.
    - `window` is the length of the table's windows; None means the pipeline's window length.
    - `file` is a digest of the file that defines the table; empty for a function in a Dagster project.
    - `is_sql` is true if the table is defined by SQL.
    """

    name: str
    build: Build
    source: str
    version: str
    key: tuple[str, ...] = ()
    lookback: timedelta = timedelta(0)
    window: timedelta | None = None
    file: str = ""
    is_sql: bool = False

    def __call__(self, heartbeats: "DataFrame", windows: Windows) -> "DataFrame":
        return self.build(heartbeats, windows)

    def windowing(self, windows: WindowSettings) -> Windowing:
        """Return the table's windowing. Its first window is the first one that starts at or after `windows.first`."""
        length = self.window or windows.length
        return Windowing(length, windows.first + (EPOCH - windows.first) % length, self.lookback)


def windowed(
    *, key: str | Sequence[str] = (), lookback: str = "0s", window: str = "", name: str = "", version: str = ""
) -> Callable[[Build], TableDefinition]:
    """Decorate a function that defines a custom table over closed windows. The table's name is `name` or, by
    default, the function's name.

    The function takes heartbeats and the windows to compute, and returns rows with a column `window`. `heartbeats` has
    the columns of the table `heartbeats` except `event_hour`, without copies. Three more columns describe the window
    that reads the row: `window`, `window_start` and `window_end`. With a `lookback`, a heartbeat has a row for each
    window that reads it. If `event_time >= window_start`, the heartbeat is in the window, otherwise in its lookback.

    A returned row may depend only on input rows with the same `window`, never on the current time or on another table.
    The rows are then the same however a range of windows is split into runs.

    `key` names the columns that identify a row within a window. `window` is a multiple of `windows.length`, such as
    "1h". The version changes with the function's code. If only code that the function calls has changed, change
    `version` yourself. Raises ValueError if `lookback` or `window` is not a duration.
    """

    def define(build: Build) -> TableDefinition:
        try:
            source = inspect.getsource(build)
        except (OSError, TypeError):  # defined in an interactive shell
            source = repr(build)
        columns = (key,) if isinstance(key, str) else tuple(key)
        length = parse_duration(window) if window else None
        called = name or build.__name__
        options = (called, columns, lookback, window, version)
        return TableDefinition(
            called, build, source, _digest(source, repr(options)), columns, parse_duration(lookback), length
        )

    return define


def own_tables(settings: Settings) -> dict[str, TableDefinition]:
    """Read the custom tables of `[tables]` from their files. Raises InvalidSettings if a file or option is unusable."""
    return {name: read_table(settings, name) for name in settings.tables}


def loaded_tables(settings: Settings, more: Iterable[TableDefinition] = ()) -> dict[str, TableDefinition]:
    """Read the custom tables of the settings section `[tables]` for Dagster, and add the tables in `more`.

    If a table's file is unusable, the table's runs fail until the file is fixed; other tables are not affected. Raises
    InvalidSettings if two tables have the same name, or if a table's name or options are invalid.
    """
    found = dict[str, TableDefinition]()
    for name in settings.tables:
        try:
            found[name] = read_table(settings, name)
        except InvalidSettings as error:
            found[name] = _checked(_unusable(name, settings.tables[name], error), settings)
            logger.error("%s; the table's runs fail until this is fixed", error)
    for definition in more:
        if definition.name in found:
            raise InvalidSettings(f"two tables are called {definition.name}; give one of them another name")
        found[definition.name] = _checked(definition, settings, found)
    return found


def lookbacks_of(tables: Mapping[str, TableDefinition]) -> dict[str, timedelta]:
    """Return the lookback of each table whose file is usable."""
    return {name: table.lookback for name, table in tables.items() if table.version != UNUSABLE}


def _unusable(name: str, table: TableSettings, why: InvalidSettings) -> TableDefinition:
    def build(heartbeats: "DataFrame", windows: Windows) -> "DataFrame":  # noqa: ARG001 (it only raises)
        raise why

    return TableDefinition(
        name, build, str(why), UNUSABLE, tuple(table.key), table.lookback, table.window, file=UNUSABLE
    )


def read_table(settings: Settings, name: str, known: TableDefinition | None = None) -> TableDefinition:
    """Read a table of the settings section `[tables]` from its file. If the file has not changed since `known` was
    read, return `known`. Modules that the file imports are not reloaded. Raises InvalidSettings if the file or an
    option of the table is unusable."""
    table = settings.tables[name]
    path = Path(table.file)
    text = _text_of(name, path)
    if known is not None and known.file == _digest(text):
        return known
    read = _of_python(name, path, text) if table.is_python else _of_sql(name, text, table)
    return _checked(replace(read, file=_digest(text)), settings)


def file_now(settings: Settings, table: TableDefinition) -> str:
    """Return a digest of the current content of the table's file, or "unreadable". For a table that is not in
    `[tables]`, return its version."""
    if table.name not in settings.tables:
        return table.version
    named = settings.tables[table.name]
    try:
        return _digest(_text_of(table.name, Path(named.file)))
    except InvalidSettings:
        return "unreadable"


def _checked(definition: TableDefinition, settings: Settings, beside: Iterable[str] = ()) -> TableDefinition:
    """Return the table, or raise InvalidSettings if its name, window length or lookback is invalid. The name must
    not conflict with a table in the settings, or with one in `beside`."""
    windows, taken = settings.windows, TAKEN if settings.dagster.name else TAKEN | JOBS
    name, length = definition.name, definition.window or windows.length
    wrong, others = None, [other for other in (*settings.tables, *beside) if _shares_names(name, other, settings)]
    if others:
        wrong = f"cannot have this name beside the table {others[0]}, because Dagster's jobs or ops would share a name"
    elif not NAME.fullmatch(name) or name in taken:
        wrong = "cannot have this name: use lowercase letters, digits and _, and no name that tidemark uses itself"
    elif length not in LENGTHS or length % windows.length:
        lengths = ", ".join(format_duration(each) for each in LENGTHS if not each % windows.length)
        wrong = f"has windows of {format_duration(length)}; their length must be one of {lengths}"
    elif definition.lookback >= MOST_WINDOWS_REACHED * length:
        most = format_duration(MOST_WINDOWS_REACHED * length)
        wrong = f"looks back {format_duration(definition.lookback)}; use less than {most}, or longer windows"
    if wrong:
        raise InvalidSettings(f"the table {name} {wrong}")
    return definition


def _shares_names(name: str, other: str, settings: Settings) -> bool:
    """Return True if the two tables would share the name of an asset, job or op."""
    first, second = sorted((name, other), key=len)
    shared = {f"{first}_by_name"}
    return second in (shared if settings.dagster.name else shared | {f"compute_{first}", f"compute_{first}_by_name"})


def _of_python(name: str, path: Path, text: str) -> TableDefinition:
    found = getattr(_imported(name, path, text), name, None)
    if not isinstance(found, TableDefinition):
        raise InvalidSettings(f"tables.{name}: {path} has no function {name} decorated with @tidemark.windowed")
    return found if found.name == name else replace(found, name=name)


def _of_sql(name: str, text: str, table: TableSettings) -> TableDefinition:
    try:
        fields = [field for _, field, _, _ in Formatter().parse(text) if field is not None]
    except ValueError as error:
        fields = [str(error)]
    if others := [field for field in fields if not field.startswith(HEARTBEATS)]:
        said = f"{table.file} has a brace that does not belong to {{{HEARTBEATS}}}, at {others[0]!r}"
        raise InvalidSettings(f"tables.{name}: {said}; double each brace of this kind")

    def build(heartbeats: "DataFrame", windows: Windows) -> "DataFrame":
        length, lookback = windows.length.total_seconds(), windows.lookback.total_seconds()
        markers = {"start": windows.start, "end": windows.end, "length": length, "lookback": lookback}
        return heartbeats.sparkSession.sql(text, args=markers, heartbeats=heartbeats)

    options = (name, table.key, table.lookback, table.window)
    return TableDefinition(
        name, build, text, _digest(text, repr(options)), tuple(table.key), table.lookback, table.window, is_sql=True
    )


def _text_of(name: str, path: Path) -> str:
    try:
        content = path.read_bytes()
        if len(content) > MOST_SOURCE_BYTES:
            raise InvalidSettings(f"tables.{name}: {path} has {len(content)} bytes; the maximum is {MOST_SOURCE_BYTES}")
        return content.decode("utf-8-sig")  # an editor may have written a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"tables.{name}: {path} cannot be read: {error}") from error


def _imported(name: str, path: Path, text: str) -> ModuleType:
    """Import a table's file as a module. The module's functions are pickled by value, because Spark's workers cannot
    import the module.

    The text is compiled here, because Python's import might use stale bytecode: its cache identifies a file only by
    size and by modification time in seconds.
    """
    called = f"tidemark_table_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec: Any = importlib.util.spec_from_file_location(called, path)  # the code may use it to find files beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[called] = module
    linecache.cache[str(path)] = len(text), None, text.splitlines(keepends=True), str(path)  # for inspect.getsource
    try:
        exec(compile(text.encode(), path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 (what import does)
    except (Exception, SystemExit) as error:  # custom code may raise anything
        raise InvalidSettings(f"tables.{name}: importing {path} failed: {type(error).__name__}: {error}") from error
    from pyspark import cloudpickle

    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    return module


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]

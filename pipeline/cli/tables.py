"""The command that shows tables of one's own: their windows, by which version, what is wrong, and their rows."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from tidemark.pipeline.cli.options import MOST_ROWS, AsJsonLines, lake_of, landing_only, option
from tidemark.pipeline.cli.output import columns, console, print_json, safe, shown_rows, warn
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.compute.table_definition import read_table
from tidemark.pipeline.errors import InvalidSettings, LakeError
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed
from tidemark.pipeline.quality.failing import FailingTable, read_failing_tables
from tidemark.pipeline.settings import Settings, load_settings


@landing_only
def tables(
    name: Annotated[str | None, typer.Argument(help="A table, to see its rows.")] = None,
    window: Annotated[str | None, option("The key of a window; without it, the newest computed.")] = None,
    limit: Annotated[int, option("The most rows to print.", min=1, max=MOST_ROWS)] = 20,
    as_json: AsJsonLines = False,
) -> None:
    """Show your own tables over closed windows: their windows and versions, or the rows of one."""
    settings = load_settings()
    if name is not None:
        _rows(settings, name, window, limit, as_json=as_json)
        return
    found = list(_found(settings))
    if as_json:
        for facts, failing in found:
            print_json({**facts, **_failing_facts(failing)})
        return
    counts = ("windows", "rows", "due", "by other versions", "failed runs")
    table, terminal = columns("table", "newest window", "version", right=counts), console()
    told = ("name", "newest", "version", "windows", "rows", "due", "by_other_versions")
    for facts, failing in found:
        failed = 0 if failing is None else failing.failures
        table.add_row(*map(safe, (*(facts[name] for name in told), failed)))
    terminal.print(table if found else "the settings name no tables of your own, and the lake has none")
    warn(terminal, [facts["wrong"] for facts, _ in found if facts["wrong"] is not None])
    warn(terminal, [failing.sentence() for _, failing in found if failing is not None])


def _failing_facts(failing: FailingTable | None) -> dict[str, Any]:
    if failing is None:
        return {"failed_runs": 0, "failed_last": None, "failed_reason": None}
    return {"failed_runs": failing.failures, "failed_last": failing.last, "failed_reason": failing.reason}


def _found(settings: Settings) -> Iterator[tuple[dict[str, Any], FailingTable | None]]:
    """Each table: its windows, by the version that computed them, its rows, and beside that its failed runs. Only its
    file tells the present version and how many windows are due. These are None for a table that the settings do not
    name, and for one whose file cannot be used: `wrong` says why."""
    lake = lake_of(settings)
    failing = {each.table: each for each in read_failing_tables(lake, SystemClock().now())}
    followed = _followed(settings, lake) if settings.tables else None
    for name in sorted({*settings.tables, *lake.own_tables(), *failing}):
        made = lake.own_table(name).made()
        versions = Counter(one.version for one in made.values())
        facts: dict[str, Any] = {
            "name": name,
            "windows": len(made),
            "rows": sum(one.rows for one in made.values()),
            "newest": max(made, default=None),
            "version": None,
            "versions": dict(versions),
            **dict.fromkeys(("by_other_versions", "due", "wrong")),
        }
        if name in settings.tables and followed is not None:
            try:
                definition = read_table(settings, name)
            except InvalidSettings as error:
                facts["wrong"] = str(error)
            else:
                due = followed.due(definition.windowing(settings.windows), definition.lookback, made)
                by_others = len(made) - versions[definition.version]
                facts |= {"version": definition.version, "by_other_versions": by_others, "due": len(due)}
        yield facts, failing.get(name)


def _followed(settings: Settings, lake: Lake) -> Followed:
    windowing, lookback = settings.windowing, settings.windows.lookback
    kept, watermark = lake.kept_windows(windowing), lake.tracking_log().newest_watermark()
    closed = kept.closed(None if watermark is None else min(watermark, SystemClock().now()))
    computed = ComputedWindows.of(lake.diffs().runs(), windowing)
    return Followed.read(computed, lookback, closed, lake.window_index(windowing, lookback), kept)


def _rows(settings: Settings, name: str, window: str | None, limit: int, *, as_json: bool) -> None:
    table = lake_of(settings).own_table(name)
    made = table.made()
    if not made:
        raise LakeError(
            f"no window of {name} is computed in {settings.lake.uri}; `tidemark tables` lists what there is"
        )
    key = max(made) if window is None else window
    if key not in made:
        raise LakeError(f"window {key} of {name} is not computed; the newest is {max(made)}")
    found = table.read([key])
    rows = found.slice(0, limit)
    if as_json:
        for row in rows.to_pylist():
            print_json(row)
        return
    terminal = console()
    terminal.print(columns(*rows.column_names, rows=shown_rows(rows)))
    terminal.print(f"[dim]{rows.num_rows} of {found.num_rows} rows of window {key}[/]")

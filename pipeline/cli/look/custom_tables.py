"""Custom tables in `tidemark status --all`: computed windows, versions, due windows and errors."""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from tidemark.pipeline.cli.here import Here
from tidemark.pipeline.cli.output import columns, warn
from tidemark.pipeline.compute.table_definition import read_table
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed
from tidemark.pipeline.quality.failing import read_failing_tables

FAILED = {"failed_runs": "failures", "failed_last": "last", "failed_reason": "reason"}
SHOWN = ("name", "newest", "version", "windows", "rows", "due", "by_other_versions", "failed_runs")


def read_custom_tables(at: Here, now: datetime) -> Iterator[dict[str, Any]]:
    """Yield each table's facts. `version`, `due` and `by_other_versions` are None for a table that
    is not in the settings, or whose file cannot be used; `wrong` says why. Raises LakeError."""
    lake, settings = at.lake, at.settings
    failing = {each.table: each for each in read_failing_tables(lake, now)}
    followed = _followed(at, now) if settings.tables else None
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
        failed = failing.get(name)
        facts |= {fact: getattr(failed, field, 0 if fact == "failed_runs" else None) for fact, field in FAILED.items()}
        yield facts


def show_custom_tables(facts: Sequence[dict[str, Any]], terminal: Console) -> None:
    """Print the tables, if any."""
    if not facts:
        return
    counts = ("windows", "rows", "due", "by other versions", "failed runs")
    rows = ([one[name] for name in SHOWN] for one in facts)
    terminal.print(columns("custom table", "newest window", "version", right=counts, rows=rows))
    warn(terminal, [one["wrong"] for one in facts if one["wrong"] is not None])


def _followed(at: Here, now: datetime) -> Followed:
    windowing, lookback, lake = at.settings.windowing, at.settings.windows.lookback, at.lake
    kept, watermark = lake.kept_windows(windowing), lake.tracking_log().newest().watermark
    closed = kept.closed(None if watermark is None else min(watermark, now))
    computed = ComputedWindows.of(lake.diffs().runs(), windowing)
    return Followed.read(computed, lookback, closed, lake.window_index(windowing, lookback), kept)

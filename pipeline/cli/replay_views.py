"""How `tidemark replay` shows what came of it: as facts for scripts, and as tables for people."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pipeline.cli.output import text_of as words
from pipeline.durations import format_duration
from pipeline.replay.outcome import Replayed
from pipeline.replay.replay import Difference
from pipeline.replay.trace import Batch
from pipeline.replay.trace_file import ParquetTrace
from pipeline.watermark.histogram import Histogram
from pipeline.watermark.state import DecisionRecord

MEDIAN, MOST = 0.5, 0.99


def exact(value: Any) -> Any:
    """What JSON does not know: moments to the microsecond, durations in seconds, the rest as text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return value.total_seconds() if isinstance(value, timedelta) else str(value)


def facts_of(replayed: Replayed) -> dict[str, Any]:
    """A replay in numbers."""
    hold = replayed.longest_hold()
    return {
        "ticks": len(replayed.decisions),
        "first_tick": replayed.decisions[0].at,
        "last_tick": replayed.decisions[-1].at,
        "watermark": replayed.watermark,
        "landed": replayed.landed,
        "late": replayed.late,
        "late_share": replayed.late_share,
        "reasons": replayed.reasons,
        "lag_p50_seconds": replayed.lag(MEDIAN),
        "lag_p99_seconds": replayed.lag(MOST),
        "longest_hold": None
        if hold is None
        else {"reason": hold.reason, "begin": hold.begin, "end": hold.end, "lasted_seconds": hold.lasted},
    }


def sentences_of(replayed: Replayed) -> dict[str, str]:
    """The same for people, by what each is about."""
    facts = facts_of(replayed)
    hold = replayed.longest_hold()
    return {
        "ticks": f"{facts['ticks']:,} from {words(facts['first_tick'])} to {words(facts['last_tick'])}",
        "watermark": words(facts["watermark"]),
        "late": f"{replayed.late:,} of {replayed.landed:,} that landed ({replayed.late_share:.4%})",
        "lag": "—"
        if facts["lag_p50_seconds"] is None
        else f"median {_rounded(facts['lag_p50_seconds'])}, 99 % within {_rounded(facts['lag_p99_seconds'])}",
        "reasons": ", ".join(f"{count:,} {reason}" for reason, count in replayed.reasons.items()),
        "longest hold": "none" if hold is None else f"{_rounded(hold.lasted)} from {words(hold.begin)}, {hold.reason}",
    }


def print_grid(console: Console, rows: Mapping[str, str]) -> None:
    """Names in bold beside what they are."""
    table = Table.grid(padding=(0, 3))
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table, highlight=False)


def print_side_by_side(console: Console, columns: Mapping[str, Mapping[str, str]]) -> None:
    """The same facts of several, each in a column of its own."""
    table = Table(box=None, header_style="bold", padding=(0, 2))
    table.add_column("")
    for title in columns:
        table.add_column(title)
    for name in next(iter(columns.values())):
        table.add_row(f"[bold]{name}[/]", *(column[name] for column in columns.values()))
    console.print(table, highlight=False)


def differing(difference: Difference) -> dict[str, tuple[Any, Any]]:
    """What was recorded and what follows, field by field, of every field; nested ones by their path."""
    recorded, derived = _flat(difference.recorded), _flat(difference.derived)
    names = [*recorded, *(name for name in derived if name not in recorded)]
    return {name: (recorded.get(name), derived.get(name)) for name in names}


def print_difference(console: Console, difference: Difference) -> None:
    """Both side by side; what differs is marked."""
    what = "decision" if isinstance(difference.recorded, DecisionRecord) else "compacted entry"
    table = Table(box=None, header_style="bold", padding=(0, 2), title=f"the first {what} that differs")
    for title in ("", "", "recorded", "derived"):
        table.add_column(title, overflow="fold")
    for name, (recorded, derived) in differing(difference).items():
        mark, style = ("≠", "bold red") if recorded != derived else ("", "")
        table.add_row(mark, name, _shown(recorded), _shown(derived), style=style)
    console.print(table, highlight=False)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """A dataclass as its plain fields, by path."""
    flat: dict[str, Any] = {}
    for field in fields(value):
        inner, path = getattr(value, field.name), f"{prefix}{field.name}"
        if isinstance(inner, Histogram):
            flat |= {
                f"{path}.cells": len(inner),
                f"{path}.messages": inner.messages,
                f"{path}.newest_publish_us": inner.newest_publish_us,
                f"{path}.oldest_event_us": inner.oldest_event_us,
            }
        elif is_dataclass(inner):
            flat |= _flat(inner, f"{path}.")
        else:
            flat[path] = inner
    return flat


def _shown(value: Any) -> str:
    if isinstance(value, datetime):
        text: str = exact(value)
        return text
    return words(value)


def _rounded(duration: timedelta) -> str:
    return format_duration(timedelta(seconds=round(duration.total_seconds(), 1)))


class Watched:
    """A trace whose passes are shown."""

    def __init__(self, trace: ParquetTrace, progress: Progress, *, passes: int) -> None:
        self._trace = trace
        self._progress = progress
        self._task = progress.add_task("reading", total=trace.rows * passes)

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        """As the trace has them."""
        for batch in self._trace.batches(streams=streams):
            yield batch
            self._progress.advance(self._task, len(batch))


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A bar on a terminal's standard error; elsewhere nothing."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        yield progress

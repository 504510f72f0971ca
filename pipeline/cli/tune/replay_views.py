"""The outcome of `tidemark replay`: facts for scripts, sentences for people, and differences."""

from collections.abc import Iterator
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tidemark.pipeline.cli.output import exact_iso, safe, text_of
from tidemark.pipeline.phrases import words
from tidemark.pipeline.replay.outcome import Replayed
from tidemark.pipeline.replay.replay import Difference
from tidemark.pipeline.replay.trace import Batch
from tidemark.pipeline.replay.trace_file import ParquetTrace
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.state import DecisionRecord


def facts_of(replayed: Replayed) -> dict[str, Any]:
    """Return the figures of a replay."""
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
        "lag_p50_seconds": replayed.lag(0.5),
        "lag_p99_seconds": replayed.lag(0.99),
        "longest_hold": None if hold is None else {**asdict(hold), "lasted_seconds": hold.lasted},
    }


def sentences_of(replayed: Replayed) -> dict[str, str]:
    """Format the figures for people, keyed by topic."""
    facts, hold = facts_of(replayed), replayed.longest_hold()
    median, most = facts["lag_p50_seconds"], facts["lag_p99_seconds"]
    return {
        "ticks": f"{facts['ticks']:,} from {text_of(facts['first_tick'])} to {text_of(facts['last_tick'])}",
        "watermark": text_of(facts["watermark"]),
        "late": f"{replayed.late:,} of {replayed.landed:,} that landed ({replayed.late_share:.4%})",
        "lag": "—" if median is None else f"median {_lasting(median)}, 99 % within {_lasting(most)}",
        "reasons": ", ".join(f"{count:,} {reason}" for reason, count in replayed.reasons.items()),
        "longest hold": f"{_lasting(hold.lasted)} from {text_of(hold.begin)}, {hold.reason}" if hold else "none",
    }


def _lasting(duration: timedelta) -> str:
    return words(duration.total_seconds())


def differing(difference: Difference) -> dict[str, tuple[Any, Any]]:
    """Return the recorded and the derived value of every field, nested ones by their path."""
    recorded, derived = _flat(difference.recorded), _flat(difference.derived)
    return {name: (recorded.get(name), derived.get(name)) for name in {**recorded, **derived}}


def print_difference(terminal: Console, difference: Difference) -> None:
    """Print both sides, and mark what differs."""
    what = "decision" if isinstance(difference.recorded, DecisionRecord) else "compacted entry"
    table = Table(box=None, header_style="bold", padding=(0, 2), title=f"the first {what} that differs")
    for title in ("", "", "recorded", "derived"):
        table.add_column(title, overflow="fold")
    for name, values in differing(difference).items():
        mark, style = ("≠", "bold red") if values[0] != values[1] else ("", "")
        shown = (safe(exact_iso(value) if isinstance(value, datetime) else value) for value in values)
        table.add_row(mark, name, *shown, style=style)
    terminal.print(table)


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten a dataclass into plain fields, keyed by path."""
    flat: dict[str, Any] = {}
    for field in fields(value):
        inner, path = getattr(value, field.name), f"{prefix}{field.name}"
        if isinstance(inner, Histogram):
            flat[f"{path}.cells"] = len(inner)
            for name in ("messages", "newest_publish_us", "oldest_event_us"):
                flat[f"{path}.{name}"] = getattr(inner, name)
        elif is_dataclass(inner):
            flat |= _flat(inner, f"{path}.")
        else:
            flat[path] = inner
    return flat


class Watched:
    """A trace that shows its passes in a progress bar."""

    def __init__(self, trace: ParquetTrace, progress: Progress, *, passes: int) -> None:
        self._trace = trace
        self._progress = progress
        self._task = progress.add_task("reading", total=trace.rows * passes)

    def batches(self, *, streams: bool = False) -> Iterator[Batch]:
        for batch in self._trace.batches(streams=streams):
            yield batch
            self._progress.advance(self._task, len(batch))

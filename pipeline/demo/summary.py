"""The demonstration's result: what a person reads, and what a script does."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.panel import Panel
from rich.table import Table

from pipeline.quantiles import quantile


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that the demonstration found out. Seconds are of the wall clock."""

    published: int
    duplicates: int
    broken: Mapping[str, int]
    landed: int
    quarantined: Mapping[str, int]
    quarantine_differences: int
    windows: int
    rows: int
    expected_rows: int
    differences: int
    late: int
    missed: int
    ready_after_seconds_p50: float
    ready_after_seconds_max: float
    live_ready_after_seconds_p50: float | None
    live_ready_after_seconds_max: float | None
    messages_per_second: float
    backlog_messages: int
    backlog_landed_after_seconds: float
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether the lake holds the truth, whole, and nothing else."""
        return (
            self.rows > 0
            and self.rows == self.expected_rows
            and not (self.differences or self.late or self.missed or self.quarantine_differences)
            and Counter(self.broken) == Counter(self.quarantined)  # a kind that was not published is no difference
        )

    def as_json(self) -> dict[str, object]:
        """Plain values."""
        return {**asdict(self), "is_right": self.is_right}


def spread(seconds: Sequence[float]) -> tuple[float, float] | None:
    """The median and the largest, or None for none."""
    return (round(quantile(seconds, 0.5), 1), round(max(seconds), 1)) if seconds else None


def show(summary: Summary, examples: Sequence[object], console: Console) -> None:
    """Print the summary for a person."""
    table = Table.grid(padding=(0, 3))
    table.add_column(justify="left", style="bold")
    table.add_column(justify="right")
    table.add_column(justify="left", style="dim")

    def row(name: str, value: object, note: str = "") -> None:
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value), note)

    row("published", summary.published, f"{summary.duplicates:,} of them duplicates")
    row("landed", summary.landed, "rows of heartbeats, copies included")
    reasons = ", ".join(f"{count} {reason.lower()}" for reason, count in sorted(summary.quarantined.items()))
    row("quarantined", sum(summary.quarantined.values()), reasons)
    row("windows", summary.windows, "of one minute, each computed below the watermark")
    row("rows compared", summary.rows, "heartbeat_diffs against the publisher's own record")
    row("differences", summary.differences, "row by row, every column")
    row("late", summary.late, "first landings below the watermark")
    row("missed", summary.missed, "landed, and in no computed window")
    if summary.live_ready_after_seconds_p50 is not None:
        row(
            "ready after",
            f"{summary.live_ready_after_seconds_p50:g} s",
            f"median of the live windows, from a window's end; at most {summary.live_ready_after_seconds_max:g} s "
            "(copies sent a minute late are disorder and hold the watermark back; the last windows wait for the idle "
            "rule)",
        )
    row(
        "throughput",
        f"{summary.messages_per_second:,.0f} /s",
        f"the backlog of {summary.backlog_messages:,} was landed {summary.backlog_landed_after_seconds:.0f} s after "
        "the pipeline was started",
    )
    row("time", f"{summary.seconds:.0f} s", "in all")
    verdict = "[bold green]every row is right[/]" if summary.is_right else "[bold red]NOT RIGHT[/]"
    console.print(Panel(table, title=f"tidemark demo: {verdict}", expand=False, padding=(1, 2)))
    for example in examples:
        console.print(f"[red]different:[/] {example}")

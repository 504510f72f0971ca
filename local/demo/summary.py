"""The demonstration's results, as a human-readable table and as JSON values."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime

from rich.console import Console
from rich.panel import Panel
from rich.table import Column, Table

from tidemark.local.demo.synthetic import Published
from tidemark.local.demo.verification import TruthComparison
from tidemark.pipeline.figures import quantile


@dataclass(frozen=True, slots=True)
class Spread:
    """A median and a maximum, in seconds."""

    p50: float
    max: float

    @classmethod
    def of(cls, seconds: Iterable[float]) -> "Spread | None":
        """Return the median and the maximum, rounded to a tenth of a second; None if there are no values."""
        known = list(seconds)
        return cls(round(quantile(known, 0.5), 1), round(max(known), 1)) if known else None


@dataclass(frozen=True, slots=True)
class Summary:
    """The demonstration's results. `seconds` is its duration.

    - `ready` is the delay from a window's end until the window is computed, in seconds; None if there are no windows.
    - `live_ready` is the same delay for only those windows that ended after live traffic began.
    - `landed_after` is the number of seconds from the pipeline's start until the backlog had landed.
    - `live` is the range of time during which only live traffic landed.
    """

    published: Published
    comparison: TruthComparison
    ready: Spread | None
    live_ready: Spread | None
    backlog_messages: int
    landed_after: float
    seconds: float
    live: tuple[datetime, datetime] | None = None

    @property
    def is_right(self) -> bool:
        """True if the lake has exactly the rows that follow from the truth file, none of them late or missed."""
        found = self.comparison
        return (
            found.rows > 0
            and found.rows == found.expected_rows
            and not (found.differences or found.late or found.missed or found.quarantine_differences)
            and Counter(self.published.broken) == Counter(found.quarantined)  # 0 of a kind is no difference
        )

    @property
    def messages_per_second(self) -> float:
        """The rate at which the backlog landed. The pipeline's start-up counts too."""
        return round(self.backlog_messages / self.landed_after, 1)

    def as_json(self) -> dict[str, object]:
        published, found, ready, live = self.published, self.comparison, self.ready, self.live_ready
        return {
            "published": published.messages,
            "duplicates": published.duplicates,
            "broken": dict(published.broken),
            **{name: value for name, value in asdict(found).items() if name not in ("by_what", "examples")},
            "ready_after_seconds_p50": ready.p50 if ready else 0.0,
            "ready_after_seconds_max": ready.max if ready else 0.0,
            "live_ready_after_seconds_p50": live.p50 if live else None,
            "live_ready_after_seconds_max": live.max if live else None,
            "messages_per_second": self.messages_per_second,
            "backlog_messages": self.backlog_messages,
            "backlog_landed_after_seconds": round(self.landed_after, 1),
            "seconds": round(self.seconds, 1),
            "is_right": self.is_right,
        }


def show(summary: Summary, console: Console) -> None:
    """Print the summary as human-readable text."""
    published, found, live = summary.published, summary.comparison, summary.live_ready
    reasons = ", ".join(f"{count} {reason.lower()}" for reason, count in sorted(found.quarantined.items()))
    table = Table.grid(Column(style="bold"), Column(justify="right"), Column(style="dim"), padding=(0, 3))
    table.add_row("published", f"{published.messages:,}", f"{published.duplicates:,} of them duplicates")
    table.add_row("landed", f"{found.landed:,}", "rows of heartbeats, copies included")
    table.add_row("quarantined", f"{sum(found.quarantined.values()):,}", reasons)
    table.add_row("windows", f"{found.windows:,}", "of one minute, each computed below the watermark")
    table.add_row("rows compared", f"{found.rows:,}", "heartbeat_diffs against the publisher's own record")
    table.add_row("differences", f"{found.differences:,}", "row by row, every column")
    table.add_row("late", f"{found.late:,}", "heartbeats whose copies all landed below the watermark")
    table.add_row("missed", f"{found.missed:,}", "landed, but in no computed window")
    if live is not None:
        table.add_row(
            "ready after",
            f"{live.p50:g} s",
            f"median of the live windows, from a window's end; at most {live.max:g} s (the last windows wait for the "
            "idle rule)",
        )
    table.add_row(
        "throughput",
        f"{summary.messages_per_second:,.0f} /s",
        f"the backlog of {summary.backlog_messages:,} landed within {summary.landed_after:.0f} s of the pipeline's "
        "start",
    )
    table.add_row("time", f"{summary.seconds:.0f} s", "in all")
    verdict = "[bold green]every row is right[/]" if summary.is_right else "[bold red]NOT RIGHT[/]"
    console.print(
        Panel(table, title=f"tidemark demo: {verdict}", expand=False, padding=(1, 2)), width=min(100, console.width)
    )
    for example in found.examples:
        console.print("different:", str(example), style="red", markup=False)

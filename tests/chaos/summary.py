"""What came of a chaos run: what a person reads, and whether all of it is right."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from benchmarks.watched import RunOfDrain, Ticks
from tests.chaos.faults import Incident
from tests.chaos.plan import SERVICES, Plan
from tidemark.local.demo.synthetic import Published
from tidemark.local.demo.verification import TruthComparison

KILLED = "kill -9 "


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything that was found. `disorder_seconds` is what the messages really had, and `band_seconds` what the
    watermark allows for. `missed_and_mended` were missed when they landed, and are in their windows now."""

    plan: Plan
    incidents: Sequence[Incident]
    restarts: Mapping[str, int]
    ticks: Mapping[str, Ticks]
    runs: Mapping[str, Mapping[str, int]]
    drains: Sequence[RunOfDrain]
    published: Published
    comparison: TruthComparison
    missed_and_mended: int
    disorder_seconds: float
    band_seconds: float
    not_played: Sequence[str]
    left_over: Sequence[str]
    exit_code: int
    seconds: float

    @property
    def kills(self) -> int:
        return sum(incident.what.startswith(KILLED) for incident in self.incidents)

    @property
    def problems(self) -> list[str]:
        """What is not right, a sentence each; none where all of it is."""
        found = self.comparison
        killed = Counter(one.what.removeprefix(KILLED) for one in self.incidents if one.what.startswith(KILLED))
        broken = {reason: count for reason, count in self.published.broken.items() if count}
        checks = [
            (found.rows != found.expected_rows, f"{found.rows} rows instead of {found.expected_rows}"),
            (found.rows == 0, "there are no rows at all"),
            (found.differences > 0, f"{found.differences} rows differ from the truth: {found.by_what}"),
            (found.missed > 0, f"{found.missed} heartbeats landed and are in no window"),
            (found.quarantine_differences > 0, f"{found.quarantine_differences} quarantined messages differ"),
            (found.quarantined != broken, f"quarantined are {found.quarantined}, published were {broken}"),
            (
                found.late > 0 and self.disorder_seconds <= self.band_seconds,
                f"{found.late} heartbeats are late, though the disorder of {self.disorder_seconds:.1f} s is within the "
                f"band of {self.band_seconds:g} s",
            ),
            (self.kills != len(self.plan.kills), f"{self.kills} kills instead of {len(self.plan.kills)}"),
            (bool(self.left_over), f"processes were left over: {list(self.left_over)}"),
            (self.exit_code != 0, f"`tidemark up` ended with code {self.exit_code}"),
        ]
        checks += [
            (
                self.restarts.get(name, 0) != killed[name],
                f"{name}: killed {killed[name]} times, started again {self.restarts.get(name, 0)} times",
            )
            for name in map(str, SERVICES)
        ]
        checks += [
            (True, f"{name} ended by itself, {count} times")
            for name, count in self.restarts.items()
            if name not in SERVICES
        ]
        checks += [
            (True, f"{one.what} at {one.at:.0f} s: it did not come back")
            for one in self.incidents
            if one.back_after is None and one.what.removeprefix(KILLED) in (*SERVICES,)
        ]
        return [sentence for wrong, sentence in checks if wrong]


def show(summary: Summary, console: Console) -> None:
    """Print it."""
    faults = Table("at", "fault", "pid", "back after", "", title=f"seed {summary.plan.seed}: {summary.kills} kills")
    for one in sorted(summary.incidents, key=lambda one: one.at):
        back = "nothing came" if one.back_after is None else f"{one.back_after:.1f} s"
        faults.add_row(f"{one.at:.1f} s", one.what, str(one.pid or ""), back, one.note)
    console.print(faults)
    ticks = Table("sensor", "ticks", "failed", "median", "longest", title="ticks")
    for name, seen in sorted(summary.ticks.items()):
        ticks.add_row(name, str(seen.count), str(seen.failed), f"{seen.median:g} s", f"{seen.longest:g} s")
    console.print(ticks)
    found, published = summary.comparison, summary.published
    rows = Table.grid(padding=(0, 3))
    for name, value, note in (
        ("started again", sum(summary.restarts.values()), counted(summary.restarts)),
        *((f"runs of {job}", sum(by.values()), counted(by)) for job, by in sorted(summary.runs.items())),
        ("read in", len(summary.drains), f"runs, {sum(len(one.rounds) for one in summary.drains)} rounds"),
        ("published", published.messages, f"{published.duplicates} of them duplicates"),
        ("landed", found.landed, "rows of heartbeats, copies included"),
        ("quarantined", sum(found.quarantined.values()), counted(found.quarantined)),
        ("windows", found.windows, ""),
        ("rows compared", found.rows, f"of {found.expected_rows} expected"),
        ("differences", found.differences + found.quarantine_differences, counted(found.by_what)),
        (
            "late",
            found.late,
            f"the disorder was {summary.disorder_seconds:.1f} s, the band is {summary.band_seconds:g} s",
        ),
        ("missed", found.missed, f"and {summary.missed_and_mended} missed earlier, now in recomputed windows"),
        ("left over", len(summary.left_over), "processes"),
        ("time", round(summary.seconds), "seconds"),
    ):
        rows.add_row(name, f"{value:,}", note)
    console.print(rows)
    for sentence in summary.not_played:
        console.print(f"not played: {sentence}", highlight=False)
    for example in found.examples:
        console.print(f"different: {example}", highlight=False)
    for sentence in summary.problems:
        console.print(f"[red]wrong:[/] {sentence}", highlight=False)
    console.print("NOT RIGHT" if summary.problems else "every row is right")


def counted(counts: Mapping[str, int]) -> str:
    """`3 of this, 2 of that`."""
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))

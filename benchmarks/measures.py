"""What a stage's measurement is, how it is taken in turns with its reference, and how it is shown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import orjson
from rich.console import Console
from rich.table import Table

from tidemark.pipeline.figures import quantile

Better = Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Measure:
    """A stage beside its reference: one pair of values a round, both in `unit`.

    `ratio` is the median of ours over the median of the reference; the rounds' own ratios spread around it. `goal` is
    the least that the ratio should be where higher is better, else the most; None where none was set.
    """

    stage: str
    ours: Sequence[float]
    reference: Sequence[float]
    goal: float | None
    better: Better
    unit: str
    of_what: str
    note: str = ""

    @property
    def ratio(self) -> float:
        """The medians' ratio; it lies within the spread."""
        return quantile(self.ours, 0.5) / quantile(self.reference, 0.5)

    @property
    def spread(self) -> tuple[float, float]:
        """The least and the greatest of the rounds' ratios."""
        ratios = [mine / theirs for mine, theirs in zip(self.ours, self.reference, strict=True)]
        return min(ratios), max(ratios)

    @property
    def is_met(self) -> bool | None:
        """Whether the goal is reached; None without one."""
        if self.goal is None:
            return None
        return self.ratio >= self.goal if self.better == "higher" else self.ratio <= self.goal

    def as_json(self) -> dict[str, Any]:
        """One element of `build/bench.json`."""
        return {
            "stage": self.stage,
            "ours": quantile(self.ours, 0.5),
            "reference": quantile(self.reference, 0.5),
            "ratio": self.ratio,
            "goal": self.goal,
            "better": self.better,
            "is_met": self.is_met,
            "unit": self.unit,
            "ratio_spread": list(self.spread),
            "ours_rounds": list(self.ours),
            "reference_rounds": list(self.reference),
            "of_what": self.of_what,
            "note": self.note,
        }


def in_turns(
    rounds: int, ours: Callable[[int], float], reference: Callable[[int], float], *, warm_ups: int = 0
) -> tuple[list[float], list[float]]:
    """Both measurements of each round, one after the other; who goes first changes from round to round, so that
    neither always finds the warmer machine. The first so many rounds more, `warm_ups`, are played and not counted."""
    mine: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + warm_ups):
        if number % 2 == 0:
            mine.append(ours(number))
            theirs.append(reference(number))
        else:
            theirs.append(reference(number))
            mine.append(ours(number))
    return mine[warm_ups:], theirs[warm_ups:]


def show(measures: Sequence[Measure], console: Console) -> None:
    """The table."""
    table = Table(title="Each stage beside its reference (medians; spread over the rounds)")
    for name in ("stage", "unit", "ours", "reference", "ratio", "spread", "goal", ""):
        table.add_column(name, justify="left" if name in ("stage", "unit") else "right")
    for one in measures:
        low, high = one.spread
        sign = "≥" if one.better == "higher" else "≤"
        table.add_row(
            one.stage,
            one.unit,
            _number(quantile(one.ours, 0.5)),
            _number(quantile(one.reference, 0.5)),
            _number(one.ratio),
            f"{_number(low)} … {_number(high)}",
            "" if one.goal is None else f"{sign} {one.goal:g}",
            {True: "met", False: "missed", None: ""}[one.is_met],
        )
    console.print(table)
    for one in measures:
        console.print(f"{one.stage}: {one.of_what}." + (f" {one.note}." if one.note else ""), highlight=False)


def write(measures: Sequence[Measure], file: Path) -> None:
    """The list as JSON."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(orjson.dumps([one.as_json() for one in measures], option=orjson.OPT_INDENT_2))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

"""`make compare`: print the tables of `docs/concepts/comparison.md`, write `build/compare.json`, draw the picture."""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.compare.measure import Compared, Outcome, compare
from benchmarks.compare.picture import draw
from benchmarks.compare.traces import traces

ROOT = Path(__file__).resolve().parents[2]
Found = Mapping[str, tuple[str, Mapping[str, Compared]]]
"""Title and outcomes of each rule, by the trace's name."""


def main() -> None:
    """Compare on every trace, and print, write and draw the outcomes."""
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the traces are drawn from it")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "compare.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "compare.svg")
    asked = parser.parse_args()
    found = {name: (traffic.title, compare(traffic)) for name, traffic in traces(asked.seed).items()}
    for line in (*table(found, at_default), "", *table(found, at_best)):
        print(line)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(_facts(found), indent=1) + "\n")
    draw(found, asked.picture)
    print(f"\nEvery setting is in {asked.json}, the picture in {asked.picture}.")


def table(found: Found, cell: Callable[[Compared], str]) -> list[str]:
    """Format a Markdown table: a row for each trace, a column for each rule. A column without an entry is left out."""
    rows = [(title, [cell(compared) for compared in rules.values()]) for title, rules in found.values()]
    names = [*next(iter(found.values()))[1]]
    kept = [number for number, _ in enumerate(names) if any(cells[number] for _, cells in rows)]
    lines = [["trace", *(names[number] for number in kept)], ["---"] * (len(kept) + 1)]
    lines += [[title, *(cells[number] for number in kept)] for title, cells in rows]
    return [f"| {' | '.join(line)} |" for line in lines]


def at_default(compared: Compared) -> str:
    """Format the outcome with a bound of 10 s: late, median, worst."""
    return _outcome(compared.default)


def at_best(compared: Compared) -> str:
    """Format the best setting and its outcome; empty for a rule without a setting."""
    return f"{compared.best.setting}: {_outcome(compared.best)}" if len(compared.outcomes) > 1 else ""


def _outcome(outcome: Outcome) -> str:
    return "; ".join([_share(outcome.late_share), _seconds(outcome.median), _seconds(outcome.worst)])


def _share(share: float) -> str:
    if not share:
        return "0"
    return f"{share:.1%}" if share >= 0.01 else f"{share:.2%}" if share >= 0.0001 else "< 0.01%"


def _seconds(seconds: float) -> str:
    if not np.isfinite(seconds):
        return "not seen"
    return f"{seconds:,.0f} s"


def _facts(found: Found) -> dict[str, object]:
    def plain(outcome: Outcome) -> dict[str, object]:
        return {name: None if value == np.inf else value for name, value in asdict(outcome).items()}

    return {
        name: {
            rule: {"outcomes": [plain(each) for each in compared.outcomes], "best": compared.best.setting}
            for rule, compared in rules.items()
        }
        for name, (_, rules) in found.items()
    }


if __name__ == "__main__":
    main()

"""`make compare`: print the table, write `build/compare.json`, and draw `docs/images/compare.svg`."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np

from benchmarks.compare.measure import Compared, Outcome, compare
from benchmarks.compare.picture import draw
from benchmarks.compare.traces import traces

ROOT = Path(__file__).resolve().parents[2]
Found = Mapping[str, tuple[str, Mapping[str, Compared]]]
"""By the trace's name: its title, and the outcomes of each rule."""


def main() -> None:
    """Compare on every trace, and show it."""
    parser = argparse.ArgumentParser(prog="make compare", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="the traces are drawn from it")
    parser.add_argument("--json", type=Path, default=ROOT / "build" / "compare.json")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "images" / "compare.svg")
    asked = parser.parse_args()
    found = {name: (traffic.title, compare(traffic)) for name, traffic in traces(asked.seed).items()}
    for line in table(found):
        print(line)
    asked.json.parent.mkdir(parents=True, exist_ok=True)
    asked.json.write_text(json.dumps(_facts(found), indent=1) + "\n")
    draw(found, asked.picture)
    print(f"\nEvery setting is in {asked.json}, the picture in {asked.picture}.")


def table(found: Found) -> list[str]:
    """A Markdown table: a row for each trace and rule."""
    lines = ["| trace | rule | at 10 s: late | ready after | worst | best setting | late | ready after | worst |"]
    lines.append("|---" * 9 + "|")
    for title, rules in found.values():
        for number, (rule, compared) in enumerate(rules.items()):
            name = title if not number else ""
            cells = [*_cells(compared.default), compared.best.setting, *_cells(compared.best)]
            lines.append(f"| {' | '.join([name, rule, *cells])} |")
    return lines


def _cells(outcome: Outcome) -> list[str]:
    return [_share(outcome.late_share), _seconds(outcome.median), _seconds(outcome.worst)]


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

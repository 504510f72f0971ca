"""The picture of the comparison: late share against how long after its end a window was ready, by rule and trace."""

from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

import numpy as np

from benchmarks.compare.measure import Compared, Outcome
from tidemark.pipeline.charts import Axis, Chart, Line, Mark, logarithmic, picture

STYLES = {
    "`band`": ("band", "circle"),
    "`frontier`": ("frontier", "square"),
    "`frontier`, no slack": ("frontier-q", "square"),
    "Dataflow, described": ("band-q", "down"),
    "Flink": ("aim", "up"),
    "Flink, idleness": ("now", "left"),
    "Spark": ("bad", "diamond"),
    "Beam": ("plain", "cross"),
}
SHAPES = {
    "speck": "m-1.8-1.8h3.6v3.6h-3.6z",
    "circle": "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "square": "m-3.8-3.8h7.6v7.6h-7.6z",
    "diamond": "m0-5 5 5-5 5-5-5z",
    "up": "m0-4.8 4.8 8.8h-9.6z",
    "down": "m0 4.8 4.8-8.8h-9.6z",
    "left": "m-4.8 0 8.8-4.8v9.6z",
    "cross": "m0-2.6 3.4-3.4 2.6 2.6-3.4 3.4 3.4 3.4-2.6 2.6-3.4-3.4-3.4 3.4-2.6-2.6 3.4-3.4-3.4-3.4 2.6-2.6z",
}
"""Shapes of points, as SVG path data."""

EARLIEST, LATEST = 9.0, 4000.0
"""Seconds that the picture shows. A window that is ready earlier is drawn at the left edge."""

LEAST = 1e-5
"""Smallest late share on the logarithmic part of the axis."""

LANES = 0.28
"""Part of the axis below it: a lane for each rule without a late message, so that rules do not hide each other."""

LATE = logarithmic(LEAST, 1, "")
READY = logarithmic(EARLIEST * 0.9, LATEST, "")


def draw(found: Mapping[str, tuple[str, Mapping[str, Compared]]], path: Path) -> None:
    """Draw it as an SVG. The same outcomes give the same file."""
    across = Axis(
        "a window is ready after its end (median, s)",
        READY.place,
        [(each, f"{each:,}") for each in (10, 30, 100, 300, 1000, 3000)],
    )
    shares = [(0.0001, "0.01 %"), (0.001, "0.1 %"), (0.01, "1 %"), (0.1, "10 %"), (1, "100 %")]
    up = Axis("late", _place, [(-0.5, "none"), *shares])
    charts = [
        Chart(
            title=title,
            note="",
            x=across,
            y=up,
            lines=sorted(chain.from_iterable(map(_lines, rules, rules.values())), key=lambda line: not line.is_joined),
            marks=[Mark("", "now", y=0)],
            height=280,
            width=384,
            left=68,
        )
        for title, rules in found.values()
    ]
    title = "Lower and further left is better. A line runs over a rule's bound; its large mark is 10 s (Beam has none)."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(picture(charts, title, columns=3, has_one_legend=True), encoding="utf-8")


def _place(late: float) -> float:
    """Place a late share on the axis; negative numbers down to -1 are the lanes."""
    return LANES + ((1 - LANES) * max(LATE.place(late), 0) if late > 0 else LANES * late)


def _points(name: str, outcomes: Iterator[Outcome]) -> list[tuple[float, float, str]]:
    lane = -(list(STYLES).index(name) + 1) / (len(STYLES) + 1)
    known = (each for each in outcomes if np.isfinite(each.median))
    return [(min(max(each.median, EARLIEST), LATEST), each.late_share or lane, "") for each in known]


def _lines(name: str, compared: Compared) -> Iterator[Line]:
    style, shape = STYLES[name]
    for variant in ("", "hold", "max_age 10m"):
        chosen = (each for each in compared.outcomes if each.setting.partition(", ")[2] == variant)
        if points := _points(name, chosen):
            drawn = f"{style.removesuffix('-q')}-p99" if variant else style
            yield Line("", f"{drawn} thin", points, shape=SHAPES["speck"])
    yield Line(
        name.replace("`", ""), style, _points(name, iter([compared.default])), is_joined=False, shape=SHAPES[shape]
    )

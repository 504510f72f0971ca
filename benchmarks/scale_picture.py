"""`python -m benchmarks.scale_picture`: print the tables of `docs/concepts/costs-and-scale.md`, draw its picture."""

from collections.abc import Callable
from math import ceil, floor, log10
from pathlib import Path

import numpy as np

from benchmarks.compare.picture import SHAPES
from benchmarks.scale import MODES, RATES, Load, tables
from tidemark.pipeline.charts import Axis, Chart, Line, Mark, logarithmic, picture

STYLES = {"ticks": "frontier wide", "continuous": "band"}
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scale.svg"


def _limit(value: float, text: str) -> Mark:
    return Mark(text, "quantile", y=value, text_at_left=True)


FIGURES: tuple[tuple[str, Callable[[Load], float], Mark | None], ...] = (
    (
        "seconds of an hour's compaction",
        lambda load: load.compaction_seconds,
        _limit(600, "housekeeping's ten minutes"),
    ),
    ("calls of class A a minute", lambda load: load.class_a_a_minute, None),
    ("seconds of a commit, 30 days kept", lambda load: load.commit_seconds, None),
    ("commits to heartbeats a minute", lambda load: load.commits_a_minute, None),
    ("seconds between readings of base", lambda load: load.reading_seconds, _limit(60, "a window")),
    ("dollars a day, without machines", lambda load: load.dollars_a_day, None),
)
RATE = Axis("messages a second", logarithmic(80, 1_250_000, "").place, [(rate, f"{rate:,}") for rate in RATES])


def draw(path: Path = PICTURE) -> None:
    """Draw the curves as an SVG. The same constants give the same file."""
    charts = [_chart(*figure) for figure in FIGURES]
    text = picture(charts, "What grows with the traffic, by ticks and by rounds", columns=3, has_one_legend=True)
    path.write_text(text, encoding="utf-8")


def _chart(title: str, figure: Callable[[Load], float], limit: Mark | None) -> Chart:
    lines = []
    for mode in MODES:
        loads = [load for load in (Load(mode, rate) for rate in np.geomspace(100, 1_000_000, 200)) if load.keeps_up]
        lines.append(Line(mode, STYLES[mode], [(load.rate, figure(load), "") for load in loads], has_dots=False))
    ends = [line.points[-1] for line in lines if line.points[-1][0] < 900_000]
    lines.append(Line("the most that ticks keep up with", "frontier", ends, is_joined=False, shape=SHAPES["cross"]))
    values = [value for line in lines for _, value, _ in line.points]
    low, high = floor(log10(min(values)) - 0.05), ceil(log10(max(values)))
    up = logarithmic(10.0**low, 10.0**high, "")
    return Chart(title, "", RATE, up, lines, marks=[limit] if limit else [], height=250, width=372, left=62)


if __name__ == "__main__":
    print("\n\n".join(tables()))
    draw()

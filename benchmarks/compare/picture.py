"""The picture of the comparison: late share against how long after its end a window was ready, by rule and trace."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.compare.measure import Compared, Outcome

INK, GREY = "#1f2933", "#9aa5b1"
STYLES = {
    "tidemark band": {"color": "#2166c2", "marker": "o"},
    "tidemark frontier": {"color": "#1b8a5a", "marker": "s"},
    "without anchor": {"color": "#7a5195", "marker": "v"},
    "Flink": {"color": "#d9730d", "marker": "^"},
    "Flink, idleness": {"color": "#e8a33d", "marker": "<"},
    "Spark": {"color": "#c62828", "marker": "D"},
    "Beam": {"color": INK, "marker": "X"},
}
EARLIEST, LATEST = 9.0, 4000.0
"""Seconds that the picture shows. What is ready earlier, or before its end, is drawn at its left edge."""


def draw(found: Mapping[str, tuple[str, Mapping[str, Compared]]], path: Path) -> None:
    """Draw it as an SVG. The same outcomes give the same file."""
    mpl.rcParams.update(
        {
            "svg.hashsalt": "tidemark",
            "font.family": "sans-serif",
            "font.size": 10,
            "text.color": INK,
            "axes.labelcolor": INK,
            "axes.edgecolor": GREY,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "legend.frameon": False,
            "figure.facecolor": "white",
        }
    )
    figure, grid = plt.subplots(3, 3, figsize=(13, 11.5), sharex=True, sharey=True)
    for axes, (title, rules) in zip(grid.flat, found.values(), strict=True):
        axes.set_title(title, loc="left", fontsize=10.5)
        for name, compared in rules.items():
            _line(axes, name, compared)
    for axes in grid[-1]:
        axes.set_xlabel("a window is ready so long after its end (median, s)")
    for axes in grid[:, 0]:
        axes.set_ylabel("late")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="lower center", ncols=7, bbox_to_anchor=(0.5, -0.005))
    figure.suptitle(
        "Lower and further left is better. A line runs over a rule's bound; its large mark is 10 s (Beam has none).",
        x=0.07, y=0.985, ha="left", weight="bold", fontsize=12,
    )  # fmt: skip
    figure.tight_layout(rect=(0, 0.025, 1, 0.975))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def _height(name: str, outcome: Outcome) -> float:
    """The late share; without a late message a lane of the rule's own, so that the rules do not hide each other."""
    lanes = list(STYLES)
    return outcome.late_share or -1e-4 * (lanes.index(name) + 1) / (len(lanes) + 1)


def _line(axes: Axes, name: str, compared: Compared) -> None:
    style = STYLES[name]
    for aged in (False, True):
        chosen = [each for each in compared.outcomes if ("max_age" in each.setting) is aged]
        chosen = [each for each in chosen if np.isfinite(each.median)]
        if chosen:
            seconds = np.clip([each.median for each in chosen], EARLIEST, LATEST)
            late = [_height(name, each) for each in chosen]
            dashes = ":" if aged else "-"
            axes.plot(seconds, late, dashes, color=style["color"], marker=style["marker"], ms=3, lw=1, alpha=0.8)
    default = compared.default
    if np.isfinite(default.median):
        at = np.clip([default.median], EARLIEST, LATEST)
        axes.plot(at, [_height(name, default)], ls="", ms=9, mec="white", label=name, zorder=3, **style)
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=1e-4)
    axes.set(xlim=(EARLIEST * 0.9, LATEST), ylim=(-1.05e-4, 1.6))
    axes.set_yticks([-5e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1], ["none", "0.01 %", "0.1 %", "1 %", "10 %", "100 %"])
    axes.set_xticks([10, 30, 100, 300, 1000, 3000], ["10", "30", "100", "300", "1,000", "3,000"])
    axes.axhline(0, color=GREY, lw=0.6)
    axes.minorticks_off()
    axes.grid(color=GREY, alpha=0.2, lw=0.6)

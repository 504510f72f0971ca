"""`python -m benchmarks.scale_picture`: prints the tables of `docs/scale.md`, and draws its picture. It needs the extra
`docs`."""

import math
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt

from benchmarks.scale import MODES, RATES, ROUND_SECONDS, Load, tables

STYLES = {"ticks": {"color": "#e8a33d", "linewidth": 5}, "continuous": {"color": "#2166c2", "linewidth": 2}}
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "scale.svg"


def draw(path: Path = PICTURE) -> None:
    """Draw the curves as an SVG. The same constants give the same file."""
    mpl.rcParams.update(
        {"svg.hashsalt": "tidemark", "font.size": 10, "axes.spines.top": False, "axes.spines.right": False,
         "legend.frameon": False, "figure.facecolor": "white", "font.family": "sans-serif"}
    )  # fmt: skip
    curves = (
        (
            "seconds of an hour's compaction",
            lambda load: load.compaction_seconds,
            (600.0, "housekeeping's ten minutes"),
        ),
        ("calls of class A a minute", lambda load: load.class_a_a_minute, None),
        ("seconds of a commit, 30 days kept", lambda load: load.commit_seconds, (ROUND_SECONDS, "a round")),
        ("ids in the driver's memory, GB", lambda load: load.ids_bytes / 1e9, (2.0, "spark.driver_memory, by default")),
        ("seconds between readings of base", lambda load: load.reading_seconds, (60.0, "a window")),
        ("dollars a day, without machines", lambda load: sum(each for _, each in load.dollars_a_day()), None),
    )
    figure, grid = plt.subplots(2, 3, figsize=(13, 7), sharex=True)
    for axes, (title, of, limit) in zip(grid.flat, curves, strict=True):
        for mode in MODES:
            rates = [rate for rate in np.geomspace(100, 1_000_000, 200) if Load(mode, rate).keeps_up]
            axes.loglog(rates, [of(Load(mode, rate)) for rate in rates], label=mode, **STYLES[mode])
            if rates[-1] < 900_000:
                axes.plot(
                    rates[-1],
                    of(Load(mode, rates[-1])),
                    marker="X",
                    markersize=10,
                    color=STYLES[mode]["color"],
                    linestyle="",
                )
        if limit is not None:
            axes.axhline(limit[0], color="#9aa5b1", linestyle="--", linewidth=1)
            axes.annotate(
                limit[1], (100, limit[0]), xytext=(2, 3), textcoords="offset points", color="#5a6673", fontsize=9
            )
        least, most = axes.get_ylim()
        axes.set_ylim(10 ** math.floor(math.log10(least)), 10 ** math.ceil(math.log10(most)))
        axes.set_title(title, loc="left", fontsize=10.5)
        axes.set_xticks(RATES, [f"{rate:,}" for rate in RATES])
        axes.minorticks_off()
        axes.grid(axis="both", color="#e4e8ec", linewidth=0.7)
    for axes in grid[-1]:
        axes.set_xlabel("messages a second")
    figure.legend(*grid.flat[0].get_legend_handles_labels(), loc="upper right", ncols=2)
    figure.suptitle("What grows with the traffic, by ticks and by rounds. X: the most that ticks keep up with.",
                    x=0.04, ha="left", weight="bold", fontsize=12)  # fmt: skip
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    print("\n\n".join(tables()))
    draw()

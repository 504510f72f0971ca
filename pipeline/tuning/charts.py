"""Charts as values: axes, curves, bars and marks, and where each lies. `templates/chart.svg` draws them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, copysign, floor, log1p, log10

from tidemark.pipeline.tuning.phrases import percent, words

LEFT, RIGHT, TOP, BOTTOM = 96, 602, 18, 294
"""The edges of the plot, in the units of the drawing, which is 620 wide and 340 high."""

DAY = 86_400
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, DAY)
"""Round numbers of seconds, for the ticks of an even axis and the widths of bars."""

STRETCHED_TICKS = (
    *(0, 1, 2, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600),
    *(DAY, 5 * DAY, 30 * DAY, 365 * DAY),
)
"""Seconds at which a stretched axis may have a tick."""

CLOSEST_TICKS = 0.07
"""Ticks of a stretched axis are at least this share of its length apart, so that their texts do not touch."""

ZERO_GAP = 0.1
"""The share of a logarithmic axis of shares that lies between zero, which has no logarithm, and the least decade."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps values to positions between 0 and 1. A tick is a value and its text."""

    title: str
    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve. `style` is a class of the style sheet; each point is x, y and the text shown for it. Without a name it
    is not in the legend."""

    name: str
    style: str
    points: Sequence[tuple[float, float, str]]
    has_dots: bool = True


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar over `[start, end)` of the x axis."""

    start: float
    end: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the whole plot, upright at `x` or level at `y`, with a text beside it."""

    text: str
    style: str
    x: float | None = None
    y: float | None = None


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart, with its title and a note."""

    title: str
    note: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    bars: Sequence[Bar] = ()
    marks: Sequence[Mark] = ()

    def across(self, value: float) -> float:
        """Where a value of the x axis lies in the drawing; a value beyond the axis lies at its end."""
        return round(LEFT + min(max(self.x.place(value), 0.0), 1.0) * (RIGHT - LEFT), 1)

    def up(self, value: float) -> float:
        """The same for a value of the y axis."""
        return round(BOTTOM - min(max(self.y.place(value), 0.0), 1.0) * (BOTTOM - TOP), 1)

    def path(self, line: Line) -> str:
        """The curve as SVG path data."""
        return "M" + "L".join(f"{self.across(x)} {self.up(y)}" for x, y, _ in line.points)


def round_step(least: float) -> float:
    """The smallest of `STEPS` that is not below `least` seconds, else a number of whole days."""
    return next((step for step in STEPS if step >= least), DAY * ceil(least / DAY))


def linear(low: float, high: float, title: str) -> Axis:
    """An even axis for durations in seconds, with about six round ticks."""
    span = (high - low) or 1.0
    step = round_step(span / 6)
    ticks = [step * number for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    return Axis(title, lambda value: (value - low) / span, [(tick, _time(tick)) for tick in ticks])


def stretched(low: float, high: float, title: str) -> Axis:
    """An axis for durations in seconds of either sign: nearly even close to zero, logarithmic further out."""
    start, end = _stretch(low), _stretch(high)

    def place(value: float) -> float:
        return (_stretch(value) - start) / ((end - start) or 1.0)

    ticks: list[float] = []
    for tick in sorted({*STRETCHED_TICKS, *(-tick for tick in STRETCHED_TICKS)}):
        if low <= tick <= high and (not ticks or place(tick) - place(ticks[-1]) > CLOSEST_TICKS):
            ticks.append(float(tick))
    return Axis(title, place, [(tick, _time(tick)) for tick in ticks])


def shares(least: float, title: str) -> Axis:
    """A logarithmic axis from the decade of `least` to one; zero has a place of its own below a gap."""
    lowest = min(floor(log10(least)), -1) if least > 0 else -4

    def place(value: float) -> float:
        return ZERO_GAP + (1 - ZERO_GAP) * max(0.0, 1 - log10(value) / lowest) if value > 0 else 0.0

    decades = [(10.0**power, percent(10.0**power)) for power in range(lowest, 1)]
    return Axis(title, place, [(0.0, "0"), *decades])


def counts(most: float, title: str) -> Axis:
    """A logarithmic axis for counts from one; nothing is at the bottom."""
    decades = max(1, ceil(log10(max(most, 2))))

    def place(value: float) -> float:
        return (log10(value) + 0.15) / (decades + 0.15) if value >= 1 else 0.0

    return Axis(title, place, [(10.0**power, f"{10**power:,}") for power in range(decades + 1)])


def _time(seconds: float) -> str:
    return words(seconds) if seconds else "0"


def _stretch(value: float) -> float:
    return copysign(log1p(abs(value) / 2), value)

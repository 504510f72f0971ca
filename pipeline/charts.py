"""Charts as plain values, and their rendering as SVG for the page, the tuning report and the documentation.

The template `chart.svg` renders them and escapes all text. Colours are classes of `chart.css`, which a standalone
picture embeds and a page includes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from itertools import pairwise
from math import ceil, copysign, floor, log1p, log10
from typing import TYPE_CHECKING, Any, ClassVar

from markupsafe import Markup

from tidemark.pipeline.phrases import percent, printable, words

if TYPE_CHECKING:
    from jinja2 import Environment

WIDTH, LEFT, BESIDE, TOP, BELOW = 620, 96, 18, 18, 46
"""Layout of a drawing, in its own units: the width, the plot's left edge, the margin to the right of the plot, the
plot's top edge, and the margin below the plot."""

STYLE = Markup(files("tidemark.pipeline").joinpath("templates/chart.css").read_text())  # noqa: S704 (our own)
"""The style sheet of charts, with a light and a dark scheme."""

DAY = 86_400
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, DAY)
"""Round numbers of seconds, for the ticks of a linear axis and the widths of bars."""

STRETCHED_TICKS = (
    *(0, 1, 2, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600),
    *(DAY, 5 * DAY, 30 * DAY, 365 * DAY),
)
"""The values, in seconds, that an axis made by `stretched` may label."""

CLOSEST_TICKS = 0.07
"""Minimum distance between two ticks of `stretched`, as a fraction of the axis. Labels of closer ticks would
overlap."""

HEADING, LEGEND_ROW, BETWEEN = 26, 16, 10
"""Height of a chart's title in a picture, height of a row of its legend, and gap between two charts."""

LETTER = 6.6
"""Average width of a letter in units of the drawing, for estimating the width of a string."""

ZERO_GAP = 0.1
"""Gap between zero and the lowest power of ten on the axis of `shares`, as a fraction of the axis. Zero has no
logarithm, so it is drawn apart."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis. `place` maps a value to a position between 0 and 1. A tick is a value and its label."""

    title: str
    place: Callable[[float], float]
    ticks: Sequence[tuple[float, str]]


@dataclass(frozen=True, slots=True)
class Line:
    """A curve, or separate points if `is_joined` is false. `style` is a class of the style sheet.

    A point is x, y and a tooltip. A `shape` is SVG path data relative to the point. It is drawn in place of a dot, and
    has no tooltip. A line without a name is left out of the legend.
    """

    name: str
    style: str
    points: Sequence[tuple[float, float, str]]
    has_dots: bool = True
    is_joined: bool = True
    shape: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar over `[start, end)` of the x axis."""

    start: float
    end: float
    height: float
    text: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the whole plot, vertical at `x` or horizontal at `y`, with a label."""

    text: str
    style: str
    x: float | None = None
    y: float | None = None
    text_at_left: bool = False


@dataclass(frozen=True, slots=True)
class Area:
    """A shaded range of the x axis, over the whole height of the plot."""

    start: float
    end: float
    style: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Heat:
    """Square cells of one colour. `corners` are their lower left corners, `size` is their width and height, and `text`
    explains the colour."""

    style: str
    size: float
    corners: Sequence[tuple[float, float]]
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart: a title, a note, two axes, and what is drawn between them. `left` is the plot's left edge. `height`,
    `width` and `left` are in units of the drawing."""

    title: str
    note: str
    x: Axis
    y: Axis
    lines: Sequence[Line] = ()
    bars: Sequence[Bar] = ()
    marks: Sequence[Mark] = ()
    areas: Sequence[Area] = ()
    heat: Sequence[Heat] = ()
    height: int = 340
    width: int = WIDTH
    left: int = LEFT

    top: ClassVar[int] = TOP

    @property
    def right(self) -> int:
        return self.width - BESIDE

    @property
    def bottom(self) -> int:
        return self.height - BELOW

    def across(self, value: float) -> float:
        """Return the x coordinate of a value in the drawing. A value beyond the axis is placed at the nearer end."""
        return round(self.left + min(max(self.x.place(value), 0.0), 1.0) * (self.right - self.left), 1)

    def up(self, value: float) -> float:
        """Return the y coordinate of a value in the drawing. A value beyond the axis is placed at the nearer end."""
        return round(self.bottom - min(max(self.y.place(value), 0.0), 1.0) * (self.bottom - TOP), 1)

    def placed(self, line: Line) -> list[tuple[float, float, str]]:
        """Return the points of a line in coordinates of the drawing."""
        return [(self.across(x), self.up(y), text) for x, y, text in line.points]

    def path(self, line: Line) -> str:
        """Return the curve as SVG path data."""
        return "M" + "L".join(f"{x} {y}" for x, y, _ in self.placed(line))

    def squares(self, heat: Heat) -> str:
        """Return the cells as SVG path data."""
        parts = []
        for x, y in heat.corners:
            left, top = round(self.across(x)), round(self.up(y + heat.size))
            width, height = round(self.across(x + heat.size)) - left, round(self.up(y)) - top
            parts.append(f"M{left} {min(top, self.bottom - 2)}h{max(width, 2)}v{max(height, 2)}H{left}")
        return "".join(parts)

    def label(self, mark: Mark, number: int) -> tuple[float, float, str]:
        """Return the position of a mark's label: x, y and the text anchor. The anchor is `start` if the text begins
        at x, and `end` if it ends there. The labels of vertical lines are stacked by `number`."""
        x, side = self.across(mark.x or 0), "end" if mark.text_at_left else "start"
        if mark.y is not None:
            x, side = (self.left + 4, "start") if mark.text_at_left else (self.right - 4, "end")
            return x, round(self.up(mark.y) - 5, 1), side
        if x + 6 + LETTER * len(mark.text) > self.right:
            side = "end"
        return round(x - 6 if side == "end" else x + 6, 1), TOP + 11 + 15 * number, side


@cache
def templates() -> "Environment":
    """Return the Jinja environment for chart templates. A page overlays it with its own loader."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # imported here, because few commands draw

    made = Environment(
        loader=PackageLoader("tidemark.pipeline"),
        autoescape=True,  # stream names and paths may contain markup
        finalize=lambda value: printable(value) if type(value) is str else value,  # not markup from templates
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    drawing: Any = made.get_template("chart.svg").module
    made.globals |= {"draw": drawing.svg, "chart_style": STYLE}
    return made


def picture(charts: Sequence[Chart], title: str = "", columns: int = 1, has_one_legend: bool = False) -> str:
    """Render charts of the same width in a grid as a standalone SVG file, with titles and legends. With
    `has_one_legend`, only the first chart's legend is drawn."""
    width, top, placed = charts[0].width * columns, 44 if title else 8, []
    shared, room = _legend(charts[0], width) if has_one_legend else ([], 0)
    shared_at, top = top + 8, top + (room + 16 if has_one_legend else 0)
    for first in range(0, len(charts), columns):
        row = charts[first : first + columns]
        legends = [([], 0) if has_one_legend else _legend(chart, chart.width) for chart in row]
        down = top + HEADING + max(room for _, room in legends)
        for number, (chart, (samples, _)) in enumerate(zip(row, legends, strict=True)):
            placed.append((chart, chart.width * number, top, samples, down))
        top = down + BETWEEN + max(chart.height for chart in row)
    drawing: Any = templates().get_template("chart.svg").module
    return str(drawing.picture(title, width, top, STYLE, shared, shared_at, placed))


def _legend(chart: Chart, width: int) -> tuple[list[tuple[Line, float, int]], int]:
    """Lay out the legend in rows of at most `width`. Return each named line with the x and y of its sample, and the
    total height of the rows."""
    samples, x, y = list[tuple[Line, float, int]](), 14.0, 0
    for line in (line for line in chart.lines if line.name):
        room = 34 + LETTER * len(line.name)
        if samples and x + room > width:
            x, y = 14.0, y + LEGEND_ROW
        samples.append((line, round(x, 1), y))
        x += room + BETWEEN
    return samples, y + LEGEND_ROW if samples else 0


def round_step(least: float) -> float:
    """Return the smallest of `STEPS` that is at least `least` seconds. Above one day, round up to whole days."""
    return next((step for step in STEPS if step >= least), DAY * ceil(least / DAY))


def linear(low: float, high: float, title: str) -> Axis:
    """Return a linear axis for durations in seconds, with about six round ticks."""
    return _even(low, high, round_step((high - low) / 6), title, _time)


def moments(low: float, high: float, title: str) -> Axis:
    """Return a linear axis for times in seconds since the epoch, with about five round ticks in UTC."""
    step = max(round_step((high - low) / 5), 1)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < DAY else "%d %b"
    return _even(low, high, step, title, lambda tick: datetime.fromtimestamp(tick, UTC).strftime(form))


def _even(low: float, high: float, step: float, title: str, form: Callable[[float], str]) -> Axis:
    ticks = [step * number for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    return Axis(title, lambda value: (value - low) / ((high - low) or 1.0), [(tick, form(tick)) for tick in ticks])


def stretched(low: float, high: float, title: str) -> Axis:
    """Return an axis for durations in seconds of either sign: nearly linear close to zero, logarithmic further out."""
    start, end = _stretch(low), _stretch(high)

    def place(value: float) -> float:
        return (_stretch(value) - start) / ((end - start) or 1.0)

    ticks: list[float] = []
    for tick in sorted({*STRETCHED_TICKS, *(-tick for tick in STRETCHED_TICKS)}):
        if low <= tick <= high and (not ticks or place(tick) - place(ticks[-1]) > CLOSEST_TICKS):
            ticks.append(float(tick))
    return Axis(title, place, [(tick, _time(tick)) for tick in ticks])


LEAST_POWER = -12
"""The smallest power of ten on an axis for fractions. A smaller fraction needs a trace of over 10^12 messages."""


def shares(least: float, title: str) -> Axis:
    """Return a logarithmic axis for fractions, from the power of ten at or below `least` up to 1. Zero is placed at the
    start, before a gap."""
    positive = logarithmic(10.0 ** min(max(floor(log10(least)), LEAST_POWER), -1), 1.0, title, percent)

    def place(value: float) -> float:
        return ZERO_GAP + (1 - ZERO_GAP) * max(0.0, positive.place(value)) if value > 0 else 0.0

    return Axis(title, place, [(0.0, "0"), *positive.ticks])


def logarithmic(low: float, high: float, title: str, form: Callable[[float], str] = "{:,g}".format) -> Axis:
    """Return a logarithmic axis with a tick at each power of ten. Values of zero or less are placed at the start of
    the axis."""

    def place(value: float) -> float:
        return (log10(value) - log10(low)) / log10(high / low) if value > 0 else 0.0

    powers = range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)
    return Axis(title, place, [(10.0**power, form(10.0**power)) for power in powers])


def counts(most: float, title: str) -> Axis:
    """Return a logarithmic axis for counts of one or more. A count of zero is placed at the start of the axis."""
    return logarithmic(0.7, 10.0 ** max(1, ceil(log10(max(most, 2)))), title, "{:,.0f}".format)


def stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, str]]:
    """Return the points of a step line, in which each value holds until the next point."""
    corners = [points[0]]
    for (_, value), after in pairwise(points):
        corners += [(after[0], value), after]
    return [(*corner, "") for corner in corners]


def _time(seconds: float) -> str:
    return words(seconds) if seconds else "0"


def _stretch(value: float) -> float:
    return copysign(log1p(abs(value) / 2), value)

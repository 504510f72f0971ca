"""Charts as plain values, and their rendering as SVG for the page, the tuning report and the documentation.

Colours are classes of `chart.css`, which a standalone picture embeds and a page includes. All text is escaped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from itertools import pairwise
from math import ceil, copysign, floor, log1p, log10

from tidemark.pipeline.phrases import percent, printable, words

WIDTH, LEFT, BESIDE, TOP, BELOW = 620, 96, 18, 18, 46
"""Layout of a drawing, in its own units: the width, the plot's left edge, the margin to the right of the plot, the
plot's top edge, and the margin below the plot."""

STYLE = files("tidemark.pipeline").joinpath("chart.css").read_text()
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
"""Average width of a letter in units of the drawing, for estimating the width of a text."""

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

    @property
    def right(self) -> int:
        return self.width - BESIDE

    def across(self, value: float) -> float:
        """Return the x coordinate of a value in the drawing. A value beyond the axis is moved to its end."""
        return round(self.left + min(max(self.x.place(value), 0.0), 1.0) * (self.right - self.left), 1)

    def up(self, value: float) -> float:
        """Return the y coordinate of a value in the drawing. A value beyond the axis is moved to its end."""
        bottom = self.height - BELOW
        return round(bottom - min(max(self.y.place(value), 0.0), 1.0) * (bottom - TOP), 1)

    def path(self, line: Line) -> str:
        """Return the curve as SVG path data."""
        return "M" + "L".join(f"{self.across(x)} {self.up(y)}" for x, y, _ in line.points)


def svg(chart: Chart, attributes: str = "") -> str:
    """Render a chart as one SVG element that fills its container. `attributes` are added to the element."""
    size = f'viewBox="0 0 {chart.width} {chart.height}" role="img" aria-label="{_text(chart.title)}"'
    return f"<svg {size}{attributes}>{''.join(_parts(chart))}</svg>"


def picture(charts: Sequence[Chart], title: str = "", columns: int = 1, has_one_legend: bool = False) -> str:
    """Render charts of the same width in a grid as a standalone SVG file, with titles and legends. With
    `has_one_legend`, only the first chart's legend is drawn."""
    width, top = charts[0].width * columns, 44 if title else 8
    parts = [f'<text class="title" x="14" y="30">{_text(title)}</text>'] if title else []
    if has_one_legend:
        legend, room = _legend(charts[0], 0, top + 8, width)
        parts, top = [*parts, *legend], top + room + 16
    for first in range(0, len(charts), columns):
        row = charts[first : first + columns]
        legends = [_legend(chart, chart.width * place, top + 34, chart.width) for place, chart in enumerate(row)]
        down = top + HEADING + (0 if has_one_legend else max(room for _, room in legends))
        for place, (chart, (legend, _)) in enumerate(zip(row, legends, strict=True)):
            across = chart.width * place
            parts.append(f'<text class="heading" x="{across + 14}" y="{top + 16}">{_text(chart.title)}</text>')
            parts += [] if has_one_legend else legend
            parts.append(svg(chart, f' x="{across}" y="{down}" width="{chart.width}" height="{chart.height}"'))
        top = down + BETWEEN + max(chart.height for chart in row)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {top}" width="{width}" height="{top}">'
        f'<style>{STYLE}</style><rect class="paper" width="100%" height="100%"/>{"".join(parts)}</svg>\n'
    )


def _legend(chart: Chart, left: int, top: int, width: int) -> tuple[list[str], int]:
    parts, x, y = list[str](), left + 14.0, top
    named = [line for line in chart.lines if line.name]
    for line in named:
        room = 34 + LETTER * len(line.name)
        if x + room > left + width and x > left + 14:
            x, y = left + 14.0, y + LEGEND_ROW
        sample = (
            f'<path class="line {line.style}" d="M{x:g} {y}h22"/>' if line.is_joined else _dots([(x + 11, y, "")], line)
        )
        parts.append(f'{sample}<text x="{x + 28:g}" y="{y + 4}">{_text(line.name)}</text>')
        x += room + BETWEEN
    return parts, y - top + LEGEND_ROW if named else 0


def _parts(chart: Chart) -> Iterator[str]:
    left, right, bottom = chart.left, chart.right, chart.height - BELOW
    for area in chart.areas:
        start, end = chart.across(area.start), chart.across(area.end)
        width = max(round(end - start, 1), 1.5)
        yield f'<rect class="area {area.style}" x="{start}" y="{TOP}" width="{width}" height="{bottom - TOP}">'
        yield f"<title>{_text(area.text)}</title></rect>"
    for value, text in chart.y.ticks:
        y = chart.up(value)
        yield f'<path class="grid" d="M{left} {y}H{right}"/>'
        yield f'<text x="{left - 8}" y="{y + 4:g}" text-anchor="end">{_text(text)}</text>'
    for value, text in chart.x.ticks:
        x = chart.across(value)
        yield f'<path class="grid" d="M{x} {bottom}v4"/>'
        yield f'<text x="{x}" y="{bottom + 17}" text-anchor="middle">{_text(text)}</text>'
    middle = f'x="{(left + right) / 2}" y="{chart.height - 8}"'
    turned = f'transform="translate(13 {(TOP + bottom) / 2}) rotate(-90)"'
    for place, axis in ((middle, chart.x), (turned, chart.y)):
        yield f'<text class="axis" {place} text-anchor="middle">{_text(axis.title)}</text>'
    for heat in chart.heat:
        yield f'<path class="heat {heat.style}" d="{_squares(chart, heat)}"><title>{_text(heat.text)}</title></path>'
    for bar in chart.bars:
        start, top = chart.across(bar.start), chart.up(bar.height)
        size = f'width="{max(round(chart.across(bar.end) - start - 0.6, 1), 0.8)}" height="{round(bottom - top, 1)}"'
        yield f'<rect class="bar" x="{start}" y="{top}" {size}><title>{_text(bar.text)}</title></rect>'
    for mark in chart.marks:
        where = f"M{chart.across(mark.x or 0)} {TOP}V{bottom}"
        if mark.y is not None:
            where = f"M{left} {chart.up(mark.y)}H{right}"
        yield f'<path class="mark {mark.style}" d="{where}"/>'
    for line in chart.lines:
        if line.is_joined and len(line.points) > 1:
            yield f'<path class="line {line.style}" d="{chart.path(line)}"/>'
        if line.has_dots:
            yield _dots([(chart.across(x), chart.up(y), text) for x, y, text in line.points], line)
    for number, mark in enumerate(one for one in chart.marks if one.text):
        yield _label(chart, mark, TOP + 11 + 15 * number)


def _label(chart: Chart, mark: Mark, y: float) -> str:
    if mark.y is not None:
        x, side = (chart.left + 4.0, "start") if mark.text_at_left else (chart.right - 4.0, "end")
        y = chart.up(mark.y) - 5
    else:
        x = chart.across(mark.x or 0)
        side = "end" if mark.text_at_left or x + 6 + LETTER * len(mark.text) > chart.right else "start"
        x += -6 if side == "end" else 6
    return f'<text class="marked" x="{x:g}" y="{y:g}" text-anchor="{side}">{_text(mark.text)}</text>'


def _dots(points: Sequence[tuple[float, float, str]], line: Line) -> str:
    if line.shape:
        drawn = "".join(f"M{x:g} {y:g}{line.shape}" for x, y, _ in points)
        return f'<path class="dot {line.style}" d="{drawn}"/>'
    return "".join(
        f'<circle class="dot {line.style}" cx="{x:g}" cy="{y:g}" r="3.2"><title>{_text(text)}</title></circle>'
        for x, y, text in points
    )


def _squares(chart: Chart, heat: Heat) -> str:
    parts = []
    for x, y in heat.corners:
        left, top = round(chart.across(x)), round(chart.up(y + heat.size))
        width, height = round(chart.across(x + heat.size)) - left, round(chart.up(y)) - top
        parts.append(f"M{left} {min(top, chart.height - BELOW - 2)}h{max(width, 2)}v{max(height, 2)}H{left}")
    return "".join(parts)


def _text(text: str) -> str:
    return escape(printable(text))


def round_step(least: float) -> float:
    """Return the smallest of `STEPS` that is at least `least` seconds. Above one day, round up to whole days."""
    return next((step for step in STEPS if step >= least), DAY * ceil(least / DAY))


def linear(low: float, high: float, title: str) -> Axis:
    """Return a linear axis for durations in seconds, with about six round ticks."""
    span = (high - low) or 1.0
    step = round_step(span / 6)
    ticks = [step * number for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    return Axis(title, lambda value: (value - low) / span, [(tick, _time(tick)) for tick in ticks])


def moments(low: float, high: float, title: str) -> Axis:
    """Return a linear axis for times in seconds since the epoch, with about five round ticks in UTC."""
    span = (high - low) or 1.0
    step = max(round_step(span / 5), 1)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < DAY else "%d %b"
    ticks = [step * number for number in range(ceil(low / step), floor(high / step) + 1)]
    named = [(tick, datetime.fromtimestamp(tick, UTC).strftime(form)) for tick in ticks]
    return Axis(title, lambda value: (value - low) / span, named)


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


def shares(least: float, title: str) -> Axis:
    """Return a logarithmic axis for fractions, from the power of ten below `least` up to 1. Zero is at the start,
    before a gap."""
    lowest = min(floor(log10(least)), -1) if least > 0 else -4

    def place(value: float) -> float:
        return ZERO_GAP + (1 - ZERO_GAP) * max(0.0, 1 - log10(value) / lowest) if value > 0 else 0.0

    decades = [(10.0**power, percent(10.0**power)) for power in range(lowest, 1)]
    return Axis(title, place, [(0.0, "0"), *decades])


def logarithmic(low: float, high: float, title: str, form: Callable[[float], str] = "{:,g}".format) -> Axis:
    """Return a logarithmic axis with a tick at each power of ten. Values of zero or less are at the start of the
    axis."""

    def place(value: float) -> float:
        return (log10(value) - log10(low)) / log10(high / low) if value > 0 else 0.0

    powers = range(ceil(log10(low) - 1e-9), floor(log10(high) + 1e-9) + 1)
    return Axis(title, place, [(10.0**power, form(10.0**power)) for power in powers])


def counts(most: float, title: str) -> Axis:
    """Return a logarithmic axis for counts of one and more. A count of zero is at the start of the axis."""
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

"""Charts as inline SVG, drawn here: scales, axes, lines and bars. Colours come from the page's own style.

Text is escaped here; what is passed in is plain.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, copysign, floor, log1p, log10

WIDTH, HEIGHT = 620, 340
LEFT, RIGHT, TOP, BOTTOM = 96, 18, 18, 46
"""Of the plot within the chart, in its own units."""

DAY = 86_400
STEPS = (0, 1, 2, 5, 10, 20, 40, 60, 120, 300, 600, 1800, 3600, 4 * 3600, 12 * 3600, DAY, 5 * DAY, 30 * DAY, 365 * DAY)
"""Seconds at which an axis for durations may have a tick."""

EVEN_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800, 3600, 2 * 3600, 6 * 3600, 12 * 3600, DAY)
"""Seconds between two ticks of an even axis."""

Place = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values to positions between 0 and 1, with ticks: a value and how it is written."""

    place: Place
    ticks: tuple[tuple[float, str], ...]
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A curve. `style` is one of the page's classes; each point is x, y, and what is said of it."""

    name: str
    style: str
    points: tuple[tuple[float, float, str], ...]
    has_marks: bool = True


@dataclass(frozen=True, slots=True)
class Mark:
    """A line across the plot, upright at `x` or level at `y`, with a word beside it."""

    text: str
    style: str
    x: float | None = None
    y: float | None = None


def linear(low: float, high: float, title: str, write: Callable[[float], str]) -> Axis:
    """An even axis for durations in seconds, with round ticks."""
    span = (high - low) or 1.0
    step = next((step for step in EVEN_STEPS if step >= span / 6), DAY * ceil(span / 6 / DAY))
    ticks = [step * number for number in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
    return Axis(lambda value: (value - low) / span, tuple((tick, write(tick)) for tick in ticks), title)


def stretched(low: float, high: float, title: str, write: Callable[[float], str]) -> Axis:
    """An axis for durations in seconds: near zero nearly even, further out by their magnitude; both signs."""
    start, end = _stretch(low), _stretch(high)
    span = (end - start) or 1.0
    signed = sorted({*STEPS, *(-step for step in STEPS)})
    kept: list[tuple[float, str]] = []
    for tick in signed:
        at = (_stretch(tick) - start) / span
        if low <= tick <= high and (not kept or at - (_stretch(kept[-1][0]) - start) / span > 0.07):
            kept.append((float(tick), write(tick)))
    return Axis(lambda value: (_stretch(value) - start) / span, tuple(kept), title)


def shares(least: float, title: str, write: Callable[[float], str]) -> Axis:
    """A logarithmic axis from the decade of `least` to one, with a place of its own for zero, below a gap."""
    lowest = min(floor(log10(least)), -1) if least > 0 else -4
    zero = 0.1

    def place(value: float) -> float:
        if value <= 0:
            return 0.0
        return zero + (1 - zero) * max(0.0, (log10(value) - lowest) / -lowest)

    ticks = [(0.0, write(0.0)), *((10.0**power, write(10.0**power)) for power in range(lowest, 1))]
    return Axis(place, tuple(ticks), title)


def counts(most: float, title: str) -> Axis:
    """A logarithmic axis for counts from one; what is less is at the bottom."""
    decades = max(1, ceil(log10(max(most, 2))))
    ticks = tuple((10.0**power, f"{10**power:,}") for power in range(decades + 1))
    return Axis(lambda value: 0.0 if value < 1 else (log10(value) + 0.15) / (decades + 0.15), ticks, title)


def line_chart(x: Axis, y: Axis, lines: Sequence[Line], marks: Sequence[Mark] = (), label: str = "") -> str:
    """Curves over axes, with lines across for what is set or aimed at."""
    parts = [_frame(x, y), *(_across(x, y, mark) for mark in marks), *(_curve(x, y, line) for line in lines)]
    parts += [_word(x, y, mark, row) for row, mark in enumerate(marks)]
    return _svg(parts, label)


def bar_chart(
    x: Axis, y: Axis, bars: Sequence[tuple[float, float, float, str]], marks: Sequence[Mark] = (), label: str = ""
) -> str:
    """Bars from and to on the x axis, with a height and what is said of each."""
    parts = [_frame(x, y)]
    for start, end, height, said in bars:
        left, right = _x(x, start), _x(x, end)
        top = _y(y, height)
        parts.append(
            f'<rect class="bar" x="{left:.1f}" y="{top:.1f}" width="{max(right - left - 0.6, 0.8):.1f}" '
            f'height="{max(HEIGHT - BOTTOM - top, 0):.1f}"><title>{escape(said)}</title></rect>'
        )
    parts += [_across(x, y, mark) + _word(x, y, mark, row) for row, mark in enumerate(marks)]
    return _svg(parts, label)


def _curve(x: Axis, y: Axis, line: Line) -> str:
    places = [(_x(x, across), _y(y, up)) for across, up, _ in line.points]
    path = " ".join(f"{'L' if number else 'M'}{left:.1f} {top:.1f}" for number, (left, top) in enumerate(places))
    drawn = [f'<path class="line {line.style}" d="{path}"/>'] if len(places) > 1 else []
    if line.has_marks:
        drawn += [
            f'<circle class="dot {line.style}" cx="{left:.1f}" cy="{top:.1f}" r="3.2">'
            f"<title>{escape(said)}</title></circle>"
            for (left, top), (_, _, said) in zip(places, line.points, strict=True)
        ]
    return "".join(drawn)


def _across(x: Axis, y: Axis, mark: Mark) -> str:
    left, right, top, bottom = float(LEFT), float(WIDTH - RIGHT), float(TOP), float(HEIGHT - BOTTOM)
    if mark.x is not None:
        left = right = _x(x, mark.x)
    else:
        top = bottom = _y(y, mark.y or 0.0)
    return f'<line class="mark {mark.style}" x1="{left:.1f}" x2="{right:.1f}" y1="{top:.1f}" y2="{bottom:.1f}"/>'


def _word(x: Axis, y: Axis, mark: Mark, row: int) -> str:
    """A mark's text: beside the line, in a row of its own; or above it, at its end."""
    if mark.x is None:
        left, top, anchor = WIDTH - RIGHT - 4.0, _y(y, mark.y or 0.0) - 5, "end"
    else:
        left, top, anchor = _x(x, mark.x) + 6, TOP + 11.0 + 15 * row, "start"
        if left > WIDTH - RIGHT - 130:
            left, anchor = left - 12, "end"
    return f'<text class="marked" x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}">{escape(mark.text)}</text>'


def _frame(x: Axis, y: Axis) -> str:
    drawn = []
    for value, text in y.ticks:
        top = _y(y, value)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{top:.1f}" y2="{top:.1f}"/>')
        drawn.append(f'<text class="tick" x="{LEFT - 8}" y="{top + 4:.1f}" text-anchor="end">{escape(text)}</text>')
    for value, text in x.ticks:
        left, bottom = _x(x, value), HEIGHT - BOTTOM
        drawn.append(f'<line class="grid" x1="{left:.1f}" x2="{left:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        drawn.append(f'<text class="tick" x="{left:.1f}" y="{bottom + 17}" text-anchor="middle">{escape(text)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(
        f'<text class="axis" x="{middle:.1f}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.title)}</text>'
        f'<text class="axis" transform="translate(13 {(TOP + HEIGHT - BOTTOM) / 2:.1f}) rotate(-90)" '
        f'text-anchor="middle">{escape(y.title)}</text>'
    )
    return "".join(drawn)


def _svg(parts: Sequence[str], label: str) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'


def _x(axis: Axis, value: float) -> float:
    return LEFT + min(max(axis.place(value), 0.0), 1.0) * (WIDTH - LEFT - RIGHT)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - BOTTOM - min(max(axis.place(value), 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)


def _stretch(value: float) -> float:
    return copysign(log1p(abs(value) / 2), value)

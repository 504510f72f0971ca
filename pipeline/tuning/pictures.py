"""The report's pictures: what each shows, and a title that says what follows from it."""

from collections.abc import Callable, Sequence
from itertools import pairwise

from pipeline.durations import format_duration
from pipeline.tuning.charts import Axis, Line, Mark, bar_chart, counts, line_chart, linear, shares, stretched
from pipeline.tuning.disorder import Distribution
from pipeline.tuning.phrases import at_most, percent, stands, words
from pipeline.tuning.report import TuningReport
from pipeline.tuning.stream_disorder import STEP_US
from pipeline.tuning.sweep import Outcome, Variant

Picture = tuple[str, list[tuple[str, str]], str, str]
"""Title, legend (style and name), the chart, a note."""

Point = Callable[[Outcome], tuple[float | None, float]]

STEP = STEP_US / 1e6

BARS = 80
"""About so many of them in a histogram."""


def late_by_band(report: TuningReport) -> Picture:
    """The late share against the band, for every variant."""
    y = _share_axis(report)
    lines = [
        _line(report, variant, lambda each: (each.band.total_seconds(), each.late_share))
        for variant in report.tuning.variants
    ]
    marks = [_present(report), Mark(f"aim: {at_most(report.target)}", "aim", y=report.target)]
    drawn = line_chart(_band_axis(report), y, lines, marks, "the late share against the band")
    return (
        f"{_bands(report)} for {at_most(report.target)}",
        _legend(report),
        drawn,
        "Each point is one band: exactly what a replay with it says. Zero has a place of its own, below the scale.",
    )


def lag_by_band(report: TuningReport) -> Picture:
    """How far the watermark is behind, against the band."""
    lines, legend = [], []
    for variant in report.rules:
        for style, name, which in ((variant.rule, "median", "lag_p50"), (f"{variant.rule}-p99", "99 %", "lag_p99")):
            points = tuple(
                (each.band.total_seconds(), getattr(each, which), _said(each))
                for each in report.tuning.of(variant)
                if getattr(each, which) is not None
            )
            lines.append(Line(variant.name, style, points, has_marks=which == "lag_p50"))
            legend.append((style, f"{variant.name}, {name}"))
    lags = [up for line in lines for _, up, _ in line.points] or [0.0]
    y = stretched(min(0.0, *lags), max(lags), "watermark behind now", _clock)
    drawn = line_chart(_band_axis(report), y, lines, [_present(report)], "the watermark's lag against the band")
    state = []
    for variant in report.rules:
        lag = report.tuning.at(variant, report.band).lag_p50
        state.append(f"{'nowhere yet' if lag is None else stands(lag)} under the rule {variant.rule}")
    return (
        f"With the present band the watermark is {', '.join(state)}",
        legend,
        drawn,
        "At the ticks at which messages were still published. Below zero: the watermark is ahead of this clock.",
    )


def late_by_lag(report: TuningReport) -> Picture:
    """What a second of freshness costs: the late share against the lag, one curve for each variant."""
    lines = [_line(report, variant, lambda each: (each.lag_p50, each.late_share)) for variant in report.tuning.variants]
    lags = [across for line in lines for across, _, _ in line.points] or [0.0]
    x = stretched(min(0.0, *lags), max(lags), "watermark behind now, median", _clock)
    marks = [Mark(f"aim: {at_most(report.target)}", "aim", y=report.target)]
    drawn = line_chart(x, _share_axis(report), lines, marks, "the late share against the watermark's lag")
    band, frontier = (report.recommended(variant).outcome for variant in report.rules)
    title = "What a second of freshness costs under each rule"
    if band and frontier and band.lag_p50 is not None and frontier.lag_p50 is not None:
        gained = band.lag_p50 - frontier.lag_p50
        said = words(abs(gained))
        better = "frontier" if gained >= 0 else "band"
        title = f"For {at_most(report.target)}, the rule {better} is {said} fresher"
        if said == "0s":
            title = f"For {at_most(report.target)}, both rules are equally fresh"
    return title, _legend(report), drawn, "Left and low is good. The points of a curve are the bands, from 0s on."


def lag_of_messages(report: TuningReport) -> Picture:
    """The distribution of publish time less event time."""
    lag = report.disorder.lag
    bars, x = _bars(lag)
    most = max(height for _, _, height, _ in bars)
    marks = [
        Mark(f"{name} {words(lag.quantile(share))}", "quantile", x=lag.quantile(share))
        for name, share in (("50 %", 0.5), ("99.9 %", 0.999))
    ]
    drawn = bar_chart(x, counts(most, "messages"), bars, marks, "publish time less event time")
    half, most_of_them = lag.quantile(0.5), lag.quantile(0.99)
    title = f"Half of the messages are published within {words(half)} of their event, 99 % within {words(most_of_them)}"
    if half < 0:
        title = f"Half of the messages have an event time that is {words(-half)} or more after their publish time"
    return (
        title,
        [],
        drawn,
        f"From {words(lag.seconds[0])} to {words(lag.seconds[-1])}; what lies beyond the picture is in its outermost "
        "bars. A lag that all share is no disorder.",
    )


def disorder_of_messages(report: TuningReport) -> Picture:
    """How many messages are out of order by more than so much."""
    disorder = report.disorder.disorder
    total = beyond = sum(disorder.counts)
    points = []
    for seconds, count in zip(disorder.seconds, disorder.counts, strict=True):
        beyond -= count
        points.append((seconds, beyond / total))
    if points[0][0] > 0:
        points.insert(0, (0.0, 1.0))
    curve = tuple((seconds, share, "") for seconds, share in _stairs(_thinned(points)))
    x = stretched(0.0, max(disorder.seconds[-1], report.band.total_seconds(), 1.0), "out of order by more than", _clock)
    y = shares(1 / total, "share of messages", _percent_tick)
    drawn = line_chart(x, y, [Line("disorder", "whole", curve, has_marks=False)], [_present(report)], "disorder")
    return (
        f"{percent(report.disorder.beyond_band / total).capitalize()} of the messages "
        f"{'is' if not report.disorder.beyond_band else 'are'} out of order by more than the band",
        [],
        drawn,
        "A message's publish time less that of the first message with a greater event time. Not all of what exceeds "
        "the band is late: a watermark that something else holds back spares it.",
    )


def _bars(distribution: Distribution) -> tuple[list[tuple[float, float, float, str]], Axis]:
    """Bars of one width over all but the outermost messages, which are in the first and the last bar."""
    low, high = distribution.quantile(0.0001), distribution.quantile(0.9999)
    width = _width((high - low) / BARS)
    steps = round(width / STEP)  # in whole steps, since tenths are not exact as floats
    first, last = round(low / STEP) // steps, round(high / STEP) // steps
    heights = [0] * (last - first + 1)
    for seconds, count in zip(distribution.seconds, distribution.counts, strict=True):
        heights[min(max(round(seconds / STEP) // steps, first), last) - first] += count
    bars = []
    for number, height in enumerate(heights):
        start = (first + number) * width
        if height:
            bars.append(
                (start, start + width, float(height), f"{height:,} from {words(start)} to {words(start + width)}")
            )
    x = linear(first * width, (last + 1) * width, "publish time less event time", _clock)
    return bars, x


def _width(least: float) -> float:
    steps = (0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600, 7200, 21_600, 86_400)
    return next((step for step in steps if step >= least), 86_400.0 * (1 + least // 86_400))


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """With a corner at each point: a share holds until the next number of seconds that occurs."""
    corners = [points[0]]
    for (_, share), after in pairwise(points):
        corners += [(after[0], share), after]
    return corners


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the points that no eye could tell from their neighbours."""
    every = max(1, len(points) // 600)
    return [point for number, point in enumerate(points) if number % every == 0 or number == len(points) - 1]


def _line(report: TuningReport, variant: Variant, point: Point) -> Line:
    is_rule = variant in report.rules
    points = []
    for each in report.tuning.of(variant):
        across, up = point(each)
        if across is not None:
            points.append((across, up, _said(each)))
    return Line(variant.name, _style(report, variant), tuple(points), has_marks=is_rule)


def _style(report: TuningReport, variant: Variant) -> str:
    return variant.rule if variant in report.rules else f"{variant.rule}-q"


def _legend(report: TuningReport) -> list[tuple[str, str]]:
    return [(_style(report, variant), variant.name) for variant in report.tuning.variants]


def _said(outcome: Outcome) -> str:
    lag = "no watermark" if outcome.lag_p50 is None else f"{stands(outcome.lag_p50)} at the median"
    return f"{outcome.variant.name}, band {format_duration(outcome.band)}: {percent(outcome.late_share)} late, {lag}"


def _present(report: TuningReport) -> Mark:
    return Mark(f"present band {format_duration(report.band)}", "now", x=report.band.total_seconds())


def _bands(report: TuningReport) -> str:
    found = [report.recommended(variant) for variant in report.rules]
    return ", ".join(
        f"not even {format_duration(each.largest)} under the rule {each.variant.rule}"
        if each.outcome is None
        else f"{format_duration(each.outcome.band)} under the rule {each.variant.rule}"
        for each in found
    ).capitalize()


def _band_axis(report: TuningReport) -> Axis:
    bands = [outcome.band.total_seconds() for outcome in report.tuning.outcomes]
    return stretched(min(bands), max(bands), "band", _clock)


def _share_axis(report: TuningReport) -> Axis:
    least = min((each.late_share for each in report.tuning.outcomes if each.late), default=0.01)
    return shares(min(least, report.target or 1.0), "late share", _percent_tick)


def _clock(seconds: float) -> str:
    return words(seconds) if seconds else "0"


def _percent_tick(share: float) -> str:
    return percent(share) if share else "0"

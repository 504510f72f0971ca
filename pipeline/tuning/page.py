"""The tuning report as one HTML page with charts, which needs no network and no script. The page and its figures are
stored in the lake."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from jinja2 import PackageLoader

from tidemark.pipeline import charts
from tidemark.pipeline.clock import format_duration, from_us, iso, rough
from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.phrases import at_most, lag_text, percent, words
from tidemark.pipeline.tuning.disorder import STEP_US, Distribution
from tidemark.pipeline.tuning.report import TuningReport, behind, blame_sentence, recommendation_sentence, sentences
from tidemark.pipeline.tuning.sweep import BandOutcome

STEP = STEP_US / 1e6

BARS = 80
"""Approximate number of bars per histogram."""

OUTERMOST = 0.0001
"""Fraction of the messages that lie beyond each end of a histogram's scale. The outermost bars count them."""

MOST_POINTS = 600


def late_by_band(report: TuningReport) -> charts.Chart:
    """Return the chart of the late share against the band, with a curve per variant."""
    bands = ", ".join(f"{report.recommended(variant)} under the rule {variant.rule}" for variant in report.rules)
    return charts.Chart(
        title=f"{bands.capitalize()} for {at_most(report.target)}",
        note="Each point is the result of a replay with one band. Zero is drawn below the scale.",
        x=_band_axis(report),
        y=_late_axis(report),
        lines=_late_lines(report, lambda each: each.band.total_seconds()),
        marks=[_present(report), _aim(report)],
    )


def lag_by_band(report: TuningReport) -> charts.Chart:
    """Return the chart of the watermark's lag against the band."""
    lines = []
    for variant in report.rules:
        for name, style, field in (("median", variant.rule, "lag_p50"), ("99 %", f"{variant.rule}-p99", "lag_p99")):
            points = [
                (each.band.total_seconds(), getattr(each, field), _text(each))
                for each in report.tuning.of(variant)
                if getattr(each, field) is not None
            ]
            lines.append(charts.Line(f"{variant.name}, {name}", style, points, has_dots=field == "lag_p50"))
    lags = [lag for line in lines for _, lag, _ in line.points] or [0.0]
    here = [(variant.rule, report.tuning.at(variant, report.band).lag_p50) for variant in report.rules]
    states = [f"{'not set yet' if lag is None else lag_text(lag)} under the rule {rule}" for rule, lag in here]
    return charts.Chart(
        title=f"With the present band the watermark is {', '.join(states)}",
        note="Measured while messages were still published. Below zero: the watermark is ahead of now.",
        x=_band_axis(report),
        y=_lag_axis(lags, "watermark behind now"),
        lines=lines,
        marks=[_present(report)],
    )


def late_by_lag(report: TuningReport) -> charts.Chart:
    """Return the chart of the late share against the watermark's lag, with a curve per variant."""
    lines = _late_lines(report, lambda each: each.lag_p50)
    enough = (report.recommended(variant).outcome for variant in report.rules)
    band, frontier = (outcome.lag_p50 if outcome else None for outcome in enough)
    title = "The price of freshness under each rule"
    if band is not None and frontier is not None:
        gained = words(abs(band - frontier))
        fresher = f"the rule {'frontier' if band >= frontier else 'band'} is {gained} fresher"
        title = f"For {at_most(report.target)}, {'both rules are equally fresh' if gained == '0s' else fresher}"
    return charts.Chart(
        title=title,
        note="Points further left and lower are better. Each point of a curve is a band, from 0s on.",
        x=_lag_axis([lag for line in lines for lag, _, _ in line.points] or [0.0], "watermark behind now, median"),
        y=_late_axis(report),
        lines=lines,
        marks=[_aim(report)],
    )


def lag_of_messages(report: TuningReport) -> charts.Chart:
    """Return the histogram of the messages' lags. A lag is publish time minus event time."""
    lag = report.disorder.lag
    bars = _bars(lag)
    half, nearly_all = lag.quantile(0.5), lag.quantile(0.99)
    title = f"Half of the messages are published within {words(half)} of their event, 99 % within {words(nearly_all)}"
    if half < 0:
        title = f"Half of the messages have an event time that is {words(-half)} or more after their publish time"
    return charts.Chart(
        title=title,
        note=f"From {words(lag.seconds[0])} to {words(lag.seconds[-1])}; the outermost bars also count what lies "
        "further out. A lag that all messages share is not disorder.",
        x=charts.linear(bars[0].start, bars[-1].end, "publish time minus event time"),
        y=charts.counts(max(bar.height for bar in bars), "messages"),
        bars=[bar for bar in bars if bar.height],
        marks=[
            charts.Mark(f"{name} {words(lag.quantile(share))}", "quantile", x=lag.quantile(share))
            for name, share in (("50 %", 0.5), ("99.9 %", 0.999))
        ],
    )


def disorder_of_messages(report: TuningReport) -> charts.Chart:
    """Return the chart that shows, for each duration, the share of messages that are out of order by more than that."""
    disorder = report.disorder.disorder
    total = sum(disorder.counts)
    points = [(0.0, 1.0)] if disorder.seconds[0] > 0 else []
    reached = zip(disorder.seconds, accumulate(disorder.counts), strict=True)
    points += [(seconds, (total - within) / total) for seconds, within in reached]
    exceeding = report.disorder.beyond_band
    return charts.Chart(
        title=f"{percent(exceeding / total).capitalize()} of the messages {'are' if exceeding else 'is'} out of order "
        "by more than the band",
        note="A message's publish time minus that of the first message with a greater event time. A message that "
        "exceeds the band is not late if something else holds the watermark back.",
        x=_lag_axis([disorder.seconds[-1], report.band.total_seconds(), 1.0], "out of order by more than"),
        y=charts.shares(1 / total, "share of messages"),
        lines=[charts.Line("", "whole", _stairs(points), has_dots=False)],
        marks=[_present(report)],
    )


def _bars(distribution: Distribution) -> list[charts.Bar]:
    """Return bars of equal width. The first and the last bar also count the messages beyond them."""
    low, high = distribution.quantile(OUTERMOST), distribution.quantile(1 - OUTERMOST)
    width = charts.round_step((high - low) / BARS)
    steps = round(width / STEP)  # counted in whole steps, because tenths are not exact as floats
    first, last = round(low / STEP) // steps, round(high / STEP) // steps
    heights = [0] * (last - first + 1)
    for seconds, count in zip(distribution.seconds, distribution.counts, strict=True):
        heights[min(max(round(seconds / STEP) // steps, first), last) - first] += count
    return [
        charts.Bar(start, start + width, height, f"{height:,} from {words(start)} to {words(start + width)}")
        for start, height in ((number * width, height) for number, height in enumerate(heights, start=first))
    ]


def _stairs(points: Sequence[tuple[float, float]]) -> list[tuple[float, float, str]]:
    every = max(1, len(points) // MOST_POINTS)
    kept = [point for number, point in enumerate(points) if number % every == 0 or number == len(points) - 1]
    return charts.stairs(kept)


def _late_lines(report: TuningReport, across: Callable[[BandOutcome], float | None]) -> list[charts.Line]:
    lines = []
    for variant in report.tuning.variants:
        outcomes, is_rule = report.tuning.of(variant), variant in report.rules
        points = [(x, each.late_share, _text(each)) for each in outcomes if (x := across(each)) is not None]
        lines.append(charts.Line(variant.name, variant.rule if is_rule else f"{variant.rule}-q", points, is_rule))
    return lines


def _text(outcome: BandOutcome) -> str:
    lag = "no watermark" if outcome.lag_p50 is None else f"{lag_text(outcome.lag_p50)} at the median"
    return f"{outcome.variant.name}, band {format_duration(outcome.band)}: {percent(outcome.late_share)} late, {lag}"


def _present(report: TuningReport) -> charts.Mark:
    return charts.Mark(f"present band {format_duration(report.band)}", "now", x=report.band.total_seconds())


def _aim(report: TuningReport) -> charts.Mark:
    return charts.Mark(f"aim: {at_most(report.target)}", "aim", y=report.target)


def _band_axis(report: TuningReport) -> charts.Axis:
    bands = [outcome.band.total_seconds() for outcome in report.tuning.outcomes]
    return charts.stretched(min(bands), max(bands), "band")


def _lag_axis(seconds: Sequence[float], title: str) -> charts.Axis:
    return charts.stretched(min(0.0, *seconds), max(seconds), title)


def _late_axis(report: TuningReport) -> charts.Axis:
    least = min((each.late_share for each in report.tuning.outcomes if each.late), default=0.01)
    return charts.shares(min(least, report.target or 1.0), "late share")


TEMPLATES = charts.templates().overlay(loader=PackageLoader("tidemark.pipeline.tuning"))
TEMPLATES.filters |= {write.__name__: write for write in (at_most, behind, percent, lag_text, words)}
TEMPLATES.filters |= {"duration": format_duration, "from_us": from_us, "iso": iso, "rough": rough}

FIGURES = JsonKind("reports/tuning/", holds=dict[str, Any])
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"

KEEP = 30
"""Number of newest reports kept in the lake: a month of daily reports."""


def page_of(report: TuningReport) -> str:
    """Return the report as an HTML page with conclusions, charts and all figures. All text is escaped."""
    disorder, drawn = report.disorder, (late_by_band, lag_by_band, late_by_lag, lag_of_messages, disorder_of_messages)
    page = TEMPLATES.get_template("page.html").render(
        report=report,
        disorder=disorder,
        recommendation=recommendation_sentence(report),
        charts=[draw(report) for draw in drawn],
        blamed=[(blame_sentence(disorder, side), found.worst, side) for side, found in disorder.sides.items()],
        sentences=sentences(report),
    )
    return page.replace(" %", "\N{NO-BREAK SPACE}%")  # no line break before a percent sign


def write_report(objects: ObjectStore, made_at: datetime, page: str, facts: dict[str, Any], *, keep: int = KEEP) -> str:
    """Write a report to the lake, delete all but the newest `keep` reports, and return the URI of the page. Raises
    LakeError."""
    key = made_at.astimezone(UTC).strftime(NAME_FORMAT)
    name = FIGURES.prefix + key
    Notes(objects, FIGURES).create(key, facts)
    objects.create(f"{name}.html", page.encode())
    reports = sorted({stored.rpartition(".")[0] for stored in objects.names(FIGURES.prefix)})  # complete or not
    for old in reports[:-keep]:
        objects.delete(f"{old}.html")
        objects.delete(f"{old}.json")
    return f"{objects.uri}/{name}.html"

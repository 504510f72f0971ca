"""The report as one page that needs no network: the conclusions, the pictures that they rest on, and every figure."""

from collections.abc import Iterable, Sequence
from html import escape

from pipeline.clock import from_us, iso
from pipeline.durations import format_duration
from pipeline.tuning import pictures
from pipeline.tuning.blame import beyond_band, fast_sentence, slow_sentence
from pipeline.tuning.phrases import at_most, percent, stands, words
from pipeline.tuning.report import TuningReport, behind, recommendation_sentence, sentences
from pipeline.tuning.stream_disorder import Side, StreamDisorder
from pipeline.tuning.style import STYLE
from pipeline.tuning.sweep import Outcome, Recommendation


def page_of(report: TuningReport) -> str:
    """The whole page. Everything that comes from data is escaped."""
    disorder = report.disorder
    period = f"{iso(from_us(disorder.first_publish_us))} to {iso(from_us(disorder.last_publish_us))}"
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tidemark tune: {escape(report.source)}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<p class="eyebrow">tidemark tune</p>
<h1>{escape(recommendation_sentence(report))}</h1>
<p class="source"><code>{escape(report.source)}</code><br>
{disorder.messages:,} messages of {disorder.streams:,} streams, published {escape(period)};
{report.tuning.ticks:,} ticks</p>
</header>
{_cards(report)}
<main>
{_figure(*pictures.late_by_band(report))}
{_figure(*pictures.lag_by_band(report))}
{_figure(*pictures.late_by_lag(report))}
{_figure(*pictures.lag_of_messages(report))}
{_figure(*pictures.disorder_of_messages(report))}
{_targets(report)}
</main>
{_streams(slow_sentence(disorder), disorder.slowest, "slow")}
{_streams(fast_sentence(disorder), disorder.fastest, "fast")}
{_said(report)}
{_outcomes(report)}
<footer>Made {escape(iso(report.made_at))}. What the words mean, and how each figure is come by:
<code>docs/tuning.md</code>.</footer>
</body>
</html>
"""
    return page.replace(" %", "\N{NO-BREAK SPACE}%")  # a line does not end between a number and its sign


def _cards(report: TuningReport) -> str:
    now, disorder = report.now, report.disorder
    cards = [
        (
            percent(now.late_share).capitalize(),
            f"late with the present band of {format_duration(report.band)}, rule {report.present.name}",
            f"{now.late:,} of {now.landed:,}",
        )
    ]
    for variant in report.rules:
        found = report.recommended(variant).outcome
        cards.append(
            (
                "no band" if found is None else format_duration(found.band),
                f"of band under the rule {variant.rule} for {at_most(report.target)}",
                "none of those tried is enough" if found is None else f"the watermark {behind(found)}",
            )
        )
    cards.append(
        (
            words(disorder.disorder.quantile(0.99)),
            "is what 99 % of the messages are out of order by, at most",
            f"the worst by {words(disorder.disorder.quantile(1.0))}",
        )
    )
    drawn = (
        f"<div><strong>{escape(figure)}</strong><span>{escape(meaning)}</span><small>{escape(besides)}</small></div>"
        for figure, meaning, besides in cards
    )
    return f'<section class="cards">{"".join(drawn)}</section>'


def _figure(title: str, legend: Sequence[tuple[str, str]], drawn: str, note: str) -> str:
    keys = "".join(f'<li class="{style}">{escape(name)}</li>' for style, name in legend)
    keys = f'<ul class="legend">{keys}</ul>' if keys else ""
    return f"<figure><h2>{escape(title)}</h2>{keys}{drawn}<figcaption>{escape(note)}</figcaption></figure>"


def _targets(report: TuningReport) -> str:
    variants = report.tuning.variants
    targets = sorted({each.target for each in report.tuning.recommendations}, reverse=True)
    rows = [
        [escape(at_most(target)), *(_enough(report.tuning.recommended(variant, target)) for variant in variants)]
        for target in targets
    ]
    table = _table(["", *(variant.name for variant in variants)], rows, is_markup=True)
    return (
        "<figure><h2>The smallest band that is enough, and how far the watermark is behind with it</h2>"
        f"{table}<figcaption>The smallest band that was tried which, like every larger one, keeps the late share at "
        "or below the target. A quantile is shown for its effect.</figcaption></figure>"
    )


def _enough(recommendation: Recommendation) -> str:
    found = recommendation.outcome
    if found is None:
        return f"not even {format_duration(recommendation.largest)}"
    lag = "no watermark" if found.lag_p50 is None else stands(found.lag_p50)
    return f"<b>{format_duration(found.band)}</b><br><small>{lag}</small>"


def _streams(sentence: str | None, worst: Sequence[StreamDisorder], side: Side) -> str:
    if sentence is None:
        return ""
    head = [
        "stream",
        "messages",
        f"{side} by, 99 % and most",
        "",
        "beyond the band",
        "offset",
        "disorder 50 %, 99 %, most",
    ]
    most = max((_extent(stream, side) for stream in worst), default=0.0) or 1.0
    rows = []
    for stream in worst:
        high, largest = stream.slow_p99_seconds if side == "slow" else stream.fast_p99_seconds, _extent(stream, side)
        beyond = beyond_band(stream, side)
        disorder = (stream.disorder_p50_seconds, stream.disorder_p99_seconds, stream.disorder_max_seconds)
        rows.append(
            [
                escape(stream.stream),
                f"{stream.messages:,}",
                f"{words(high)}, {words(largest)}",
                f'<i class="reach {side}" style="width:{100 * largest / most:.0f}%">'
                f'<b style="width:{100 * min(high / largest, 1) if largest else 0:.0f}%"></b></i>',
                f"{beyond:,} ({percent(beyond / stream.messages)})",
                f"{stream.offset_seconds:+.0f}s",
                ", ".join(words(seconds) for seconds in disorder),
            ]
        )
    table = _table(head, rows, is_markup=True) if rows else ""
    if table and not any(beyond_band(stream, side) for stream in worst):
        table = f"<details><summary>The worst of them all the same</summary>{table}</details>"
    return f'<section class="streams"><h2>{escape(sentence)}</h2>{table}</section>'


def _extent(stream: StreamDisorder, side: Side) -> float:
    return stream.slow_max_seconds if side == "slow" else stream.fast_max_seconds


def _said(report: TuningReport) -> str:
    lines = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences(report))
    return f'<section class="said"><h2>In words</h2><ul>{lines}</ul></section>'


def _outcomes(report: TuningReport) -> str:
    rows = [
        [each.variant.name, format_duration(each.band), f"{each.late:,}", percent(each.late_share), *_lags(each)]
        for each in report.tuning.outcomes
    ]
    head = ["rule", "band", "late", "late share", "behind, median", "behind, 99 %"]
    return f"<details><summary>Every band that was tried</summary>{_table(head, rows)}</details>"


def _lags(outcome: Outcome) -> list[str]:
    return ["—" if lag is None else words(lag) for lag in (outcome.lag_p50, outcome.lag_p99)]


def _table(head: Iterable[str], rows: Iterable[Sequence[str]], *, is_markup: bool = False) -> str:
    headings = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if is_markup else escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{headings}</tr></thead><tbody>{body}</tbody></table></div>'

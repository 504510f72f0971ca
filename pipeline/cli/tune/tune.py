"""`tidemark tune`: show the cost and benefit of every band, on a trace or on the lake's recent data."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tidemark.pipeline.cli.here import lake_of
from tidemark.pipeline.cli.options import AsJson, duration, option, refuse_output, share, since_option
from tidemark.pipeline.cli.output import columns, printed, safe, write_text
from tidemark.pipeline.clock import SystemClock, format_duration
from tidemark.pipeline.phrases import at_most, percent, words
from tidemark.pipeline.replay.trace import CohortKey
from tidemark.pipeline.settings import load_settings
from tidemark.pipeline.tuning.disorder import Side, StreamDisorder
from tidemark.pipeline.tuning.inputs import Cohort, Cohorts, cohorts_on, facts_of_cohorts, report_on
from tidemark.pipeline.tuning.page import page_of
from tidemark.pipeline.tuning.report import SINCE, TARGET_LATE_SHARE, Asked, TuningReport, facts_of, sentences
from tidemark.pipeline.tuning.sweep import BANDS, WITHOUT_WATERMARK, BandOutcome

NAMED = 5
"""Maximum number of slow streams, and of fast streams, that are printed. The page and the JSON have more."""


NAME_WIDTH = 40
"""Maximum number of printed characters of a cohort's value. The JSON has the whole value."""


def durations(text: str) -> tuple[timedelta, ...]:
    """Parse durations separated by commas, such as `0,1s,5s,1m`."""
    try:
        return tuple(duration(part.strip()) for part in text.split(","))
    except typer.BadParameter as error:
        raise typer.BadParameter(f"--bands {text}: {error}") from error


def cohort_key(text: str) -> CohortKey:
    """Parse the key that divides messages into cohorts, such as `attribute:region` or `stream_prefix:-`."""
    kind, _, name = text.partition(":")
    if kind not in ("attribute", "stream_prefix") or not name:
        raise typer.BadParameter(f"{text}: write attribute:NAME or stream_prefix:SEPARATOR, such as attribute:region")
    return CohortKey(kind, name)


def tune(
    trace: Annotated[
        Path | None, typer.Argument(help="A Parquet file of messages, to read instead of the lake.")
    ] = None,
    since: Annotated[
        datetime | None, since_option("Use messages in the lake that came since", show_default="24h")
    ] = None,
    target: Annotated[
        float, option("The share of late messages to aim at.", parser=share, show_default="0.01%")
    ] = TARGET_LATE_SHARE,
    bands: Annotated[str | None, option("The bands to try, such as 0,1s,5s,1m.", show_default="0 to 5m")] = None,
    html: Annotated[Path | None, option("Also write the report with its charts to this file.")] = None,
    by: Annotated[
        CohortKey | None,
        option("Evaluate each cohort: attribute:NAME or stream_prefix:SEPARATOR.", parser=cohort_key, metavar="<key>"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare bands: late messages against freshness.

    Shows the cost and benefit of each band under both rules, and the smallest band that is enough. To find it, also
    tries bands of whole seconds in between. Reads a trace with one row per message, or the recent traffic of the
    configured lake. A trace is evaluated without slack, and with the policy of the settings file, if there is one. With
    --by stream_prefix:-, a cohort is all streams whose ids have the same text before their first -.
    """
    if trace is not None and since is not None:
        raise typer.BadParameter("--since only works with the lake; a trace is read whole")
    if by is not None and html is not None:
        raise typer.BadParameter("--html cannot be combined with --by: the page shows all messages together")
    refuse_output("--html", html, trace)
    clock = SystemClock()
    now = clock.now()
    settings = load_settings(needs_file=trace is None)
    span = SINCE if since is None else now - since
    asked = Asked(settings, now, span, target, BANDS if bands is None else durations(bands))
    source = trace or lake_of(settings, clock)
    if by is not None:
        cohorts = cohorts_on(source, by, asked)
        _print_cohorts(printed(facts_of_cohorts(cohorts), as_json=as_json), cohorts)
        return
    report = report_on(source, asked)
    if html is not None:
        write_text(html, page_of(report), "page", "--html")
    terminal = printed(facts_of(report), as_json=as_json)
    for sentence in sentences(report):
        terminal.print(f"• {safe(sentence)}")
    _print_bands(terminal, report)
    _print_targets(terminal, report)
    for side, found in report.disorder.sides.items():
        _print_streams(terminal, found.worst, side)
    if html is not None:
        terminal.print(f"\nThe report with its pictures: {safe(html)}")


def _print_bands(terminal: Console, report: TuningReport) -> None:
    enough = {each.outcome.band for each in report.tuning.recommendations if each.outcome}
    asked = set.intersection(*({each.band for each in report.tuning.of(variant)} for variant in report.tuning.variants))
    names = ["band", *(name for each in report.rules for name in (f"rule {each.rule}", "median", "99 %"))]
    table = columns(right=names, title="\nlate messages, and the watermark's lag")
    for band in sorted(asked | enough):
        found = [[each for each in report.tuning.of(variant) if each.band == band] for variant in report.rules]
        if any(found):
            cells = [cell for outcomes in found for cell in (_cells(outcomes[0]) if outcomes else ["·"] * 3)]
            table.add_row(format_duration(band), *cells, style="bold" if band == report.band else "")
    terminal.print(table)


def _print_cohorts(terminal: Console, found: Cohorts) -> None:
    """Print one table per rule, with a row for all messages together and a row per cohort. A row shows the outcome of
    the configured band, and of the smallest band that is enough for the cohort."""
    whole = found.together
    terminal.print(f"{safe(whole.source)} by {safe(found.by)}: each cohort alone; the target: {at_most(whole.target)}")
    if found.values_in_rest:
        terminal.print(
            f"the rest: {found.values_in_rest:,} values with fewer messages, and the messages without a value"
        )
    named = [("the rest" if part.value is None else f'"{part.value}"', part) for part in found.parts]
    band, lags, lacks = format_duration(whole.band), ("median", "99 %"), False
    figures = ("messages", "share", f"late with {band}", *lags, "enough", "late with that", *lags)
    for variant in whole.rules:
        table = columns(
            "", right=figures, folds=True, title=f"\nrule {variant.name}: late messages, and the watermark's lag"
        )
        for name, part in [("all together", Cohort(None, found.messages, whole)), *named]:
            cells = ["—"] * 7
            if part.report is not None:
                enough = part.report.recommended(variant)
                own = ["—"] * 3 if enough.outcome is None else _cells(enough.outcome)
                cells = [*_cells(part.report.tuning.at(variant, whole.band)), str(enough), *own]
            table.add_row(safe(name, NAME_WIDTH), safe(part.messages), percent(part.messages / found.messages), *cells)
            lacks |= WITHOUT_WATERMARK in cells
        terminal.print(table)
    if lacks:
        terminal.print(
            f"{WITHOUT_WATERMARK}: no decision between the cohort's first and last message gave a watermark; use a "
            "longer trace or --since"
        )


def _cells(outcome: BandOutcome) -> list[str]:
    lags = ("—" if lag is None else words(lag) for lag in (outcome.lag_p50, outcome.lag_p99))
    return [percent(outcome.late_share), *lags]


def _print_targets(terminal: Console, report: TuningReport) -> None:
    variants, targets = report.tuning.variants, report.tuning.targets
    found = ((at_most(target), *(report.tuning.recommended(each, target) for each in variants)) for target in targets)
    names, title = [each.name for each in variants], "\nthe smallest band that is enough"
    terminal.print(columns("for", *names, rows=found, gap=2, title=title, folds=True))


def _print_streams(terminal: Console, streams: Sequence[StreamDisorder], side: Side) -> None:
    if not any(stream.blame(side)[0] for stream in streams):
        return
    figures = ("messages", "beyond the band", f"{side} by, 99 %", "most", "offset")
    table = columns("stream", right=figures, gap=2, folds=True, title=f"\nthe worst of the {side} streams")
    for stream in streams[:NAMED]:
        beyond, high, most = stream.blame(side)
        offset = f"{stream.offset_seconds:+.0f}s"
        table.add_row(safe(stream.stream), f"{stream.messages:,}", f"{beyond:,}", words(high), words(most), offset)
    terminal.print(table)

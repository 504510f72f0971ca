"""The report as one HTML page that needs no network and no script, kept in the lake beside its figures."""

from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tidemark.pipeline.charts import STYLE, svg
from tidemark.pipeline.clock import format_duration, from_us, iso, rough
from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.phrases import at_most, percent, printable, stands, words
from tidemark.pipeline.tuning.blame import blame_sentence
from tidemark.pipeline.tuning.pictures import charts_of
from tidemark.pipeline.tuning.report import TuningReport, behind, recommendation_sentence, sentences

TEMPLATES = Environment(
    loader=PackageLoader("tidemark.pipeline.tuning"),
    autoescape=True,  # stream names and paths come from outside
    finalize=lambda value: printable(value) if type(value) is str else value,  # not markup from templates
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.filters |= {write.__name__: write for write in (at_most, behind, percent, stands, words)}
TEMPLATES.filters |= {"duration": format_duration, "iso": iso, "rough": rough}
TEMPLATES.globals |= {
    "draw": lambda chart, more="": Markup(svg(chart, more)),  # noqa: S704 (it escapes all text)
    "chart_style": Markup(STYLE),  # noqa: S704
}

FIGURES = JsonKind("reports/tuning/", holds=dict[str, Any])
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"

KEEP = 30
"""Number of reports kept in the lake: a month of daily reports."""


def page_of(report: TuningReport) -> str:
    """Render the page: the conclusions, their charts, and every figure. All text is escaped."""
    disorder = report.disorder
    page = TEMPLATES.get_template("page.html").render(
        report=report,
        disorder=disorder,
        made_at=iso(report.made_at),
        published_from=iso(from_us(disorder.first_publish_us)),
        published_until=iso(from_us(disorder.last_publish_us)),
        recommendation=recommendation_sentence(report),
        charts=charts_of(report),
        blamed=[(blame_sentence(disorder, side), found.worst, side) for side, found in disorder.sides.items()],
        sentences=sentences(report),
    )
    return page.replace(" %", "\N{NO-BREAK SPACE}%")  # no line break before a percent sign


def write_report(objects: ObjectStore, made_at: datetime, page: str, facts: dict[str, Any], *, keep: int = KEEP) -> str:
    """Write a report, delete all but the newest `keep`, and return the URI of the page. Raises LakeError."""
    key = made_at.astimezone(UTC).strftime(NAME_FORMAT)
    name = FIGURES.prefix + key
    Notes(objects, FIGURES).create(key, facts)
    objects.create(f"{name}.html", page.encode())
    reports = sorted({stored.rpartition(".")[0] for stored in objects.names(FIGURES.prefix)})  # complete or not
    for old in reports[:-keep]:
        objects.delete(f"{old}.html")
        objects.delete(f"{old}.json")
    return f"{objects.uri}/{name}.html"

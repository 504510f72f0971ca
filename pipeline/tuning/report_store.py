"""Keeps the newest tuning reports in the lake: for each a page and its figures, named by when they were made."""

from datetime import UTC, datetime
from typing import Any

from tidemark.pipeline.lake.store.notes import JsonKind, Notes
from tidemark.pipeline.lake.store.objects import ObjectStore

FIGURES = JsonKind("reports/tuning/", holds=dict[str, Any])
KEPT_REPORTS = 30
"""Reports that the lake keeps: a month of them."""

NAME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"


def write_report(
    objects: ObjectStore, made_at: datetime, page: str, facts: dict[str, Any], *, keep: int = KEPT_REPORTS
) -> str:
    """Write a report, delete all but the newest `keep`, and return the URI of the page. Raises LakeError."""
    key = made_at.astimezone(UTC).strftime(NAME_FORMAT)
    name = FIGURES.prefix + key
    Notes(objects, FIGURES).create(key, facts)
    objects.create(f"{name}.html", page.encode())
    reports = sorted({stored.rpartition(".")[0] for stored in objects.names(FIGURES.prefix)})  # in whole or in part
    for old in reports[:-keep]:
        objects.delete(f"{old}.html")
        objects.delete(f"{old}.json")
    return f"{objects.uri}/{name}.html"

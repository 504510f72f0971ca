"""Keeps the newest tuning reports in the lake: for each a page and its figures, named by when they were made."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.version import marks

REPORTS = "reports/tuning/"
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"


def write_report(objects: ObjectStore, made_at: datetime, page: str, facts: Mapping[str, Any], *, keep: int) -> str:
    """Write a report, delete all but the newest `keep`, and return the URI of the page. Raises LakeError."""
    name = REPORTS + made_at.astimezone(UTC).strftime(NAME_FORMAT)
    objects.create(f"{name}.json", json.dumps({**facts, **marks()}).encode())
    objects.create(f"{name}.html", page.encode())
    reports = sorted({stored.rpartition(".")[0] for stored in objects.names(REPORTS)})  # in whole or in part
    for old in reports[:-keep]:
        objects.delete(f"{old}.html")
        objects.delete(f"{old}.json")
    return f"{objects.uri}/{name}.html"

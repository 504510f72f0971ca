"""Keeps the newest tuning reports in the lake: for each a page and its figures, named by when they were made."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pipeline.lake.store.objects import ObjectStore

REPORTS = "reports/tuning/"
NAME_FORMAT = "%Y-%m-%dT%H-%M-%S.%fZ"


class ReportStore:
    """The reports under one folder of the lake."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects

    def write(self, made_at: datetime, page: str, facts: Mapping[str, Any], *, keep: int) -> str:
        """Write a report, delete all but the newest `keep`, and return the URI of the page. Raises LakeError."""
        name = REPORTS + made_at.astimezone(UTC).strftime(NAME_FORMAT)
        self._objects.create(f"{name}.json", json.dumps(facts).encode())
        self._objects.create(f"{name}.html", page.encode())
        for old in self.names()[:-keep]:
            self._objects.delete(f"{old}.html")
            self._objects.delete(f"{old}.json")
        return f"{self._objects.uri}/{name}.html"

    def names(self) -> list[str]:
        """The reports that exist, in whole or in part, without their endings, the oldest first."""
        return sorted({name.rpartition(".")[0] for name in self._objects.names(REPORTS)})

"""The newest tuning reports, kept in the lake."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.tuning.page import FIGURES, write_report
from tidemark.pipeline.version import marks

MADE = datetime(2026, 11, 21, 4, 15, tzinfo=UTC)
DAY = timedelta(days=1)


def test_a_report_is_a_page_and_its_figures_named_by_when_it_was_made(tmp_path: Path) -> None:
    place = write_report(DiskObjects(tmp_path), MADE, "<p>é</p>", {"late": 1}, keep=3)
    page = Path(place.removeprefix("file:"))
    assert page == tmp_path / FIGURES.prefix / "2026-11-21T04-15-00.000000Z.html"
    assert page.read_text(encoding="utf-8") == "<p>é</p>"
    assert json.loads(page.with_suffix(".json").read_text()) == {"late": 1, **marks()}


def test_the_newest_are_kept_and_nothing_else_is_touched(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create("tracking/log/000000000000.parquet", b"an entry")
    for day in range(5):
        write_report(objects, MADE + day * DAY, "page", {}, keep=2)
    assert sorted(objects.names(FIGURES.prefix)) == [
        f"{FIGURES.prefix}2026-11-{day}T04-15-00.000000Z.{kind}" for day in (24, 25) for kind in ("html", "json")
    ]
    assert objects.read("tracking/log/000000000000.parquet") == b"an entry"


def test_half_a_report_that_a_crash_left_is_removed_in_its_turn(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.create(f"{FIGURES.prefix}2026-11-01T04-15-00.000000Z.json", b"{}")
    write_report(objects, MADE, "page", {}, keep=1)
    assert {name.rpartition(".")[0] for name in objects.names(FIGURES.prefix)} == {
        f"{FIGURES.prefix}2026-11-21T04-15-00.000000Z"
    }

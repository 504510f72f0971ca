"""The examples of docs/how-to/reading.md, run as they stand there, on a lake in a folder."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.lake.builders import Beat, append_beats, columns_of, lake_in, put
from tests.watermark.builders import at
from tidemark.pipeline.lake.layout import Lake

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "reading.md"
BEFORE, FIRST, EMPTY, OPEN = (f"2026-11-21T05-{minute}Z" for minute in (15, 20, 25, 30))


def example(heading: str, language: str = "python") -> str:
    """The first example of the page under a heading."""
    section = re.split(rf"^##+ {re.escape(heading)}$", PAGE.read_text(), flags=re.MULTILINE)[1]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)[:1]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with three computed windows, the last of them empty, and a fourth with heartbeats that is open."""
    folder = tmp_path_factory.mktemp("reading")
    lake = lake_in(folder)
    beats = [Beat("a", -30.0), Beat("a", 0.0), Beat("a", 30.0, publisher_id="one"), Beat("b", 10.0), Beat("a", 600.0)]
    append_beats(lake.heartbeats(), columns_of([*beats, Beat("a", 30.0, "copy", publisher_id="one", publish_time=90)]))
    compute(lake, BEFORE, [("a", -30.0, None)])
    compute(lake, FIRST, [("a", 0.0, 30.0), ("a", 30.0, 30.0), ("b", 10.0, None)])
    compute(lake, EMPTY, [])
    return folder / "lake"


def compute(lake: Lake, key: str, rows: list[tuple[str, float, float | None]]) -> None:
    """Commit a window with these streams, event times and gaps, as a run does."""
    values = [{"stream_id": stream, "event_time": at(event), "gap_seconds": gap} for stream, event, gap in rows]
    put(lake.diffs(), f"run-{key}", {key: values})


def run(text: str, folder: Path) -> dict[str, Any]:
    """The names that an example leaves, with the lake where the test has it."""
    names: dict[str, Any] = {}
    exec(text.replace("gs://my-bucket/lake", str(folder)), names)  # noqa: S102 (our own page)
    return names


def test_computed_windows_are_the_partitions_the_empty_ones_too(folder: Path) -> None:
    assert run(example("Which windows are computed"), folder)["computed"] == [BEFORE, FIRST, EMPTY]


def test_polars_reads_diffs(folder: Path) -> None:
    assert run(example("Polars"), folder)["longest"].rows() == [("a", 30.0, 2), ("b", None, 1)]


def test_duckdb_reads_diffs_without_an_extension(folder: Path) -> None:
    assert run(example("DuckDB"), folder)["longest"] == [("a", 30.0, 2), ("b", None, 1)]

"""The queries of examples/same_rows give the rows of heartbeat_diffs from heartbeats."""

import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import sqlglot
from sqlglot import exp

from tests.cli.test_explain import Log
from tests.lake.builders import Beat, append_beats, columns_of
from tests.lake_fixture import compute_here
from tests.test_reading import run
from tests.watermark.builders import at
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.places import ELEMENT
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.settings import load_settings

CONFIG = """\
[message.fields]
temperature = "number"
status = "text"
[lake]
uri = "file:lake"
"""
EXAMPLES = Path(__file__).parents[1] / "examples" / "same_rows"
FIELDS = ("temperature", "status")
LOOKBACK = 600.0
TEMPERATURES = [None, 0.0, -0.0, 1.5, 1e308, -1e308, 5e-324]


def dirty(seed: int) -> list[Beat]:
    """Ties, copies, publishers' ids that look like messages', elements, nulls, and gaps about the lookback's length."""
    chance, beats = random.Random(seed), list[Beat]()
    for number in range(600):
        message = str(number) if number % 5 else f"{number}{ELEMENT}{number // 5}"
        event = chance.choice(
            [-900.0, -300.0, -0.000001, -LOOKBACK - 1, chance.randrange(-1200, 250) / 1, chance.uniform(-1500, 250)]
        )
        beat = Beat(
            chance.choice(["a", "b", "aa", "é", f"seldom-{number % 40}"]),
            event,
            message,
            chance.choice([None, None, "", "1", "x", str(number - 1)]),
            event + chance.choice([0, 1, 60]),
            chance.random() < 0.3,
            {"temperature": chance.choice(TEMPERATURES), "status": chance.choice([None, "", "ok", "ö"])},
        )
        beats.append(beat)
        if number % 3 == 0:
            beats.append(Beat(beat.stream_id, event, message, beat.publisher_id, event + 2, not beat.late, beat.values))
    far = [
        Beat("edge", -LOOKBACK - 100),
        Beat("edge", -100.0),
        Beat("over", -LOOKBACK - 100.000001),
        Beat("over", -100.0),
    ]
    chance.shuffle(beats)
    return [*beats, *far]


@pytest.fixture(scope="session")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lake with six computed windows, and heartbeats in windows before and after."""
    folder = tmp_path_factory.mktemp("same-rows")
    (folder / "tidemark.toml").write_text(CONFIG)
    settings, log = load_settings(folder / "tidemark.toml"), Log(folder)
    for second in (20, 40):
        log.tick(second)
    lake = Lake(settings.lake, settings.message.kinds, SystemClock())
    beats = dirty(1)
    for half in (beats[::2], beats[1::2]):
        append_beats(lake.heartbeats(), columns_of(half, FIELDS))
    compute_here(lake, settings, list(settings.windowing.between(at(-1200), at(0))))
    return folder / "lake"


def expected(lake: Path) -> list[tuple[Any, ...]]:
    return in_order(pl.read_delta(str(lake / "heartbeat_diffs")).rows())


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The rows by stream, event time, and the rest as text: nulls cannot be compared."""
    return sorted((tuple(row) for row in rows), key=lambda row: (row[0], row[1], *map(repr, row[-3:]), *map(repr, row)))


def test_polars_gives_the_same_rows(computed: Path) -> None:
    rows = run((EXAMPLES / "in_polars.py").read_text(), computed)["rows"]
    assert rows.columns == pl.read_delta(str(computed / "heartbeat_diffs")).columns
    assert in_order(rows.rows()) == expected(computed)


def test_duckdb_gives_the_same_rows(computed: Path) -> None:
    assert in_order(run((EXAMPLES / "in_duckdb.py").read_text(), computed)["rows"]) == expected(computed)


def test_the_query_for_bigquery_is_in_its_dialect_and_has_the_columns_of_the_table(computed: Path) -> None:
    query = sqlglot.parse_one((EXAMPLES / "in_bigquery.sql").read_text(), dialect="bigquery")
    assert query.named_selects == pl.read_delta(str(computed / "heartbeat_diffs")).columns
    assert not list(query.find_all(exp.Command, exp.Anonymous)), "sqlglot knows each function"

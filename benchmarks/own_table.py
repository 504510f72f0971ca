"""Computes an hour of a custom table in SQL, and runs the same query in DuckDB over the same files."""

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb

from benchmarks.diffs import SPAN, START, UNCOUNTED, fill, ours
from benchmarks.machine import Machine, World
from benchmarks.measures import Measure
from tidemark.pipeline.compute.micro_batch import ReplacedWindows, compute_windows
from tidemark.pipeline.compute.own_tables import OwnBatch
from tidemark.pipeline.compute.table_definition import TableDefinition, own_tables
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.quality.due_windows import ComputedWindows
from tidemark.pipeline.settings_sections import TableSettings

GOAL = 1.5

COLUMNS = "status, count(*) AS heartbeats, count(DISTINCT stream_id) AS streams, max(temperature) AS greatest"
OURS = f"SELECT window, {COLUMNS} FROM {{heartbeats}} GROUP BY window, status"  # noqa: S608 (no value in it)
BY_DUCKDB = f"""
with single as (
    select *, strftime(make_timestamp(epoch_us(event_time) // $length_us * $length_us), '%Y-%m-%dT%H-%MZ') as "window"
    from read_parquet($files, hive_partitioning = false) where event_time >= $start and event_time < $end
    qualify row_number() over (
        partition by stream_id, event_time, coalesce('p' || publisher_id, 'm' || message_id)
        order by publish_time, message_id) = 1
)
select "window", {COLUMNS} from single group by all
"""  # noqa: S608


def measure_own_table(machine: Machine, rounds: int, scale: float) -> list[Measure]:
    """Seconds for all windows of the span, copies dropped: ours, and DuckDB's."""
    world = machine.world()
    rows = fill(world, START - world.settings.windows.lookback, START + SPAN, scale)
    ours(machine, world, SPAN)
    (machine.folder / "table.sql").write_text(OURS)
    named = {"per_status": TableSettings(file=str(machine.folder / "table.sql"), key=["status"])}
    table = own_tables(world.settings.model_copy(update={"tables": named}))["per_status"]
    out = machine.folder / "engine"
    seconds: dict[str, list[float]] = {"tidemark": [], "DuckDB": []}
    for _ in range(UNCOUNTED):
        computed = _compute(machine, world, table)
    _refuse_other_rows(world, _by_duckdb(world, out))
    for number in range(rounds):
        for name in sorted(seconds, reverse=bool(number % 2)):
            began = machine.clock.monotonic()
            if name == "tidemark":
                _compute(machine, world, table)
            else:
                _by_duckdb(world, out)
            seconds[name].append(machine.clock.monotonic() - began)
    machine.forget(world)
    said = f"{len(computed.rows)} windows, {sum(computed.rows.values())} rows of {rows:,} heartbeats"
    return [
        Measure(
            "own_table", seconds["tidemark"], seconds["DuckDB"], GOAL, "lower", "s",
            f"{said}, by compute_windows on a warm Spark Connect server, beside DuckDB on the same files",
        )
    ]  # fmt: skip


def _compute(machine: Machine, world: World, table: TableDefinition) -> ReplacedWindows:
    windowing = world.settings.windowing
    windows = list(windowing.between(START, START + SPAN))
    batch = OwnBatch(
        machine.spark,
        definition=table,
        tables=(world.lake.own_table(table.name),),
        heartbeats=world.heartbeats,
        digests=ComputedWindows.of(world.lake.diffs().runs(), windowing).digests(windows, windowing),
        watermark=START + SPAN,
        run="bench",
        clock=machine.clock,
        refuse_expired=lambda _: None,
    )
    return compute_windows(batch, windows)


def _by_duckdb(world: World, out: Path) -> list[tuple[Any, ...]]:
    """The rows, which it has written by window as well."""
    shutil.rmtree(out, ignore_errors=True)
    files = world.heartbeats.files_between(START, START + SPAN).paths
    given = {
        "files": list(files),
        "start": START,
        "end": START + SPAN,
        "length_us": world.settings.windows.length // timedelta(microseconds=1),
    }
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(f"create table made as {BY_DUCKDB}", given)
        connection.execute(f"copy made to '{out}' (format parquet, compression zstd, partition_by (\"window\"))")
        return connection.execute("select * from made").fetchall()


def _refuse_other_rows(world: World, theirs: list[tuple[Any, ...]]) -> None:
    """Raise ServiceFailed if DuckDB makes other rows: then it does other work."""
    table = world.lake.own_table("per_status")
    rows = table.read(table.made()).select(["window", "status", "heartbeats", "streams", "greatest"])
    if {tuple(row.values()) for row in rows.to_pylist()} != set(theirs):
        raise ServiceFailed("DuckDB and compute_windows return different rows; correct benchmarks/own_table.py")

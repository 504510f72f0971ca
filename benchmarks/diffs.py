"""An hour of 10,000 streams through `compute_windows`, beside DuckDB and Polars doing the same from the same files."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import duckdb
import numpy as np
from deltalake import DeltaTable

from benchmarks.engines import Work, by_duckdb, by_polars
from benchmarks.machine import Machine, World
from benchmarks.measures import Measure
from benchmarks.traffic import REGULAR
from tidemark.local.demo.synthetic_beats import NUMBER, STATUSES, Rows, compose, messages
from tidemark.pipeline.clock import to_us
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.micro_batch import MicroBatch, ReplacedWindows, compute_windows
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.figures import quantile
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.ingest.take import BATCH_MESSAGES
from tidemark.pipeline.lake.tables.diffs import StatusKind
from tidemark.pipeline.lake.tables.heartbeats import heartbeat_rows
from tidemark.pipeline.settings import Settings

GOAL, WINDOW_GOAL = 0.8, 1.5
UNCOUNTED = 6
"""Rounds before the first that counts. The server's JVM compiles what is new to it, and the first round takes several
times as long."""

SPAN = timedelta(hours=1)
START = datetime(2026, 11, 1, 12, tzinfo=UTC)
ENGINES: Mapping[str, Callable[[Work, Path], int]] = {"DuckDB": by_duckdb, "Polars": by_polars}


def plan_of(settings: Settings) -> DiffPlan:
    """As the asset has it."""
    windows = settings.windows
    return DiffPlan(settings.message.kinds, windows.lookback, windows.heartbeat_period, windows.length)


def measure_diffs(machine: Machine, rounds: int, scale: float) -> list[Measure]:
    """Seconds for all windows of the span, and for a single one: ours, and those of the faster of the two engines."""
    world = machine.world()
    windows = world.settings.windows
    rows = fill(world, START - windows.lookback, START + SPAN, scale)
    measures = [
        _measure(machine, world, rounds, "diffs", SPAN, GOAL, rows),
        _measure(machine, world, rounds * 3, "diffs_window", windows.length, WINDOW_GOAL, rows),
    ]
    machine.forget(world)
    return measures


def work_of(world: World, span: timedelta) -> Work:
    """The input of the engines."""
    windows = world.settings.windows
    return Work(
        files=world.heartbeats.files_between(START - windows.lookback, START + span).paths,
        start=START,
        end=START + span,
        lookback=windows.lookback,
        period=windows.heartbeat_period,
        length=windows.length,
    )


def _measure(
    machine: Machine, world: World, rounds: int, stage: str, span: timedelta, goal: float, rows: int
) -> Measure:
    work = work_of(world, span)
    for _ in range(UNCOUNTED):
        computed = ours(machine, world, span)
    for name in ENGINES:
        _refuse_other_rows(name, world, work, computed, machine.folder / "engine")
    seconds: dict[str, list[float]] = {name: [] for name in ("tidemark", *ENGINES)}
    for number in range(rounds):
        for name in np.roll(list(seconds), number).tolist():
            shutil.rmtree(machine.folder / "engine", ignore_errors=True)
            began = machine.clock.monotonic()
            if name == "tidemark":
                ours(machine, world, span)
            else:
                ENGINES[name](work, machine.folder / "engine")
            seconds[name].append(machine.clock.monotonic() - began)
    faster = min(ENGINES, key=lambda name: quantile(seconds[name], 0.5))
    told = ", ".join(f"{name} {quantile(seconds[name], 0.5):.2f} s" for name in ENGINES)
    return Measure(
        stage,
        seconds["tidemark"],
        seconds[faster],
        goal,
        "lower",
        "s",
        f"{len(computed.rows)} windows of {sum(computed.rows.values()):,} rows (of {rows:,}, in {len(work.files)} "
        f"files) by compute_windows on a warm Spark Connect server, beside {faster} on the same files with the same "
        f"rows written ({told})",
        "compute_windows writes the status of the streams as well, of which the engines compute the silent ones only",
    )


def ours(machine: Machine, world: World, span: timedelta) -> ReplacedWindows:
    """Compute the windows of a span from START on, and replace them in the world's lake."""
    batch = MicroBatch(
        machine.spark,
        heartbeats=world.heartbeats,
        tables=(world.lake.stream_status(), world.lake.diffs()),
        plan=plan_of(world.settings),
        watermark=START + span,
        run="bench",
        clock=machine.clock,
        refuse_expired=lambda _: None,
    )
    return compute_windows(batch, list(world.settings.windowing.between(START, START + span)))


def fill(world: World, start: datetime, end: datetime, scale: float) -> int:
    """Land the traffic of an interval, as landing does it, without a Pub/Sub; how many rows."""
    source = replace(REGULAR, streams=max(1, round(REGULAR.streams * scale)))
    at_once, landed = BATCH_MESSAGES[Side.BASE], 0
    files, _ = new_files(world.lake, world.clock)
    for piece in messages(source, start, end, rows_at_least=at_once):
        for first in range(0, len(piece), at_once):
            rows = piece[first : first + at_once]
            columns = _columns(source_rows=rows, number=landed, landed_at=end)
            files.add(files.write(heartbeat_rows(columns, world.settings.message.kinds)), {})
            landed += len(rows)
    return landed


def _columns(source_rows: Rows, number: int, landed_at: datetime) -> dict[str, object]:
    made = compose(REGULAR, source_rows)
    rows = len(source_rows)
    return {
        "stream_id": [one.beats[0].stream for one in made],
        "event_time": source_rows["event_ms"] * 1000,
        "publisher_id": [one.beats[0].heartbeat_id for one in made],
        "message_id": [f"{at:016d}" for at in range(number, number + rows)],
        "publish_time": source_rows["publish_us"].copy(),
        "ordering_key": [None] * rows,
        "attributes": [list(one.attributes.items()) for one in made],
        "payload": [one.payload for one in made],
        "landed_at": np.full(rows, to_us(landed_at)),
        "late": np.zeros(rows, dtype=bool),
        "temperature": [
            value if form == NUMBER else None
            for value, form in zip(
                source_rows["temperature"].tolist(), source_rows["temperature_form"].tolist(), strict=True
            )
        ],
        "status": [STATUSES[one] for one in source_rows["status"].tolist()],
    }


def _refuse_other_rows(name: str, world: World, work: Work, computed: ReplacedWindows, out: Path) -> None:
    """Raise ServiceFailed if an engine does not write the rows that we write: then it did other work."""
    shutil.rmtree(out, ignore_errors=True)
    silent = ENGINES[name](work, out)
    keys = [window.key for window in world.settings.windowing.between(work.start, work.end)]
    made = DeltaTable(world.lake.diffs().table.uri).file_uris([("window", "in", keys)])
    # To the microsecond: Polars divides by a constant by multiplying with its inverse.
    rounded = {"gap_seconds": "round(gap_seconds, 6)"}
    columns = ", ".join(rounded.get(name, f'"{name}"') for name in world.lake.diffs().schema.names)
    with duckdb.connect() as connection:
        connection.execute("set timezone = 'UTC'")
        for view, files in {"ours": made, "theirs": [str(file) for file in out.rglob("*.parquet")]}.items():
            read = "read_parquet($files, hive_types = {'window': varchar})"
            connection.execute(f"create table {view} as select {columns} from {read}", {"files": files})  # noqa: S608
        differing = connection.execute(
            "select count(*) from ((from ours except all from theirs) union all (from theirs except all from ours))"
        ).fetchall()[0][0]
    kinds = world.lake.stream_status().rows(computed.rows)["kind"].to_pylist()
    if differing or silent != kinds.count(StatusKind.STOPPED):
        raise ServiceFailed(
            f"{name} and compute_windows differ in {differing} rows, or in the silent streams ({silent}): their speeds "
            "cannot be compared; correct benchmarks/engines.py"
        )

"""Tables of one's own: the examples beside DuckDB on the same data, and what goes wrong in somebody's function."""

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (what everybody calls it)

from tests.clock import ManualClock
from tests.lake.builders import append_beats
from tests.spark.beats import FIELDS, T0, Beat, at, by_message, columns_of, expected, naive
from tests.spark.test_columns import dirty, landed
from tidemark.pipeline.clock import duration_us
from tidemark.pipeline.compute import slices
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.micro_batch import MicroBatch, ReplacedWindows, compute_windows
from tidemark.pipeline.compute.own_tables import OwnBatch, input_of
from tidemark.pipeline.compute.slices import Output
from tidemark.pipeline.compute.table_definition import TableDefinition, Windows, loaded_tables, own_tables, windowed
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.errors import CorruptObject, InvalidSettings, LakeError, LakeFull, TableFailed
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.quality.due_windows import ComputedWindows, Followed
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings, TableSettings, WindowSettings
from tidemark.pipeline.spark.executors import explaining_damage
from tidemark.pipeline.windows import Window, Windowing

EXAMPLES = Path(__file__).parents[2] / "examples/tables"
KINDS = {"region": FieldKind.TEXT, "temperature": FieldKind.NUMBER}
PLAN = DiffPlan(KINDS, timedelta(minutes=10), timedelta(seconds=30), timedelta(minutes=5))
BASE = Windowing(PLAN.window_length, T0 - timedelta(days=1), PLAN.lookback)
OF_WINDOWS = WindowSettings(length=PLAN.window_length, first=BASE.first)

SESSIONS = """
WITH input AS (
    SELECT w AS window_start, stream_id, event_time FROM beats, windows
    WHERE event_time >= w - INTERVAL 10 MINUTE AND event_time < w + INTERVAL 5 MINUTE
), marked AS (
    SELECT *, coalesce(event_time - lag(event_time) OVER s > INTERVAL 2 MINUTE, true) AS begins FROM input
    WINDOW s AS (PARTITION BY window_start, stream_id ORDER BY event_time)
), numbered AS (
    SELECT *, sum(begins::INT) OVER (PARTITION BY window_start, stream_id ORDER BY event_time) AS session FROM marked
)
SELECT strftime(window_start, '%Y-%m-%dT%H-%MZ') AS window, stream_id, min(event_time) AS began_at,
    max(event_time) AS last_at, count(*) AS heartbeats
FROM numbered GROUP BY window_start, stream_id, session HAVING max(event_time) >= window_start
"""
PER_REGION = """
SELECT strftime(time_bucket(INTERVAL 5 MINUTE, event_time), '%Y-%m-%dT%H-%MZ') AS window, region,
    count(*) AS heartbeats, count(DISTINCT stream_id) AS streams,
    min(temperature) AS least_temperature, max(temperature) AS greatest_temperature
FROM beats WHERE time_bucket(INTERVAL 5 MINUTE, event_time) IN (SELECT w FROM windows) GROUP BY ALL
"""
TYPED: dict[str, Any] = {
    "cast(-128 AS tinyint) AS a": -128,
    "cast(32767 AS smallint) AS b": 32767,
    "cast(9223372036854775807 AS bigint) AS c": 2**63 - 1,
    "cast(1.5 AS float) AS d": 1.5,
    "cast(12345.678 AS decimal(20, 3)) AS e": Decimal("12345.678"),
    "X'00FF' AS f": b"\x00\xff",
    "date'1500-01-01' AS g": date(1500, 1, 1),
    "timestamp'1500-01-01 00:00:00.000001' AS h": datetime(1500, 1, 1, microsecond=1, tzinfo=UTC),
    "timestamp_ntz'2026-03-29 02:30:00' AS i": datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001 (a time without a zone)
    "map('k', array(1, null)) AS j": [("k", [1, None])],
    "named_struct('x', named_struct('y', cast(null AS string))) AS k": {"x": {"y": None}},
    "array(timestamp'2026-01-01') AS l": [datetime(2026, 1, 1, tzinfo=UTC)],
    "cast('v' AS varchar(3)) AS m": "v",
    "cast(null AS boolean) AS n": None,
}
"""Columns as SQL, and their values."""

BY_DUCKDB = {"sessions": SESSIONS, "per_region": PER_REGION}


class House:
    """A lake on disk, with `heartbeat_diffs` and tables of one's own over it."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self.folder, self.spark = folder, spark
        self.lake = Lake(LakeSettings(uri=f"file:{folder}"), KINDS, ManualClock(at(9000)))
        self.beats: list[tuple[str, float]] = []

    def land(self, *beats: tuple[str, float]) -> None:
        """Land heartbeats of streams at event times. A region is a stream's first letter."""
        self.beats += beats
        columns = columns_of(
            beats, region=[stream[0] for stream, _ in beats], temperature=[float(event) for _, event in beats]
        )
        append_beats(self.lake.heartbeats(), columns)

    def compute_base(self, *windows: Window) -> None:
        """Compute windows of `heartbeat_diffs`."""
        lake, clock = self.lake, ManualClock(at(9000))
        batch = (self.spark, lake.heartbeats(), at(9000), "base", clock, lambda _: None)
        compute_windows(MicroBatch(*batch, (lake.stream_status(), lake.diffs()), PLAN), windows)

    def computed(self) -> ComputedWindows:
        return ComputedWindows.of(self.lake.diffs().runs(), BASE)

    def due(self, table: TableDefinition, watermark: datetime, waiting: Sequence[range] = ()) -> list[str]:
        """The keys of the windows that are due."""
        own, made = table.windowing(OF_WINDOWS), self.lake.own_table(table.name).made()
        closed = range(BASE.number_of(BASE.first), BASE.number_of(watermark))
        followed = Followed(self.computed(), closed, waiting)
        return [own.numbered(number).key for number in followed.due(own, made)]

    def compute(self, table: TableDefinition, *keys: str, watermark: datetime | None = None) -> ReplacedWindows:
        """Compute windows of the table, by their keys."""
        own = table.windowing(OF_WINDOWS)
        windows = list(map(own.named, keys))
        batch = OwnBatch(
            self.spark,
            definition=table,
            tables=(self.lake.own_table(table.name),),
            heartbeats=self.lake.heartbeats(),
            digests=self.computed().digests(windows, own),
            watermark=watermark or at(9000),
            run="own",
            clock=ManualClock(at(9000)),
            refuse_expired=lambda _: None,
        )
        return compute_windows(batch, windows)

    def rows(self, table: TableDefinition) -> list[dict[str, Any]]:
        """Every row of the table, in one order."""
        own = self.lake.own_table(table.name)
        return in_order(own.read(own.made()).to_pylist())

    def by_duckdb(self, table: TableDefinition, windows: Iterable[str]) -> list[dict[str, Any]]:
        """The same rows from what was landed, by other code."""
        landed = [
            {"stream_id": stream, "event_time": at(event), "region": stream[0], "temperature": event}
            for stream, event in dict.fromkeys(self.beats)
        ]
        with duckdb.connect() as connection:
            connection.execute("SET TimeZone = 'UTC'")
            connection.register("beats", pa.Table.from_pylist(landed))
            connection.register("windows", pa.table({"w": [BASE.named(key).start for key in windows]}))
            found = connection.sql(BY_DUCKDB[table.name]).to_arrow_table().to_pylist()
        return in_order(found)


def in_order(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted((dict(sorted(row.items())) for row in rows), key=lambda row: str(list(row.values())))


def example(name: str) -> TableDefinition:
    kinds = {"per_region": TableSettings(file=str(EXAMPLES / "per_region.sql"), key=["region"])}
    table = kinds.get(name) or TableSettings(file=str(EXAMPLES / f"{name}.py"))
    return own_tables(Settings(windows=OF_WINDOWS, tables={name: table}))[name]


@pytest.fixture
def house(tmp_path: Path, spark: SparkSession) -> House:
    return House(tmp_path / "lake", spark)


WINDOWS = list(BASE.between(at(0), at(1500)))
FIRST_BEATS = [
    (f"{region}{number}", 40.0 * beat + number) for region in "ns" for number in range(3) for beat in range(30)
]


@pytest.mark.parametrize("name", ["per_region", "sessions"])
def test_an_example_has_duckdbs_rows_through_late_heartbeats_a_backfill_and_a_repair(house: House, name: str) -> None:
    table = example(name)
    house.land(*(beat for beat in FIRST_BEATS if not 300 <= beat[1] < 520), ("n0", -100.0), ("x9", 1100.5))
    house.compute_base(*WINDOWS)
    due = house.due(table, at(1500))
    assert due == [window.key for window in WINDOWS]
    house.compute(table, *due)
    assert house.rows(table) == house.by_duckdb(table, due)
    assert house.due(table, at(1500)) == []

    house.land(*(beat for beat in FIRST_BEATS if 300 <= beat[1] < 520), ("n0", 41.5))  # late, one of them a copy's
    house.land(*FIRST_BEATS[:5])
    house.compute_base(*WINDOWS[:2])  # as the check of missed heartbeats requests it
    again = house.due(table, at(1500))
    assert again == [window.key for window in (WINDOWS[:4] if table.lookback else WINDOWS[:2])]
    house.compute(table, *again)
    assert house.rows(table) == house.by_duckdb(table, due)

    before = house.rows(table)
    house.compute(table, *due)  # a backfill from the UI
    assert house.rows(table) == before

    own = house.lake.own_table(table.name)
    own.forget([WINDOWS[1].key])  # what a repair does to a window whose file is damaged
    assert house.due(table, at(1500)) == [WINDOWS[1].key]
    house.compute(table, WINDOWS[1].key)
    assert house.rows(table) == before


@pytest.mark.parametrize("lookback", [timedelta(0), PLAN.lookback])
def test_spark_compiles_nothing_anew_for_later_windows(
    lookback: timedelta, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    heartbeats, generated = spark.range(3).select(F.timestamp_seconds("id").alias("event_time")), set()
    for start in (T0, T0 + PLAN.window_length):
        input_of(heartbeats, [*BASE.between(start, start + PLAN.window_length)], lookback).explain("codegen")
        generated.add(capsys.readouterr().out.partition("Generated code:")[2])
    (code,) = generated
    assert str(duration_us(PLAN.window_length)) in code


@pytest.mark.parametrize(("batches", "lookback", "in_one_task"), [(1, "0s", True), (4, "10m", True), (4, "10m", False)])
def test_of_copies_a_table_gets_the_one_that_heartbeat_diffs_keeps(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, batches: int, lookback: str, in_one_task: bool
) -> None:
    if not in_one_task:
        monkeypatch.setattr("tidemark.pipeline.compute.own_tables.COPIES_SENT", 0)

    @windowed(lookback=lookback)
    def single(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        own = heartbeats.where("event_time >= window_start")
        return own.select("window", "stream_id", "event_time", "message_id", "publish_time", "late", "status")

    names = dict.fromkeys(("file", "row", "number", "is_dropped"), FieldKind.TEXT)  # columns of ours begin with _
    (tmp_path / "a 1").mkdir()  # which the pattern "a [1]" would name
    lake = Lake(LakeSettings(uri=f"file:{tmp_path}/a [1]"), {**FIELDS, **names}, ManualClock(at(2000)))
    landed_in_time = Beat("a", 10, "2", "x", published=70)  # and published after the copy that landed late
    beats = [*dirty(20_261_125), Beat("a", 10, "1", "x", published=11, late=True), landed_in_time]
    before_a_field, with_it = Beat("b", 40, "3"), Beat("b", 40, "3", values={"status": "ok"})
    beats = [before_a_field, *beats, with_it, Beat("z", 3590, "4")]
    for first in range(batches):
        append_beats(lake.heartbeats(), landed(beats[first::batches]))
    table, windows = lake.own_table("single"), list(BASE.between(at(0), at(3600)))
    digests = ComputedWindows.of({}, BASE).digests(windows, replace(BASE, lookback=single.lookback))
    batch = spark, lake.heartbeats(), at(9000), "own", ManualClock(at(9000)), lambda _: None
    definition = replace(single, is_sql=in_one_task)
    compute_windows(OwnBatch(*batch, (table,), definition, digests), windows)
    found = [{name: naive(value) for name, value in row.items()} for row in table.read(table.made()).to_pylist()]
    assert len(found) < len([beat for beat in beats if 0 <= beat.event < 3600]), "there are no copies"
    wanted = [{name: row[name] for name in found[0]} for row in expected(beats, 0, 3600)]
    assert sorted(found, key=by_message) == wanted


def test_a_window_without_rows_is_computed_and_says_by_which_version(house: House) -> None:
    @windowed()
    def nothing(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        return heartbeats.where("false").select("window", "stream_id")

    house.compute_base(*WINDOWS[:2])  # nothing has landed at all
    assert dict(house.compute(nothing, WINDOWS[0].key).rows) == {WINDOWS[0].key: 0}
    house.land(("n", 10.0), ("n", 400.0))
    assert dict(house.compute(nothing, WINDOWS[1].key).rows) == {WINDOWS[1].key: 0}
    changed = replace(nothing, version="another")
    assert dict(house.compute(changed, WINDOWS[1].key).rows) == {WINDOWS[1].key: 0}
    made = house.lake.own_table("nothing").made()
    assert {key: one.version for key, one in made.items()} == {
        WINDOWS[0].key: nothing.version,
        WINDOWS[1].key: "another",
    }
    assert house.due(nothing, at(1500)) == [], "who made a window does not make it due"


def test_a_table_keeps_values_of_every_type_that_delta_has(house: House) -> None:
    @windowed()
    def typed(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        return heartbeats.select("window", *map(F.expr, TYPED))

    house.land(("n", 10.0))
    house.compute(typed, WINDOWS[0].key)
    (row,) = house.rows(typed)
    assert row.pop("window") == WINDOWS[0].key
    assert list(row.values()) == list(TYPED.values())


def test_a_task_writes_files_by_window_with_a_bounded_number_of_rows_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "HELD_BYTES", 2_000)
    keys = [window.key for window in WINDOWS[:3]]
    batches = [pa.RecordBatch.from_pydict({"n": range(at, at + 30), "window": keys * 10}) for at in range(0, 150, 30)]
    files = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    answers = list(Output(files, "runs/one").answers(iter(batches)))
    assert sorted(answer["window"] for answer in answers) == sorted(keys * 2), "full after three batches, and the rest"
    found = [(answer, pq.ParquetFile(tmp_path / answer["path"]).read()) for answer in answers]
    assert [(answer["rows"], answer["size"]) for answer, _ in found] == [
        (len(rows), (tmp_path / answer["path"]).stat().st_size) for answer, rows in found
    ]
    written = {(answer["window"], number) for answer, rows in found for number in rows["n"].to_pylist()}
    assert written == {(keys[number % 3], number) for number in range(150)}
    assert {tuple(rows.column_names) for _, rows in found} == {("n",)}


def test_windows_of_a_run_without_its_manifest_are_computed_again_if_one_was_replaced(house: House) -> None:
    table, keys = example("per_region"), [window.key for window in WINDOWS]
    house.land(*FIRST_BEATS)
    house.compute_base(*WINDOWS)
    house.compute(table, *keys)
    before, run = house.rows(table), house.lake.own_table("per_region").runs()[keys[0]]
    house.compute(table, keys[2])
    assert house.due(table, at(1500)) == [], "the manifest says of each window what it was made from"
    (house.folder / f"diff_runs/{run}.json").unlink()
    assert house.due(table, at(1500)) == [keys[0], keys[1], *keys[3:]]
    house.compute(table, *house.due(table, at(1500)))
    assert house.due(table, at(1500)) == []
    assert house.rows(table) == before


def failing(heartbeats: DataFrame, windows: Windows) -> DataFrame:
    raise RuntimeError("no such region")


def in_a_worker(heartbeats: DataFrame, windows: Windows) -> DataFrame:
    return heartbeats.select("window", F.udf(lambda _: int("No space left on device"))("stream_id").alias("to"))


def without_a_module(heartbeats: DataFrame, windows: Windows) -> DataFrame:
    return heartbeats.select("window", F.udf(lambda _: __import__("nowhere"))("stream_id").alias("to"))


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (failing, "no such region"),
        (without_a_module, "ModuleNotFoundError: No module named 'nowhere'"),
        (in_a_worker, "ValueError: invalid literal for int() with base 10: 'No space left on device'"),
        (lambda heartbeats, _: heartbeats.select("stream_id"), "has no column window, only stream_id"),
        (lambda heartbeats, _: heartbeats.select("window", "late"), "or take it out of the key"),
        (lambda heartbeats, _: heartbeats.select("window", F.lit(1).alias("a"), F.lit(2).alias("A")), "column a twice"),
        (lambda heartbeats, _: heartbeats.select("late", F.lit(1).alias("window")), "that is not text"),
        (
            lambda heartbeats, _: heartbeats.select("late", F.lit("2026").alias("window")),
            "a row belongs to none of the computed windows",
        ),
        (lambda _, __: None, "returned a NoneType; it must return a Spark DataFrame"),
        (lambda _, __: pa.table({"window": [WINDOWS[0].key]}), "returned a Table; it must return a Spark DataFrame"),
        (lambda heartbeats, _: heartbeats.select("window", F.expr("make_dt_interval(1)").alias("i")), "cannot be"),
        (lambda heartbeats, _: heartbeats.select("window", F.array(F.lit(None)).alias("v")), "VOID or VARIANT"),
        (lambda heartbeats, _: heartbeats.select("window", F.expr("parse_json('1')").alias("v")), "VOID or VARIANT"),
    ],
)
def test_what_is_wrong_with_a_function_is_said_and_nothing_is_committed(house: House, build: Any, said: str) -> None:
    table = replace(windowed(key=["region"] if "key" in said else ())(failing), name="broken", build=build)
    house.land(("n", 10.0))
    with pytest.raises(TableFailed, match="the table broken") as failed:
        house.compute(table, WINDOWS[0].key)
    assert said in str(failed.value)
    assert house.lake.own_table("broken").made() == {}


def test_a_damaged_file_a_full_disk_and_a_lost_spark_keep_errors_that_blame_no_table(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        raise ConnectionRefusedError("Spark is gone")

    def full(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        return heartbeats.select(
            "window", F.udf(lambda _: Path("/dev/full").write_text("full"))("stream_id").alias("to")
        )

    def of_payloads(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        return heartbeats.select("window", "payload")

    house.land(("n", 10.0))
    key, (file,) = WINDOWS[0].key, (house.folder / "heartbeats").rglob("*.parquet")
    with pytest.raises(ConnectionRefusedError):
        house.compute(windowed()(lost), key)
    with pytest.raises(
        LakeFull, match=r"free some space, .* Nothing was committed \(OSError: .*No space left on device"
    ):
        house.compute(windowed()(full), key)
    with pytest.raises(LakeFull), explaining_damage():
        raise RuntimeError("[SPILL_OUT_OF_MEMORY] Error while calling spill() on a sorter : No space left on device")
    whole, metadata = file.read_bytes(), pq.read_metadata(file).row_group(0)
    columns = {
        metadata.column(number).path_in_schema: metadata.column(number) for number in range(metadata.num_columns)
    }
    start = columns["payload"].dictionary_page_offset or columns["payload"].data_page_offset
    for damaged in (whole[:start] + bytes(8) + whole[start + 8 :], whole[: len(whole) // 2]):
        file.write_bytes(damaged)
        with pytest.raises(CorruptObject, match="run `tidemark repair`"):
            house.compute(windowed()(of_payloads), key)
    with pytest.raises(CorruptObject, match=r"run `tidemark repair`.*\(polars"):
        house.compute_base(WINDOWS[0])
    monkeypatch.setattr(OwnBatch, "_copies", lambda *_: None)  # as if it went away after the search for copies
    for remove, found in ((file.unlink, f"/{file.name}"), (file.parent.rmdir, "PATH_NOT_FOUND")):
        remove()
        with pytest.raises(CorruptObject, match=rf"run `tidemark repair`.*\(.*{found}"):
            house.compute(windowed()(of_payloads), key)


def test_a_file_that_the_table_no_longer_has_is_not_read_beside_one_of_the_same_name(house: House) -> None:
    @windowed(lookback="1h")
    def counted(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        return heartbeats.groupBy("window").count()

    house.land(("n", -10.0))
    (before,) = (house.folder / "heartbeats").rglob("*.parquet")
    house.land(("n", 10.0))
    (inside,) = set((house.folder / "heartbeats").rglob("*.parquet")) - {before}
    shutil.copy(before, before.with_name(inside.name))
    house.compute(counted, WINDOWS[0].key)
    assert house.rows(counted) == [{"count": 2, "window": WINDOWS[0].key}]


def test_a_column_whose_type_changes_is_refused_and_a_new_one_is_added(house: House) -> None:
    @windowed()
    def shaped(heartbeats: DataFrame, windows: Windows) -> DataFrame:
        return heartbeats.select("window", F.lit(1).alias("n"))

    house.land(("n", 10.0))
    house.compute(shaped, WINDOWS[0].key)
    wider = replace(
        shaped, build=lambda heartbeats, _: heartbeats.select("window", F.lit(1).alias("n"), F.lit("x").alias("m"))
    )
    house.compute(wider, WINDOWS[0].key)
    assert house.rows(wider) == [{"m": "x", "n": 1, "window": WINDOWS[0].key}]
    other = replace(shaped, build=lambda heartbeats, _: heartbeats.select("window", F.lit("one").alias("n")))
    with pytest.raises(LakeError, match=r"the column n .* has the type int32 in the lake, but string in this run"):
        house.compute(other, WINDOWS[0].key)
    assert house.rows(shaped) == [{"m": "x", "n": 1, "window": WINDOWS[0].key}]


def test_a_run_over_windows_with_a_gap_has_the_columns_of_all_and_one_type_for_each(house: House) -> None:
    first, silent, last = (WINDOWS[number] for number in (0, 2, 4))
    count = {first.start: F.lit(1).alias("a"), silent.start: F.lit(1).alias("a"), last.start: F.lit(1).alias("b")}
    nested = F.struct(F.array("late").alias("late"), F.when(F.col("region") == "n", 1).alias("n")).alias("nested")
    gapped = replace(
        windowed()(failing), name="gapped", build=lambda beats, of: beats.select("window", count[of.start], nested)
    )
    house.land(("n", 10.0), ("s", 1210.0))
    late, number = pa.list_(pa.field("element", pa.bool_(), nullable=False)), pa.field("n", pa.int32(), nullable=False)
    earlier = pa.schema([("window", pa.string()), ("nested", pa.struct([pa.field("late", late), number]))])
    house.lake.own_table("gapped").table.complete(earlier)  # as an earlier function had it
    house.compute(gapped, first.key, silent.key, last.key)
    assert house.rows(gapped) == [
        {"a": 1, "b": None, "nested": {"late": [False], "n": 1}, "window": first.key},
        {"a": None, "b": 1, "nested": {"late": [False], "n": None}, "window": last.key},
    ]
    count[last.start] = F.lit("one").alias("a")
    with pytest.raises(TableFailed, match="the column a as int32 in some windows, but as string in others"):
        house.compute(gapped, first.key, last.key)


def written(folder: Path, text: str) -> TableSettings:
    file = folder / ("table.sql" if text.startswith("SELECT") else "table.py")
    file.write_text(text)
    return TableSettings(file=str(file))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("SELECT window FROM {heartbeats} WHERE stream_id RLIKE '^[a-z]{3}$'", "double each brace"),
        ("SELECT window, '}' FROM {heartbeats}", "double each brace"),
        ("x = 1", "has no function mine decorated with @tidemark.windowed"),
        ("import no_such_module", "ModuleNotFoundError"),
        ("import tidemark\n__spec__.name\n@tidemark.windowed(window='7m')\ndef mine(h, w): return h", "windows of 7m"),
        ("import tidemark\n@tidemark.windowed(lookback='soon')\ndef mine(h, w): return h", "importing"),
    ],
)
def test_a_file_that_defines_no_fitting_table_is_refused_by_name(tmp_path: Path, text: str, said: str) -> None:
    settings = Settings(windows=OF_WINDOWS, tables={"mine": written(tmp_path, text)})
    with pytest.raises(InvalidSettings, match="mine") as refused:
        own_tables(settings)
    assert said in str(refused.value)
    for name in ("topic", "ingest", "config"):  # of an asset, of a job, and a word of Dagster's
        with pytest.raises(InvalidSettings, match="no name that tidemark uses itself"):
            loaded_tables(Settings(tables={name: written(tmp_path, text)}))

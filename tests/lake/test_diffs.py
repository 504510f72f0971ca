"""Computed windows: however many runs compute one at once, its rows stand once, and every other window lands."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.gcs.apart import fresh_lake, server_apart
from tests.lake.builders import lake_in, lake_of
from tests.watermark.builders import at
from tidemark.pipeline.errors import LakeUnreachable, TableConflict
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.table import DamagedFile
from tidemark.pipeline.lake.tables.windowed import COMMIT_ATTEMPTS, DiffRun, Fence, Replaced, WindowedTable

RUNS = 8
ROUNDS = 3
SHARED = "2026-11-21T05-20Z"
FILES_PER_WINDOW = 2
ROWS_PER_FILE = 3


@pytest.fixture(scope="module")
def cloud_storage() -> Iterator[str]:
    with server_apart() as endpoint:
        yield endpoint


@pytest.fixture(params=["disk", pytest.param("gcs", marks=pytest.mark.gcs)])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    if request.param == "disk":
        return lake_in(tmp_path)
    return lake_of(fresh_lake(request.getfixturevalue("cloud_storage")))


def run_of(name: str, windows: Sequence[str], version: int = 0) -> DiffRun:
    return DiffRun(name, windows, heartbeats_version=version, watermark=at(600), started_at=at(600))


def write(diffs: WindowedTable, run: DiffRun, rows: Mapping[str, int]) -> None:
    """What Spark leaves: some files of rows for each window, in the folder of the run."""
    without_window = pa.schema([column for column in diffs.schema if column.name != "window"])
    for window, count in rows.items():
        folder = f"runs/{run.name}/window={window}"
        diffs.files.create_dir(folder, recursive=True)
        for number in range(count):
            row = {"stream_id": run.name, "event_time": at(number)}
            table = pa.Table.from_pylist([row] * ROWS_PER_FILE, schema=without_window)
            pq.write_table(table, f"{folder}/part-{number}.parquet", filesystem=diffs.files)


def compute(
    diffs: WindowedTable, name: str, windows: Sequence[str], *, fence: Fence | None = None, version: int = 0
) -> Replaced:
    """One run in the protocol's order, with rows in every window."""
    fence = diffs.fence(windows) if fence is None else fence
    run = run_of(name, windows, version)
    diffs.leave_manifest(run)
    write(diffs, run, dict.fromkeys(windows, FILES_PER_WINDOW))
    return diffs.replace(run, fence)


def rows_by_window(lake: Lake) -> dict[str, dict[str, int]]:
    """How many rows of which run stand in each window."""
    table = lake.diffs().table.current()
    assert table is not None
    found: dict[str, dict[str, int]] = {key: {} for key in lake.diffs().computed()}
    for row in table.to_pyarrow_table(columns=["window", "stream_id"]).to_pylist():
        of_window = found[row["window"]]
        of_window[row["stream_id"]] = of_window.get(row["stream_id"], 0) + 1
    return found


WHOLE = FILES_PER_WINDOW * ROWS_PER_FILE


def compute_at_once(lake: Lake, label: str, windows_of: Mapping[str, Sequence[str]]) -> dict[str, Replaced]:
    """Every named run computes its windows; all have taken their fence before any of them goes on."""
    together = threading.Barrier(len(windows_of), timeout=60)

    def work(name: str) -> Replaced:
        diffs = lake.diffs()
        fence = diffs.fence(windows_of[name])
        together.wait()
        return compute(diffs, f"{label}-{name}", windows_of[name], fence=fence)

    with ThreadPoolExecutor(len(windows_of)) as threads:
        return dict(zip(windows_of, threads.map(work, windows_of), strict=True))


def a_window_of_each_and_a_shared_one() -> dict[str, list[str]]:
    return {f"run{number}": [SHARED, f"2026-11-21T{number:02d}-00Z"] for number in range(RUNS)}


def test_a_window_that_many_runs_compute_at_once_stands_once_first_and_again(lake: Lake) -> None:
    windows_of = a_window_of_each_and_a_shared_one()
    for number in range(ROUNDS):  # the first round creates the table, the others replace what is there
        outcomes = compute_at_once(lake, f"round{number}", windows_of)
        winners = [name for name, outcome in outcomes.items() if SHARED in outcome.rows]
        assert len(winners) == 1
        stands = rows_by_window(lake)
        assert stands.pop(SHARED) == {f"round{number}-{winners[0]}": WHOLE}
        assert stands == {windows_of[name][1]: {f"round{number}-{name}": WHOLE} for name in windows_of}
        for name, outcome in outcomes.items():
            assert outcome.rows[windows_of[name][1]] == WHOLE
            assert outcome.superseded == (() if name in winners else (SHARED,))


def test_a_window_that_was_replaced_after_the_fence_was_taken_is_superseded(lake: Lake) -> None:
    diffs = lake.diffs()
    windows = ["2026-11-21T05-20Z", "2026-11-21T05-25Z", "2026-11-21T05-30Z"]
    compute(diffs, "old", windows)
    fence = diffs.fence(windows)
    compute(lake.diffs(), "meanwhile", windows[1:2])
    outcome = compute(diffs, "slow", windows, fence=fence)
    assert outcome.superseded == (windows[1],)
    assert dict(outcome.rows) == {windows[0]: WHOLE, windows[2]: WHOLE}
    assert rows_by_window(lake) == {
        windows[0]: {"slow": WHOLE},
        windows[1]: {"meanwhile": WHOLE},
        windows[2]: {"slow": WHOLE},
    }


def test_a_window_without_rows_counts_as_computed(lake: Lake) -> None:
    diffs = lake.diffs()
    assert diffs.computed() == set()
    windows = [SHARED, "2026-11-21T05-25Z"]
    run, fence = run_of("run", windows), diffs.fence(windows)
    diffs.leave_manifest(run)
    write(diffs, run, {SHARED: 1})
    outcome = diffs.replace(run, fence)
    assert outcome.rows == {SHARED: ROWS_PER_FILE, "2026-11-21T05-25Z": 0}
    assert lake.diffs().computed() == set(windows)
    assert rows_by_window(lake)["2026-11-21T05-25Z"] == {}
    assert compute(diffs, "again", ["2026-11-21T05-25Z"]).rows == {"2026-11-21T05-25Z": WHOLE}
    assert rows_by_window(lake)["2026-11-21T05-25Z"] == {"again": WHOLE}


@pytest.mark.parametrize("content", [b"PAR1", None])
def test_a_damaged_or_missing_file_is_named(tmp_path: Path, content: bytes | None) -> None:
    lake, windows = lake_in(tmp_path), [SHARED, "2026-11-21T05-25Z"]
    compute(lake.diffs(), "run", windows)
    lake.streams().save()
    for table in ("heartbeat_diffs", "streams"):
        file = min((tmp_path / "lake" / table).rglob("*.parquet"))
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        reads = {"heartbeat_diffs": lambda: lake.diffs().read(windows), "streams": lake.streams().known}
        with pytest.raises(DamagedFile, match=rf"{table}/.*{file.name} is damaged"):
            reads[table]()
    assert len(lake.diffs().read(windows[1:])) == WHOLE


class Faulty(WindowedTable):
    """Whose commits raise what the test says, before or after they land."""

    faults: list[tuple[bool, Exception]]

    def _transact(self, *args: Any) -> None:
        landed, fault = self.faults.pop(0) if self.faults else (True, None)
        if landed:
            super()._transact(*args)
        if fault is not None:
            raise fault


def faulty(lake: Lake, *faults: tuple[bool, Exception]) -> Faulty:
    whole = lake.diffs()
    diffs = Faulty(whole.table, lake.objects(), whole.schema, whole._clock)
    diffs.faults = list(faults)
    return diffs


@pytest.mark.parametrize("fault", [LakeUnreachable("no answer"), TableConflict("it is there already")])
def test_a_commit_that_landed_and_whose_answer_was_lost_is_recognised(lake: Lake, fault: Exception) -> None:
    outcome = compute(faulty(lake, (True, fault)), "run", [SHARED])
    assert (dict(outcome.rows), outcome.superseded) == ({SHARED: WHOLE}, ())
    assert rows_by_window(lake) == {SHARED: {"run": WHOLE}}
    assert compute(faulty(lake, (True, fault)), "again", [SHARED]).rows == {SHARED: WHOLE}
    assert rows_by_window(lake) == {SHARED: {"again": WHOLE}}


@pytest.mark.parametrize("fault", [LakeUnreachable("no answer"), TableConflict("another was first")])
def test_a_commit_that_did_not_land_is_tried_again(lake: Lake, fault: Exception) -> None:
    assert compute(faulty(lake, (False, fault)), "run", [SHARED]).rows == {SHARED: WHOLE}
    assert rows_by_window(lake) == {SHARED: {"run": WHOLE}}


def test_a_lake_that_stays_away_is_reported_and_no_reader_sees_a_partial_window(tmp_path: Path) -> None:
    lake, away = lake_in(tmp_path), LakeUnreachable("no answer")
    with pytest.raises(LakeUnreachable):
        compute(faulty(lake, (False, away), (False, away)), "run", [SHARED])
    assert rows_by_window(lake) == {}


def test_a_run_that_loses_every_commit_gives_up_and_says_so(tmp_path: Path) -> None:
    lake = lake_in(tmp_path)
    diffs = faulty(lake, *[(False, TableConflict("another was first"))] * COMMIT_ATTEMPTS)
    with pytest.raises(TableConflict, match=f"{COMMIT_ATTEMPTS} commits in a row.*run it again"):
        compute(diffs, "run", [SHARED])
    assert rows_by_window(lake) == {}


# Manifests

"""Runs that compute a window again note what changed in it, and never fail because of that."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from pyspark.sql import DataFrame

import tidemark
from tests.dagster.test_by_window import run_over
from tests.dagster.test_diffs_asset import CLASSIC, START, WINDOWS, Materializing
from tidemark.assets.catalog import CORRECTIONS, HEARTBEAT_DIFFS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs import by_window
from tidemark.pipeline.lake.tables.corrections import Sought
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import WindowSettings

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


def noting(settings: Settings) -> Settings:
    windows = settings.windows.model_copy(update={"corrections": True})
    return settings.model_copy(update={"windows": windows})


def materializations(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    found = (event for event in result.all_events if event.is_step_materialization and event.asset_key == CORRECTIONS)
    said = (event.step_materialization_data.materialization.metadata for event in found)
    return [{name: value.value for name, value in metadata.items()} for metadata in said]


def rows_of(house: Materializing) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["stream_id"], row["event_time"].isoformat()): row for row in house.rows().to_pylist()}


def test_a_late_heartbeat_corrects_its_row_and_the_next_and_a_failure_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = Materializing(tmp_path, CLASSIC)
    house.settings = noting(house.settings)
    with dg.DagsterInstance.ephemeral() as instance:
        assert materializations(house.run(WINDOWS[0], WINDOWS[-1], instance)) == []
        before = rows_of(house)
        late = START + timedelta(seconds=112)
        house.land([("stream-0", late)])

        def fails(*_: object) -> int:
            raise RuntimeError("as a defect would")

        with monkeypatch.context() as patched:
            patched.setattr(by_window, "follow", fails)
            failed = run_over(house, instance, WINDOWS[1], WINDOWS[2])
        assert failed.success
        assert materializations(failed) == []
        assert list(house.lake.corrections().newest(Sought(), 10)) == []
        after = rows_of(house)

        again = house.run(WINDOWS[0], WINDOWS[0], instance)
        assert materializations(again) == [{"rows": 2, "rows/heartbeat_diffs": 2}]
        silent = run_over(house, instance, WINDOWS[1])
        assert (silent.success, materializations(silent)) == (True, [])
    differing = {at for at in after if before.get(at) != after[at]}
    following = min(at for at in before if at[0] == "stream-0" and at[1] > late.isoformat())
    assert differing == {("stream-0", late.isoformat()), following}, "its own row, and the next"
    noted = {row["change"]: row for row in house.lake.corrections().newest(Sought(), 10)}
    assert sorted(noted) == ["added", "changed"]
    added, changed = noted["added"], noted["changed"]
    assert added["old_row"] is None
    assert json.loads(added["new_row"])["event_time"] == "2026-11-21T05:21:52.000000Z"
    old, new = json.loads(changed["old_row"]), json.loads(changed["new_row"])
    assert (old["gap_seconds"], new["gap_seconds"]) == (
        before[following]["gap_seconds"],
        after[following]["gap_seconds"],
    )
    assert new["previous_event_time"] == "2026-11-21T05:21:52.000000Z"
    assert {row["window"] for row in noted.values()} == {after[at]["window"] for at in differing}


def test_the_asset_is_there_if_corrections_are_noted() -> None:
    @tidemark.windowed(key="stream_id")
    def per_stream(heartbeats: DataFrame, windows: tidemark.Windows) -> DataFrame:
        return heartbeats

    for is_on, deps in ((False, None), (True, {HEARTBEAT_DIFFS, dg.AssetKey("per_stream")})):
        settings = Settings(windows=WindowSettings(corrections=is_on))
        specs = {spec.key: spec for spec in build_definitions(settings, tables=[per_stream]).resolve_all_asset_specs()}
        found = specs.get(CORRECTIONS)
        assert (None if found is None else {dep.asset_key for dep in found.deps}) == deps

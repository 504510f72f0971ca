"""The job that computes windows wherever they lie, and what an asset's own run does instead."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.test_diffs_asset import CLASSIC, START, WINDOWS, Materializing, failure_of
from tests.dagster.test_repair import materialized
from tidemark.assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.requests import COMPUTE_OP
from tidemark.assets.runs import Runs, ended_attempts, stretch_named, stretch_texts
from tidemark.pipeline.services.dagster_names import COMPUTE_WINDOWS, RANGE_END, RANGE_START
from tidemark.pipeline.windows import Windowing

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector

MINUTES = Windowing(timedelta(minutes=1), START)


def computed(house: Materializing, instance: dg.DagsterInstance, *windows: str) -> dg.ExecuteInProcessResult:
    job = build_definitions(house.settings).resolve_job_def(COMPUTE_WINDOWS)
    config = {"ops": {COMPUTE_OP: {"config": {"windows": list(windows)}}}}
    return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)


def test_stretches_are_written_as_their_first_and_last_window() -> None:
    first = MINUTES.number_of(START)
    numbers = [first + 9, first + 5, first + 4, first + 3]
    texts = list(stretch_texts(map(MINUTES.numbered, numbers)))
    assert texts == ["2026-11-21T05-23Z..2026-11-21T05-25Z", "2026-11-21T05-29Z"]
    assert [number for text in texts for number in stretch_named(text, MINUTES)] == sorted(numbers)
    with pytest.raises(ValueError, match="not the start of a window"):
        stretch_named("2026-11-21T05-23Z", Windowing(timedelta(minutes=5), START))


def test_windows_with_a_gap_between_them_are_computed_in_one_run_each_as_it_would_have_been_alone(
    tmp_path: Path,
) -> None:
    whole = Materializing(tmp_path / "whole", CLASSIC)
    parts = Materializing(tmp_path / "parts", CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        assert whole.run(WINDOWS[0], WINDOWS[-1], instance).success
        result = computed(parts, instance, WINDOWS[2], WINDOWS[0])
        assert result.success
        assert materialized(result) == materialized(result, STREAM_STATUS) == [WINDOWS[0], WINDOWS[2]]
        assert parts.lake.diffs().computed() == {WINDOWS[0], WINDOWS[2]}
        assert computed(parts, instance, WINDOWS[1]).success
    assert parts.rows().equals(whole.rows())


def test_what_is_no_window_is_refused_and_so_is_a_run_that_names_none(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        assert "'yesterday' is no window's key" in failure_of(computed(house, instance, "yesterday"))
        assert "no window is named" in failure_of(computed(house, instance))
    assert house.written() == []


def test_the_windows_of_a_run_are_known_from_its_config_or_from_the_range_in_its_tags(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    open_one = "2026-11-21T05-23Z"
    with dg.DagsterInstance.ephemeral() as instance:
        assert not computed(house, instance, WINDOWS[0], f"{WINDOWS[2]}..{open_one}").success
        assert not house.run(WINDOWS[1], open_one, instance).success
        by_tags, by_config = ended_attempts(Runs(instance, house.settings), house.settings.windowing)
    first = MINUTES.number_of(START)
    assert [number in by_config.windows for number in range(first, first + 4)] == [True, False, True, True]
    assert [number in by_tags.windows for number in range(first, first + 4)] == [False, True, True, True]
    assert by_tags.failed
    assert by_config.failed


def test_partitions_of_a_run_that_fails_are_shown_as_failed_until_they_are_computed(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:

        def shown() -> set[str]:
            attempts = (
                instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations
            )
            return set(attempts(HEARTBEAT_DIFFS))

        assert not computed(house, instance, WINDOWS[0], "2026-11-21T05-23Z").success
        assert shown() == {WINDOWS[0], "2026-11-21T05-23Z"}
        assert computed(house, instance, WINDOWS[0]).success
        assert shown() == {"2026-11-21T05-23Z"}


def test_a_range_that_is_picked_in_the_ui_gives_the_same_rows_in_one_run(tmp_path: Path) -> None:
    ours, theirs = Materializing(tmp_path / "ours", CLASSIC), Materializing(tmp_path / "theirs", CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        assert ours.run(WINDOWS[0], WINDOWS[-1], instance).success
        job = build_definitions(theirs.settings).resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(
            instance=instance,
            tags={RANGE_START: WINDOWS[0], RANGE_END: WINDOWS[-1]},
            asset_selection=[HEARTBEAT_DIFFS, STREAM_STATUS],
        )
        assert materialized(result) == materialized(result, STREAM_STATUS) == WINDOWS
    assert theirs.rows().equals(ours.rows())

"""The job that computes windows wherever they lie, and what an asset's own run does instead."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest

from tests.dagster.test_diffs_asset import CLASSIC, HOUR, START, WINDOWS, Materializing, failure_of
from tests.dagster.test_repair import told
from tidemark.assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs.job import tags_of
from tidemark.assets.partitions import stretch_named, stretch_texts, windows_tag
from tidemark.assets.scheduler.runs import Runs, ended_attempts
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, PIPELINE, op_of
from tidemark.pipeline.windows import Windowing

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
LAST = "2026-11-21T05-23Z"
"""The last window that holds a heartbeat."""

MINUTES = Windowing(timedelta(minutes=1), START)


def run_over(house: Materializing, instance: dg.DagsterInstance, *windows: str) -> dg.ExecuteInProcessResult:
    job = build_definitions(house.settings).resolve_job_def(COMPUTE_WINDOWS)
    config = {"ops": {op_of(COMPUTE_WINDOWS): {"config": {"windows": list(windows)}}}}
    return job.execute_in_process(instance=instance, run_config=config, raise_on_error=False)


def test_stretches_are_written_as_their_first_and_last_window() -> None:
    first = MINUTES.number_of(START)
    numbers = [first + 9, first + 5, first + 4, first + 3]
    texts = list(stretch_texts(map(MINUTES.numbered, numbers)))
    assert texts == ["2026-11-21T05-23Z..2026-11-21T05-25Z", "2026-11-21T05-29Z"]
    assert [number for text in texts for number in stretch_named(text, MINUTES)] == sorted(numbers)
    with pytest.raises(ValueError, match="not the start of a window"):
        stretch_named("2026-11-21T05-23Z", Windowing(timedelta(minutes=5), START))


@pytest.mark.parametrize(
    ("minutes", "said"),
    [
        ((3,), "2026-11-21T05-23Z"),
        ((3, 4, 9), "2026-11-21T05-23Z..29Z (3)"),
        ((3, 63), "2026-11-21T05-23Z..06-23Z (2)"),
        ((3, 24 * 60), "2026-11-21T05-23Z..22T05-20Z (2)"),
        ((3, 60 * 24 * 60), "2026-11-21T05-23Z..2027-01-20T05-20Z (2)"),
    ],
)
def test_the_tag_of_a_run_says_its_windows_in_short_and_is_read_back(minutes: tuple[int, ...], said: str) -> None:
    numbers = [MINUTES.number_of(START) + minute for minute in minutes]
    assert windows_tag([MINUTES.numbered(number) for number in numbers]) == said
    assert stretch_named(said, MINUTES) == range(numbers[0], numbers[-1] + 1)


def test_what_is_no_window_is_refused_and_so_is_a_run_that_names_none(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        assert "'yesterday' is not a window key" in failure_of(run_over(house, instance, "yesterday"))
        assert "no window is named: name windows in the op's config" in failure_of(run_over(house, instance))
    assert house.written() == []


def test_the_windows_of_a_run_are_known_from_its_config_or_from_the_range_in_its_tags(tmp_path: Path) -> None:
    house = Materializing(tmp_path, CLASSIC)
    open_one = "2026-11-21T05-23Z"
    with dg.DagsterInstance.ephemeral() as instance:
        assert not run_over(house, instance, WINDOWS[0], f"{WINDOWS[2]}..{open_one}").success
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

        house.decide(START + timedelta(hours=1))
        assert not run_over(house, instance, WINDOWS[0], "2026-11-21T06-23Z").success
        assert shown() == {HOUR, "2026-11-21T06-00Z"}
        assert run_over(house, instance, *WINDOWS, LAST).success
        assert shown() == {"2026-11-21T06-00Z"}


def test_an_hour_is_materialized_once_it_is_over_and_all_its_windows_are_computed(
    tmp_path: Path, computed: Path
) -> None:
    house = Materializing(tmp_path, CLASSIC, copied_from=computed)
    with dg.DagsterInstance.ephemeral() as instance:

        def whole(*windows: str) -> list[tuple[str, str | None]]:
            result = run_over(house, instance, *windows)
            assert result.success
            return [
                (event.asset_key.to_user_string(), event.partition)
                for event in told(result)
                if isinstance(event, dg.AssetMaterialization)
            ]

        house.decide(START + timedelta(minutes=40) - timedelta(seconds=1))
        assert whole(LAST) == [], "all is computed, and the hour goes on"
        house.land([("again", START + timedelta(minutes=30))])
        house.decide(START + timedelta(hours=1))
        assert whole(LAST) == [], "05-50 waits"
        both = [("heartbeat_diffs", HOUR), ("stream_status", HOUR)]
        assert whole("2026-11-21T05-50Z") == both
        assert whole(WINDOWS[1]) == both, "computed again"


def test_a_partition_picked_in_the_ui_gives_the_same_rows_and_an_open_one_is_refused(tmp_path: Path) -> None:
    ours, theirs = Materializing(tmp_path / "ours", CLASSIC), Materializing(tmp_path / "theirs", CLASSIC)
    with dg.DagsterInstance.ephemeral() as instance:
        for house in (ours, theirs):
            house.decide(START + timedelta(minutes=40) - timedelta(seconds=1))
        assert ours.run(WINDOWS[0], LAST, instance).success
        job = build_definitions(theirs.settings).resolve_implicit_global_asset_job_def()

        def picked(last: str) -> dg.ExecuteInProcessResult:
            return job.execute_in_process(
                instance=instance,
                tags={RANGE_START: HOUR, RANGE_END: last},
                asset_selection=[HEARTBEAT_DIFFS, STREAM_STATUS],
                raise_on_error=False,
            )

        assert "are not closed yet" in failure_of(picked(HOUR))
        theirs.decide(START + timedelta(hours=3))
        result = picked("2026-11-21T07-00Z")
        assert result.success
        events = [event for event in told(result) if event.asset_key == HEARTBEAT_DIFFS]
        assert [event.partition for event in events] == [HOUR, "2026-11-21T06-00Z", "2026-11-21T07-00Z"]
        assert events[0].metadata["rows"].value == ours.rows().num_rows
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert run.tags[PIPELINE] == tags_of(theirs.settings)[PIPELINE], "housekeeping finds it"
    assert theirs.rows().equals(ours.rows())

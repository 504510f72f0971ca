"""The jobs that repair, each kind of harm, and that compute windows wherever they lie, on a real Spark session; windows
as Dagster's partitions; and what changed in windows that are computed again."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_factories import utils as freshness
from dagster._core.test_utils import create_run_for_test
from pyspark.sql import DataFrame

import tidemark
from tests.dagster.house import SOMEBODY_ELSES
from tests.dagster.test_diffs_asset import CLASSIC, HOUR, START, WATERMARK, WINDOWS, Materializing, failure_of
from tests.pubsub.builders import raising
from tidemark.assets.catalog import CORRECTIONS, HEARTBEAT_DIFFS, STREAM_STATUS
from tidemark.assets.definitions import build_definitions
from tidemark.assets.jobs import by_window, heartbeat_diffs
from tidemark.assets.jobs.by_window import LostEvents, WindowsAsset, corrections_noted
from tidemark.assets.jobs.job import tags_of
from tidemark.assets.jobs.repair import REPAIR
from tidemark.assets.partitions import Partitions, stretch_named, stretch_texts, windows_tag
from tidemark.assets.scheduler.runs import Runs, ended_attempts
from tidemark.assets.sensors.ticks import requesting
from tidemark.pipeline.clock import SystemClock, format_duration
from tidemark.pipeline.compute.micro_batch import compute_windows
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.tables.corrections import Sought
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, PIPELINE, REPORTED, op_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LENGTHS, WindowSettings
from tidemark.pipeline.upkeep.survey import Fault, Survey, Surveyor
from tidemark.pipeline.windows import Windowing
from tidemark.resources.lake import LakeResource

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # sockets that py4j leaves to the collector


class Repairing(Materializing):
    """A copy of a lake whose windows are computed, and runs of the repair."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, copied_from: Path) -> None:
        super().__init__(folder, CLASSIC, instance, copied_from=copied_from)
        self.whole = self.rows()

    def repair(self, **config: Any) -> dg.ExecuteInProcessResult:
        job = build_definitions(self.settings).resolve_job_def(REPAIR)
        ops = {"look_and_compute_again": {"config": config}}
        return job.execute_in_process(instance=self.instance, run_config={"ops": ops}, raise_on_error=False)

    def look(self) -> Survey:
        return Surveyor(self.settings, SystemClock()).look(START, WATERMARK, grace=timedelta(0))

    def file_of(self, key: str, table: str = "heartbeat_diffs") -> Path:
        lake = self.lake.diffs() if table == "heartbeat_diffs" else self.lake.stream_status()
        (path,) = lake.fence([key])[key]
        return self.folder / table / path


@pytest.fixture
def copied(tmp_path: Path, instance: dg.DagsterInstance, computed: Path) -> Repairing:
    return Repairing(tmp_path, instance, computed)


def materialized(result: dg.ExecuteInProcessResult, asset: dg.AssetKey = HEARTBEAT_DIFFS) -> list[str | None]:
    """The windows of an asset that Dagster knows as computed by a run, one of several in an hour."""
    return [
        key
        for event in told(result)
        if event.asset_key == asset
        for key in str(event.metadata["windows_computed"].value).split(", ")
    ]


def told(result: dg.ExecuteInProcessResult) -> list[dg.AssetMaterialization | dg.AssetObservation]:
    """What a run tells of assets by partition."""
    found = []
    for event in result.all_events:
        if event.is_step_materialization and event.partition:
            found.append(event.step_materialization_data.materialization)
        elif event.is_asset_observation:
            found.append(event.asset_observation_data.asset_observation)
    return found


def output(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    (event,) = [event for event in result.all_events if event.is_successful_output]
    return {name: value.value for name, value in event.step_output_data.metadata.items()}


def test_a_deleted_window_a_corrupt_object_and_an_orphan_are_named_and_repaired(copied: Repairing) -> None:
    assert copied.look().is_sound
    gone, corrupt = copied.file_of(WINDOWS[0]), copied.file_of(WINDOWS[2])
    gone.unlink()
    *content, last = corrupt.read_bytes()
    corrupt.write_bytes(bytes([*content, last ^ 0x10]))  # a bit of the footer: the size is right
    orphan = copied.folder / "heartbeat_diffs" / "runs" / "dead" / f"window={WINDOWS[1]}" / "part-0.parquet"
    orphan.parent.mkdir(parents=True)
    orphan.write_bytes(copied.file_of(WINDOWS[1]).read_bytes())

    dry = output(copied.repair(dry_run=True, remove_orphans=True, grace="0"))
    assert (dry["windows_broken"], dry["windows_computed"], dry["orphans"], dry["orphans_removed"]) == (2, 0, 1, 0)
    assert (orphan.exists(), gone.exists()) == (True, False)

    said = output(result := copied.repair(remove_orphans=True, grace="0"))
    assert result.success
    assert said["found"].splitlines()[0] == f"damaged: {WINDOWS[0]}: {gone}: it is gone"
    assert said["found"].splitlines()[1].startswith(f"damaged: {WINDOWS[2]}: {corrupt}: it cannot be read: ")
    assert said["found"].splitlines()[2].startswith(f"orphaned: {orphan}: left by run dead (")
    assert (said["windows_looked_at"], said["windows_computed"], said["orphans_removed"]) == (3, 2, 1)
    assert [materialized(result, key) for key in (HEARTBEAT_DIFFS, STREAM_STATUS)] == [[WINDOWS[0], WINDOWS[2]]] * 2
    assert (copied.rows().equals(copied.whole), orphan.exists(), copied.look().is_sound) == (True, False, True)


def test_windows_without_their_streams_status_and_a_lost_table_are_recomputed(copied: Repairing) -> None:
    copied.file_of(WINDOWS[1], "stream_status").unlink()
    assert [(one.window.key, one.fault) for one in copied.look().broken] == [(WINDOWS[1], Fault.DAMAGED)]
    assert materialized(copied.repair()) == [WINDOWS[1]]
    assert copied.look().is_sound

    (copied.folder / "heartbeat_diffs").rename(copied.folder.parent / "lost")
    result = copied.repair(first_window=WINDOWS[0], last_window=WINDOWS[-1])
    assert materialized(result) == [f"{WINDOWS[0]}..{WINDOWS[-1]}"]
    assert copied.rows().equals(copied.whole)


def test_a_window_that_computing_does_not_repair_fails_the_run_and_is_named(copied: Repairing) -> None:
    copied.land([("after", WATERMARK - timedelta(seconds=1))])  # the last window is stale, of a file of its own
    assert [one.fault for one in copied.look().broken] == [Fault.STALE]
    (entry := copied.folder / "tracking" / "log" / f"{0:012d}.parquet").unlink()
    result = copied.repair()
    assert not result.success
    assert f"{entry.relative_to(copied.folder)} and all earlier entries are missing" in failure_of(result)
    assert materialized(result) == [WINDOWS[2]]
    assert copied.look().broken == []


RETRIES = {"run_retries": {"enabled": True, "max_retries": 2}}
RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
LAST = "2026-11-21T05-23Z"
"""The last window that holds a heartbeat."""

MINUTES = Windowing(timedelta(minutes=1), START)


def run_over(house: Materializing, *windows: str) -> dg.ExecuteInProcessResult:
    job = build_definitions(house.settings).resolve_job_def(COMPUTE_WINDOWS)
    config = {"ops": {op_of(COMPUTE_WINDOWS): {"config": {"windows": list(windows)}}}}
    return job.execute_in_process(instance=house.instance, run_config=config, raise_on_error=False)


def test_stretches_are_written_as_their_first_and_last_window() -> None:
    numbers = [MINUTES.number_of(START) + minute for minute in (9, 5, 4, 3)]
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


def test_what_is_no_window_and_a_run_without_one_are_refused_and_not_retried(house: Materializing) -> None:
    with dg.DagsterInstance.ephemeral(settings=RETRIES) as house.instance:
        assert "'yesterday' is not a window key" in failure_of(run_over(house, "yesterday"))
        assert "no window is named: name windows in the op's config" in failure_of(run_over(house))
        backwards = f"{WINDOWS[2]}..{WINDOWS[0]}"
        assert f"{backwards} ends before it begins" in failure_of(run_over(house, backwards))
        assert "is before the first window" in failure_of(run_over(house, f"1970-01-01T00-00Z..{WINDOWS[0]}"))
        assert [run.tags["dagster/will_retry"] for run in house.instance.get_runs()] == ["false"] * 4
    assert house.written() == []


def test_a_range_far_above_the_watermark_is_refused(house: Materializing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(by_window, "windows_of")  # no range is expanded
    refused = failure_of(run_over(house, f"{WINDOWS[0]}..9998-11-21T05-23Z"))
    assert ended_attempts(Runs(house.instance, house.settings), house.settings.windowing) == [], "no window has to rest"
    assert "the first open window is [9998-11-21T05:23:00Z, " in refused


def test_the_windows_of_a_run_are_known_from_its_config_or_from_the_range_in_its_tags(house: Materializing) -> None:
    open_one = "2026-11-21T05-23Z"
    assert not run_over(house, WINDOWS[0], f"{WINDOWS[2]}..{open_one}").success
    assert not house.run(WINDOWS[1], open_one).success
    by_tags, by_config = ended_attempts(Runs(house.instance, house.settings), house.settings.windowing)
    first = MINUTES.number_of(START)
    assert [number in by_config.windows for number in range(first, first + 4)] == [True, False, True, True]
    assert [number in by_tags.windows for number in range(first, first + 4)] == [False, True, True, True]
    assert (by_tags.failed, by_config.failed) == (True, True)


def test_partitions_of_a_run_that_fails_are_shown_as_failed_until_they_are_computed(house: Materializing) -> None:

    def shown() -> set[str]:
        log = house.instance.event_log_storage
        return set(log.get_latest_asset_partition_materialization_attempts_without_materializations(HEARTBEAT_DIFFS))

    house.decide(START + timedelta(hours=1))
    assert not run_over(house, WINDOWS[0], "2026-11-21T06-23Z").success
    assert shown() == {HOUR, "2026-11-21T06-00Z"}
    assert run_over(house, *WINDOWS, LAST).success
    windowing = house.settings.windowing
    house.lake.kept_windows(windowing).raise_to(windowing.named(WINDOWS[1]))
    assert "has deleted heartbeats" in failure_of(run_over(house, WINDOWS[0], LAST))
    assert shown() == {"2026-11-21T06-00Z"}, "a run that is refused changes nothing"


def known(
    house: Materializing, tables: dict[str, LostEvents], *assets: dg.AssetKey
) -> list[list[dg.AssetMaterialization]]:
    """What is known, newest first, after ticks of two code servers."""
    for _ in range(2):
        clock, settings, kept = SystemClock(), house.settings, Kept()
        tick = requesting(settings, clock, Partitions(settings.windowing, clock.now()), tables)
        lake = LakeResource(settings=settings, kept=kept, clock=clock)
        tick(dg.build_sensor_context(house.instance), lake, house.lake.tracking_log().catch_up())
    found = (house.instance.fetch_materializations(asset, 9).records for asset in assets)
    return [[record.asset_materialization for record in records] for records in found]


def test_what_a_run_committed_before_it_died_is_materialized_once(
    copied: Repairing, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied.decide(START + timedelta(minutes=40))
    instance = copied.instance

    theirs = [
        create_run_for_test(instance, job_name=COMPUTE_WINDOWS, status=dg.DagsterRunStatus.FAILURE, tags=tags)
        for tags in SOMEBODY_ELSES
    ]
    assert run_over(copied, *WINDOWS, LAST).success
    in_the_ui = build_definitions(copied.settings).resolve_implicit_global_asset_job_def().execute_in_process
    picked = partial(in_the_ui, None, instance, HOUR, False, asset_selection=[HEARTBEAT_DIFFS])
    ran, reports = partial(run_over, copied, WINDOWS[0]), WindowsAsset.reports
    gaps = ((2, reports, picked), (2, compute_windows, ran), (3, reports, ran), (4, corrections_noted, ran))
    for count, gap, run in gaps:
        with monkeypatch.context() as patched:
            owner = WindowsAsset if gap is reports else heartbeat_diffs
            patched.setattr(owner, gap.__name__, raising(RuntimeError("killed")))
            assert not run().success
        found = known(copied, {}, HEARTBEAT_DIFFS, STREAM_STATUS)
        assert [len(events) for events in found] == [count, count], gap.__name__
    ours, by_us = found[0][:2]
    assert by_us.metadata == ours.metadata
    assert [event.asset_key for event in told(picked())] == [HEARTBEAT_DIFFS, STREAM_STATUS], "no status is older"
    assert all(REPORTED not in instance.get_run_by_id(run.run_id).tags for run in theirs)


def test_an_hour_is_materialized_once_it_is_over_and_its_windows_are_computed(copied: Repairing) -> None:
    def whole(*windows: str) -> list[tuple[str, str | None]]:
        result = run_over(copied, *windows)
        assert result.success
        made = (event for event in told(result) if isinstance(event, dg.AssetMaterialization))
        return [(event.asset_key.to_user_string(), event.partition) for event in made]

    copied.decide(START + timedelta(minutes=40) - timedelta(seconds=1))
    assert whole(LAST) == [], "all is computed, and the hour goes on"
    updated = partial(freshness.retrieve_last_update_record, copied.instance, HEARTBEAT_DIFFS)
    assert updated(HOUR) is None, "a freshness check of theirs waits for the hour"
    assert freshness.retrieve_timestamp_from_record(updated(None))
    copied.land([("again", START + timedelta(minutes=30))])
    copied.decide(START + timedelta(hours=1))
    assert whole(LAST) == [], "05-50 waits"
    both = [("heartbeat_diffs", HOUR), ("stream_status", HOUR)]
    assert whole("2026-11-21T05-50Z") == both
    assert whole(WINDOWS[1]) == both, "computed again"
    assert whole("2026-11-21T06-00Z") == [], "the hour before is known"
    copied.decide(START + timedelta(hours=3))
    with dg.DagsterInstance.ephemeral() as copied.instance:
        unknown = [(asset, hour) for asset, _ in both for hour in (HOUR, "2026-11-21T06-00Z")]
        assert whole("2026-11-21T08-00Z") == unknown, "the runs that completed them ended before they could report them"
        assert whole("2026-11-21T08-00Z") == []
    with dg.DagsterInstance.ephemeral() as copied.instance:
        kept = copied.settings.housekeeping.model_copy(update={"dagster_runs": timedelta(days=1)})
        copied.settings = copied.settings.model_copy(update={"housekeeping": kept})
        assert whole("2026-11-21T08-00Z") == [], "housekeeping may have deleted what was known of them"


BOTH = [HEARTBEAT_DIFFS, STREAM_STATUS]


def test_a_partition_picked_in_the_ui_gives_the_same_rows_and_an_open_one_is_refused(tmp_path: Path) -> None:
    with dg.DagsterInstance.ephemeral(settings=RETRIES) as instance:
        ours, theirs = (Materializing(tmp_path / name, CLASSIC, instance) for name in ("ours", "theirs"))
        for house in (ours, theirs):
            house.decide(START + timedelta(minutes=40) - timedelta(seconds=1))
        assert ours.run(WINDOWS[0], LAST).success
        mine = dg.Definitions(jobs=[dg.define_asset_job("mine", BOTH)])
        built = dg.Definitions.merge(build_definitions(theirs.settings), mine)
        job = built.resolve_implicit_global_asset_job_def()

        def picked(last: str, first: str = HOUR) -> dg.ExecuteInProcessResult:
            return job.execute_in_process(
                instance=instance,
                tags={RANGE_START: first, RANGE_END: last},
                asset_selection=BOTH,
                raise_on_error=False,
            )

        all_of_it = job.execute_in_process(instance=instance, asset_selection=[HEARTBEAT_DIFFS], raise_on_error=False)
        assert "the run names no partition of heartbeat_diffs" in failure_of(all_of_it)
        assert "are not closed yet" in failure_of(picked(HOUR))
        theirs.decide(START + timedelta(hours=3))
        result = picked("2026-11-21T07-00Z")
        assert result.success
        hours = {RANGE_START: HOUR, RANGE_END: "2026-11-21T07-00Z"}
        of_mine = built.resolve_job_def("mine").execute_in_process(instance=instance, tags=hours)
        for one in (of_mine, result):
            events, of_status = ([event for event in told(one) if event.asset_key == key] for key in BOTH)
            for told_once in (events, of_status):
                assert [event.partition for event in told_once] == [HOUR, "2026-11-21T06-00Z", "2026-11-21T07-00Z"]
        assert events[0].metadata["rows"].value == ours.rows().num_rows
        run = instance.get_run_by_id(result.run_id)
        assert run.tags[PIPELINE] == tags_of(theirs.settings)[PIPELINE], "housekeeping finds it"
        kept = theirs.lake.kept_windows(theirs.settings.windowing)
        kept.raise_to(theirs.settings.windowing.named(WINDOWS[1]))
        assert picked("2026-11-21T06-00Z").success, "the boundary cuts the first hour"
        assert "housekeeping has deleted heartbeats" in failure_of(picked(HOUR, "2026-11-21T04-00Z"))
        assert picked("2026-11-21T04-00Z", "2026-11-21T04-00Z").all_events[-1].is_failure, "it has no windows"
        failed = instance.get_runs(dg.RunsFilter(statuses=[dg.DagsterRunStatus.FAILURE]))
        assert [one.tags["dagster/will_retry"] for one in failed] == ["false"] * 4
    assert theirs.rows().equals(ours.rows())


LOADED = datetime(2036, 11, 25, 4, 50, tzinfo=UTC)
TEN_YEARS = datetime(2026, 11, 25, tzinfo=UTC)
AN_HOUR = timedelta(hours=1)


@pytest.mark.parametrize("length", LENGTHS, ids=format_duration)
def test_partitions_hold_every_listed_window_once(length: timedelta) -> None:
    partitions = Partitions(Windowing(length, TEN_YEARS), LOADED)
    definition, windowing = partitions.definition(), partitions.windowing
    keys = definition.get_partition_keys(current_time=datetime(2035, 1, 3, tzinfo=UTC))
    assert (keys[0], len(keys)) == ("2035-01-01T00-00Z", timedelta(days=2) / max(AN_HOUR, length))
    windows = list(windowing.between(datetime(2035, 1, 1, tzinfo=UTC), datetime(2035, 1, 3, tzinfo=UTC)))
    held = partitions.holding(reversed(windows))
    assert list(held) == keys
    assert [window for each in held.values() for window in each] == windows
    for key, its in held.items():
        bounds = definition.time_window_for_partition_key(key)
        assert (bounds.start, bounds.end) == (its[0].start, its[-1].end)
        (numbers,) = partitions.windows_in([key])
        assert [windowing.numbered(number) for number in numbers] == its


@pytest.mark.parametrize("length", [LENGTHS[0], AN_HOUR, LENGTHS[-1]], ids=format_duration)
def test_however_many_years_the_lake_has_dagster_lists_two_at_most(length: timedelta) -> None:
    partitions = Partitions(Windowing(length, datetime(1990, 1, 1, tzinfo=UTC)), LOADED)
    definition = partitions.definition()
    assert len(definition.get_partition_keys(current_time=datetime(2036, 12, 31, 23, 59, tzinfo=UTC))) <= 17_544
    assert partitions.holding([Windowing(length, TEN_YEARS).containing(TEN_YEARS)]) == {}, "it is not listed"


def materializations(result: dg.ExecuteInProcessResult) -> list[dict[str, Any]]:
    found = (event for event in result.all_events if event.is_step_materialization and event.asset_key == CORRECTIONS)
    said = (event.step_materialization_data.materialization.metadata for event in found)
    return [{name: value.value for name, value in metadata.items()} for metadata in said]


def rows_of(house: Materializing) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["stream_id"], row["event_time"].isoformat()): row for row in house.rows().to_pylist()}


def test_late_beats_correct_two_rows_and_failures_wait(house: Materializing, monkeypatch: pytest.MonkeyPatch) -> None:
    windows = house.settings.windows.model_copy(update={"corrections": True})
    house.settings = house.settings.model_copy(update={"windows": windows})
    assert materializations(house.run(WINDOWS[0], WINDOWS[-1])) == []
    before = rows_of(house)
    late = START + timedelta(seconds=112)
    house.land([("stream-0", late)])
    with monkeypatch.context() as patched:
        patched.setattr(by_window, "follow", raising(RuntimeError("as a defect would")))
        failed = run_over(house, WINDOWS[1], WINDOWS[2])
    assert failed.success
    assert materializations(failed) == []
    assert list(house.lake.corrections().newest(Sought(), 10)) == []
    after = rows_of(house)

    assert materializations(house.run(WINDOWS[0], WINDOWS[0])) == [{"rows": 2, "rows/heartbeat_diffs": 2}]
    silent = run_over(house, WINDOWS[1])
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

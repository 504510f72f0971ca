"""Runs whose process dies under a launcher that cannot tell, and runs that are only slow; and a Spark server that has
ended."""

from datetime import timedelta
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test, freeze_time

from tests.clock import until
from tests.dagster.house import ModelWorld, Ticking
from tests.official_emulator import free_port
from tests.pubsub.builders import raising
from tidemark.assets.ingest import run_at_work
from tidemark.assets.jobs import job
from tidemark.assets.jobs.heartbeat_diffs import report_lost
from tidemark.assets.jobs.job import BEAT, tags_of, working
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.requests import LOOK_EVERY, pause_of
from tidemark.assets.scheduler.runs import FEWEST, LONGEST_RUN, SILENT_FOR, STARTS_WITHIN, UNFINISHED, Runs, report_dead
from tidemark.assets.scheduler.turns import LONGEST_PAUSE
from tidemark.local.services.own_files import spark_log
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.errors import LakeFull, LakeUnreachable, SparkUnreachable
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.orchestrator.names import COMPUTE_WINDOWS, INGEST, READS, REPORTED, compute_job
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import DagsterSettings, LakeSettings, SparkSettings
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource

SECOND = timedelta(seconds=1)
SETTINGS = Settings(lake=LakeSettings(uri="gs://a-bucket/lake"))
STATUS = dg.DagsterRunStatus


@pytest.fixture
def runs(instance: dg.DagsterInstance) -> Runs:
    return Runs(instance, SETTINGS)


def noted(runs: Runs, status: STATUS, job_name: str = COMPUTE_WINDOWS) -> dg.DagsterRun:
    """A run that the instance knows, and that nobody runs."""
    return create_run_for_test(runs.instance, job_name=job_name, status=status, tags=tags_of(SETTINGS))


def status_of(runs: Runs, run: dg.DagsterRun) -> STATUS:
    return runs.instance.get_run_by_id(run.run_id).status


@pytest.mark.parametrize(
    ("status", "after", "becomes"),
    [
        (STATUS.STARTED, SILENT_FOR, STATUS.FAILURE),
        (STATUS.CANCELING, SILENT_FOR, STATUS.CANCELED),
        (STATUS.STARTING, STARTS_WITHIN, STATUS.FAILURE),
        (STATUS.NOT_STARTED, SILENT_FOR, STATUS.FAILURE),
    ],
)
@pytest.mark.parametrize("clock_set_back", [timedelta(0), timedelta(days=1)])
def test_a_run_of_which_nothing_is_heard_stops_no_sensor_for_longer_than_that(
    runs: Runs, status: STATUS, after: timedelta, becomes: STATUS, clock_set_back: timedelta
) -> None:
    run = noted(runs, status)
    (record,) = runs.newest(COMPUTE_WINDOWS, 1)
    noted_at = record.update_timestamp - clock_set_back
    assert pause_of(runs, COMPUTE_WINDOWS, noted_at) is not None
    assert f"run {run.run_id[:8]}" in (pause_of(runs, COMPUTE_WINDOWS, noted_at + after - SECOND) or "")
    assert status_of(runs, run) is status
    assert "is computing" not in (pause_of(runs, COMPUTE_WINDOWS, noted_at + after + SECOND) or "")
    assert status_of(runs, run) is becomes
    logs = [entry.message for entry in runs.instance.all_logs(run.run_id)]
    said = ("its process has ended or is stuck", "has not started it within", "did not queue it within")
    assert any(words in line for line in logs for words in said)
    assert pause_of(runs, COMPUTE_WINDOWS, noted_at + after + LONGEST_PAUSE) is None


def test_the_tag_is_searched_only_if_runs_of_others_fill_an_answer(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, ask, asked = noted(runs, STATUS.STARTED), runs.instance.get_run_records, list[dg.RunsFilter]()
    monkeypatch.setattr(
        runs.instance,
        "get_run_records",
        lambda wanted, *more, **named: asked.append(wanted) or ask(wanted, *more, **named),
    )
    for theirs in (1, FEWEST):
        for _ in range(theirs):
            create_run_for_test(runs.instance, job_name=COMPUTE_WINDOWS, status=STATUS.STARTED)
        assert [found.dagster_run.run_id for found in runs.newest(COMPUTE_WINDOWS, 1, UNFINISHED)] == [ours.run_id]
    assert [bool(wanted.tags) for wanted in asked] == [False, False, True]


def test_a_queued_run_is_waited_for_and_noted_and_somebody_elses_runs_are_left_alone(
    ticking: Ticking, world: ModelWorld
) -> None:
    runs, theirs = ticking.runs, ticking.run(COMPUTE_WINDOWS, STATUS.STARTED, {})
    origin = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("ours"), "a repository").get_job_origin(
        COMPUTE_WINDOWS
    )
    named = {"job_name": COMPUTE_WINDOWS, "tags": tags_of(ticking.settings), "remote_job_origin": origin}
    queued = create_run_for_test(runs.instance, status=STATUS.QUEUED, **named)
    waits = f"run {queued.run_id[:8]} waits in the queue of runs"
    assert pause_of(runs, COMPUTE_WINDOWS, SystemClock().now() + timedelta(days=30)) == waits
    assert status_of(runs, theirs) is STATUS.STARTED
    for later, notes in ((timedelta(0), []), (LOOK_EVERY, [waits])):
        world.clock.advance(SystemClock().now() + later - world.clock.now())
        ticking.track()
        assert [note.reason for note in ticking.lake().failed_ticks().newest() if note.waits] == notes


def test_a_run_that_says_something_is_waited_for_until_it_is_older_than_any(runs: Runs) -> None:
    run, began = noted(runs, STATUS.STARTING), SystemClock().now()
    runs.instance.report_dagster_event(
        dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, COMPUTE_WINDOWS), run_id=run.run_id
    )
    for hours in range(-3, LONGEST_RUN // timedelta(hours=1)):  # it began before the clock was set back
        now = began + timedelta(hours=hours)
        with freeze_time(now - SILENT_FOR + SECOND):
            runs.instance.report_engine_event("still at work", run)
        assert pause_of(runs, COMPUTE_WINDOWS, now) is not None, hours
    now = began + LONGEST_RUN + SECOND
    with freeze_time(now - SECOND):
        runs.instance.report_engine_event("still at work", run)
    assert report_dead(runs, COMPUTE_WINDOWS, now) == []
    assert status_of(runs, run) is STATUS.FAILURE


def test_a_run_that_ended_during_the_look_stays_as_it_ended(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    ended, deleted = (noted(runs, STATUS.STARTED) for _ in range(2))
    records = runs.newest(COMPUTE_WINDOWS, 2)
    success = dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, COMPUTE_WINDOWS)
    runs.instance.report_dagster_event(success, run_id=ended.run_id)
    runs.instance.delete_run(deleted.run_id)
    monkeypatch.setattr(Runs, "newest", lambda *_: records)
    assert report_dead(runs, COMPUTE_WINDOWS, SystemClock().now() + LONGEST_RUN) == []
    assert status_of(runs, ended) is STATUS.SUCCESS


def test_all_runs_that_fail_at_once_or_meanwhile_are_looked_at_whatever_a_table_has(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(lake=LakeSettings(uri=f"file:{tmp_path}"))
    failed, meanwhile = ([noted(runs, STATUS.STARTED, compute_job("a")) for _ in range(number)] for number in (50, 1))
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a").write_text("not a folder")
    fail, tag, late = runs.instance.report_run_failed, runs.instance.add_run_tags, iter(meanwhile)
    for run in failed:
        fail(run)
    monkeypatch.setattr(runs.instance, "add_run_tags", lambda *of: [tag(*of), *map(fail, late)])

    def look() -> None:
        lake = LakeResource(settings=settings, kept=Kept(), clock=SystemClock())
        report_lost(runs, Partitions(settings.windowing, SystemClock().now()), lake, {"a": lambda *_: iter(())})

    for fault in (LakeUnreachable("away"), LakeFull("too many open files")):
        with monkeypatch.context() as away:
            away.setattr(OpenLake, "own_table", raising(fault))
            with pytest.raises(type(fault)):
                look()
    with monkeypatch.context() as dying:
        left = iter(range(30))
        dying.setattr(runs.instance, "add_run_tags", lambda *of: [next(left), tag(*of)])
        with pytest.raises(StopIteration):
            look()
    for known in (failed, [*failed, *meanwhile]):
        look()
        tags = [runs.instance.get_run_by_id(run.run_id).tags.get(REPORTED) for run in known]
        assert tags == [run.run_id for run in known]


def test_ticks_pull_again_once_nothing_is_heard_of_a_run_whose_readers_pull(runs: Runs) -> None:
    run, now = noted(runs, STATUS.STARTED, INGEST), SystemClock().now()
    runs.instance.add_run_tags(run.run_id, {READS: run.run_id})
    assert run_at_work(runs, now) == run.run_id
    for later in (SILENT_FOR + SECOND, -2 * SILENT_FOR):
        assert run_at_work(runs, now + later) is None, "nor where it fell silent before the clock was set back"


def test_a_run_at_work_says_that_it_is(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BEAT", timedelta(milliseconds=20))

    def said(run_id: str) -> int:
        logs = instance.all_logs(run_id)
        return sum(entry.dagster_event is not None and entry.message == "still at work" for entry in logs)

    @dg.op
    def silent(context: dg.OpExecutionContext) -> None:
        with working(context):
            until("it says so twice", lambda: said(context.run_id) > 1)

    @dg.job(executor_def=dg.in_process_executor)
    def slow() -> None:
        silent()

    assert slow.execute_in_process(instance=instance).success
    assert BEAT * 3 < SILENT_FOR, "a lost beat must not make a run dead"


WHY = 'Exception in thread "main" java.lang.OutOfMemoryError: Java heap space'


def test_an_absent_server_is_said_with_the_line_of_its_log_that_says_why(tmp_path: Path) -> None:
    spark = SparkSettings(remote=f"sc://localhost:{free_port()}/;token=hush")
    settings = Settings(spark=spark, dagster=DagsterSettings(storage=str(tmp_path / "dagster")))
    log = spark_log(settings)
    resource = SparkResource(spark_config=session_config(settings), server_log=str(log))
    with pytest.raises(SparkUnreachable) as without_a_log:
        resource.session()
    assert str(log) not in str(without_a_log.value)
    log.parent.mkdir()
    log.write_text("\n".join([WHY, *(f"\tat line {number}" for number in range(40))]))
    with pytest.raises(SparkUnreachable) as unreachable:
        resource.session()
    resource._spark_session = "whose server went"
    with pytest.raises(SparkUnreachable):  # not Spark's own ten minutes of retries
        resource.interrupt()
    assert str(unreachable.value).endswith(f"The newest errors in {log}:\n{WHY}")
    assert "hush" not in str(unreachable.value)

"""Everything that tidemark gives to Dagster, built from settings. Importing this reads none."""

from collections.abc import Iterable

import dagster as dg

from tidemark.assets.attached import attached_definitions, pubsub_and_lake
from tidemark.assets.catalog import observed_assets
from tidemark.assets.checks import CHECKS, by_hand
from tidemark.assets.jobs.corrections import corrections_asset
from tidemark.assets.jobs.heartbeat_diffs import compute_windows_job, heartbeat_diffs_asset, stream_status_asset
from tidemark.assets.jobs.housekeeping import housekeeping_job, housekeeping_schedule
from tidemark.assets.jobs.ingest import ingest_job, ingest_sensor
from tidemark.assets.jobs.own_tables import own_table_definitions, tables_sensor
from tidemark.assets.jobs.repair import repair_job
from tidemark.assets.jobs.requeue import requeue_job, requeue_sensor
from tidemark.assets.jobs.tuning import tuning_asset, tuning_schedule
from tidemark.assets.partitions import Partitions
from tidemark.assets.scheduler.requests import OneAsks
from tidemark.assets.sensors.staleness import staleness_sensor
from tidemark.assets.sensors.ticks import landing_sensor, requesting, tracking_sensor
from tidemark.assets.sensors.watching import Jobs, keep_observer
from tidemark.local.services.own_files import spark_log
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.compute.table_definition import TableDefinition, loaded_tables
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.ingest.pace import AtWork, Pace
from tidemark.pipeline.ingest.rounds import PLAN, RunPlan
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import ON_CHANGE
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.keys import SPARK
from tidemark.resources.spark import SparkResource


def build_definitions(
    settings: Settings,
    clock: Clock | None = None,
    tables: Iterable[TableDefinition] = (),
    topic: dg.AssetKey | None = None,
    plan: RunPlan = PLAN,
) -> dg.Definitions:
    """Assets, sensors, jobs and resources for these settings, on the machine's clock or another one, with the tables of
    `[tables]` and these. With `pubsub.attach`, what needs no landing, and no tables. `topic` is somebody else's asset
    that stands for the topic. Raises InvalidSettings."""
    clock = clock or SystemClock()
    if settings.pubsub.attach:
        if tables:
            raise InvalidSettings("pubsub.attach lands nothing and computes no windows: give no tables")
        return attached_definitions(settings, clock, topic)
    mine = loaded_tables(settings, tables)
    own_assets, own_jobs = own_table_definitions(settings, clock, mine.values())
    partitions = Partitions(settings.windowing, clock.now())
    job, housekeeping, kept = compute_windows_job(settings, partitions), housekeeping_job(settings), Kept()
    requeue = requeue_job(settings, clock)
    tracking_pace, landing_pace = (Pace(settings.watermark.tick, clock) for _ in range(2))
    asking, landing = OneAsks(clock), AtWork()
    sensors = [
        tracking_sensor(settings, clock, tracking_pace, requesting(settings, clock, asking), landing, [job]),
        landing_sensor(settings, clock, landing_pace, tracking_pace, landing),
        ingest_sensor(settings, clock, plan),
        staleness_sensor(settings, clock, job, asking),
        *([tables_sensor(settings, clock, mine, own_jobs)] if mine else []),
        *([requeue_sensor(settings, clock, requeue)] if settings.quarantine.requeue == ON_CHANGE else []),
    ]
    jobs: Jobs = [
        job,
        ingest_job(settings, clock, plan),
        repair_job(settings, partitions),
        requeue,
        housekeeping,
        *own_jobs,
    ]
    keep_observer(settings, kept, sensors, jobs, clock)
    return dg.Definitions(
        assets=[
            *observed_assets(settings, topic),
            heartbeat_diffs_asset(settings, partitions),
            stream_status_asset(settings, partitions),
            tuning_asset(settings),
            *own_assets,
            *corrections_asset(settings, mine),
        ],
        jobs=jobs,
        asset_checks=by_hand(settings, CHECKS, clock),
        sensors=sensors,
        schedules=[tuning_schedule(settings), housekeeping_schedule(settings, housekeeping)],
        resources={
            **pubsub_and_lake(settings, clock, kept),
            name_of(settings, SPARK): SparkResource(
                spark_config=session_config(settings), server_log=str(spark_log(settings))
            ),
        },
    )

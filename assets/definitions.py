"""All Dagster definitions of tidemark, built from settings. Importing this module reads no settings."""

from collections.abc import Iterable, Sequence
from inspect import getdoc
from threading import Event
from typing import Any

import dagster as dg

from tidemark.assets.attached import CompleteWindows
from tidemark.assets.catalog import observed_assets
from tidemark.assets.checks import by_hand
from tidemark.assets.ingest import ingest_job, ingest_sensor
from tidemark.assets.jobs.by_window import corrections_asset
from tidemark.assets.jobs.heartbeat_diffs import compute_windows_job, heartbeat_diffs_asset, stream_status_asset
from tidemark.assets.jobs.housekeeping import housekeeping_job, housekeeping_schedule
from tidemark.assets.jobs.repair import repair_job
from tidemark.assets.jobs.tuning import tuning_asset, tuning_schedule
from tidemark.assets.own_tables import own_table_definitions, tables_sensor
from tidemark.assets.partitions import Partitions
from tidemark.assets.requeue import requeue_job, requeue_sensor
from tidemark.assets.sensors.staleness import staleness_sensor
from tidemark.assets.sensors.ticks import landing_sensor, requesting, tracking_sensor
from tidemark.assets.sensors.watching import keep_recorder
from tidemark.local.services.own_files import spark_log
from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.compute.table_definition import TableDefinition, loaded_tables, lookbacks_of
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.ingest.pace import Pace
from tidemark.pipeline.ingest.rounds import PLAN, RunPlan
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.orchestrator.names import name_of
from tidemark.pipeline.pubsub.readings import Subscriptions
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import ON_CHANGE
from tidemark.pipeline.spark.session import session_config
from tidemark.resources.keys import LAKE, PUBSUB, SPARK
from tidemark.resources.lake import LakeResource
from tidemark.resources.spark import SparkResource

Built = tuple[list[dg.AssetSpec | dg.AssetsDefinition], list[dg.JobDefinition], Sequence[dg.SensorDefinition]]


def build_definitions(
    settings: Settings,
    clock: Clock | None = None,
    tables: Iterable[TableDefinition] = (),
    topic: dg.AssetKey | None = None,
    plan: RunPlan = PLAN,
) -> dg.Definitions:
    """Build the assets, checks, jobs, sensors, schedules and resources for these settings.

    `clock` is by default the machine's clock. `tables` are custom tables in addition to those of `[tables]`. With
    `pubsub.attach`, only definitions that need no landed data are built, and `tables` must be empty. `topic` is the key
    of an asset that stands for the topic. Raises InvalidSettings, and ToolMissing if a library for metrics is missing.
    """
    clock, kept = clock or SystemClock(), Kept()
    partitions = Partitions(settings.windowing, clock.now())
    housekeeping = housekeeping_job(settings, has_tables=bool(tables))
    given = settings, clock, partitions, tables
    assets, jobs, sensors = _attached(*given) if settings.pubsub.attach else _landing(*given, plan)
    jobs.append(housekeeping)
    keep_recorder(settings, kept, sensors, jobs, clock)
    resources: dict[str, Any] = {
        PUBSUB: dg.ResourceDefinition.hardcoded_resource(Subscriptions(settings, kept, clock), getdoc(Subscriptions)),
        LAKE: LakeResource(settings=settings, kept=kept, clock=clock),
    }
    if not settings.pubsub.attach:
        resources[SPARK] = SparkResource(spark_config=session_config(settings), server_log=str(spark_log(settings)))
    return dg.Definitions(
        assets=[*observed_assets(settings, topic), tuning_asset(settings), *assets],
        jobs=jobs,
        asset_checks=by_hand(settings, clock),
        sensors=sensors,
        schedules=[tuning_schedule(settings), housekeeping_schedule(settings, housekeeping)],
        resources={name_of(settings, name): resource for name, resource in resources.items()},
    )


def _attached(settings: Settings, clock: Clock, partitions: Partitions, tables: Iterable[TableDefinition]) -> Built:
    if tables:
        raise InvalidSettings("with pubsub.attach, no window is computed, so custom tables are impossible: remove them")
    complete, pace = CompleteWindows(settings, partitions), Pace(settings.watermark.tick, clock)
    sensors = [
        tracking_sensor(settings, clock, pace, complete.after_decision),
        staleness_sensor(settings, clock, counts=False),
    ]
    return [complete.described()], [], sensors


def _landing(
    settings: Settings, clock: Clock, partitions: Partitions, tables: Iterable[TableDefinition], plan: RunPlan
) -> Built:
    mine = loaded_tables(settings, tables)
    own_assets, own_jobs, lost = own_table_definitions(settings, clock, mine.values())
    job, requeue = compute_windows_job(settings, partitions), requeue_job(settings, clock)
    tracking_pace, landing_pace = (Pace(settings.watermark.tick, clock) for _ in range(2))
    landing = Event()
    landing.set()
    after_decision = requesting(settings, clock, partitions, lost)
    sensors = [
        tracking_sensor(settings, clock, tracking_pace, after_decision, landing, [job]),
        landing_sensor(settings, clock, landing_pace, tracking_pace, landing),
        ingest_sensor(settings, clock, plan),
        staleness_sensor(settings, clock, counts=True),
        *([tables_sensor(settings, clock, mine, own_jobs)] if mine else []),
        *([requeue_sensor(settings, clock, requeue)] if settings.quarantine.requeue == ON_CHANGE else []),
    ]
    assets = [heartbeat_diffs_asset(settings, partitions), stream_status_asset(settings, partitions), *own_assets]
    repair = repair_job(settings, partitions, lookbacks_of(mine))
    jobs = [job, ingest_job(settings, clock, plan), repair, requeue, *own_jobs]
    return [*assets, *corrections_asset(settings, mine)], jobs, sensors

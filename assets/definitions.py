"""Everything that the code server serves, built from the settings."""

import dagster as dg

from assets.catalog import HEARTBEAT_DIFFS, STREAM_STATUS, observed_assets
from assets.checks import MISSED, asset_checks, staleness_sensor
from assets.drain import drain_job, drain_sensor
from assets.housekeeping import housekeeping_job, housekeeping_schedule
from assets.repair import repair_job
from assets.sensors import landing_sensor, tracking_sensor
from assets.tuning import tuning_asset, tuning_schedule
from assets.windowed import heartbeat_diffs_asset, stream_status_asset
from pipeline.kept import Kept
from pipeline.services.dagster_names import COMPUTE_WINDOWS
from pipeline.settings import Settings, load_settings
from pipeline.spark.session import session_config
from resources.lake import LakeResource
from resources.pubsub import PubSubResource
from resources.spark import SparkResource


def build_definitions(settings: Settings) -> dg.Definitions:
    """Assets, sensors, the job and the resources for these settings."""
    # The check `missed` is left out; the sensor `staleness` reports it. For a check of a partitioned asset, Dagster
    # lists every partition, which for a year of windows takes longer than computing a few.
    missed = dg.AssetSelection.checks(dg.AssetCheckKey(HEARTBEAT_DIFFS, MISSED))
    job = dg.define_asset_job(
        COMPUTE_WINDOWS,
        selection=dg.AssetSelection.assets(HEARTBEAT_DIFFS, STREAM_STATUS) - missed,
        description="Heartbeat diffs of a range of closed windows, and who was silent in them, in one run.",
    )
    housekeeping, kept = housekeeping_job(settings), Kept()
    return dg.Definitions(
        assets=[
            *observed_assets(settings),
            heartbeat_diffs_asset(settings),
            stream_status_asset(settings),
            tuning_asset(settings),
        ],
        jobs=[job, drain_job(settings), repair_job(settings), housekeeping],
        asset_checks=asset_checks(settings),
        sensors=[
            tracking_sensor(settings),
            landing_sensor(settings),
            drain_sensor(settings),
            staleness_sensor(settings),
        ],
        schedules=[tuning_schedule(), housekeeping_schedule(housekeeping)],
        resources={
            "pubsub": PubSubResource(settings=settings, kept=kept),
            "lake": LakeResource(settings=settings, kept=kept),
            "spark": SparkResource(spark_config=session_config(settings)),
        },
        # A process for the step would cost more than the micro-batch, so the run's own process computes it.
        executor=dg.in_process_executor,
    )


defs = build_definitions(load_settings())

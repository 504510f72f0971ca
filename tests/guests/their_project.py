"""The files of a project that is somebody else's, with the names that tidemark would have where it is alone."""

ASSETS = '''
"""Their own package, called assets."""

import time

import dagster as dg


@dg.asset
def watermark() -> None: ...


@dg.op(required_resource_keys={"spark"})
def look_and_compute_again() -> None: ...


@dg.job
def repair() -> None:
    look_and_compute_again()


@dg.op
def takes_long() -> None:
    time.sleep(600)


@dg.job(executor_def=dg.in_process_executor)
def ingest() -> None:
    takes_long()


@dg.sensor(job=repair, minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
def tracking(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    number = int(context.cursor or 0)
    events = [
        dg.AssetMaterialization("watermark", metadata={"number": number}),
        dg.AssetCheckEvaluation(asset_key=dg.AssetKey("watermark"), check_name="late", passed=True),
    ]
    return dg.SensorResult(asset_events=events, cursor=str(number + 1))


@dg.sensor(job=ingest, default_status=dg.DefaultSensorStatus.RUNNING)
def ingests_for_long() -> dg.RunRequest:
    return dg.RunRequest(run_key="once")


defs = dg.Definitions(
    assets=[watermark],
    jobs=[repair, ingest],
    sensors=[tracking, ingests_for_long],
    resources={"spark": dg.ResourceDefinition.hardcoded_resource("theirs")},
    executor=dg.in_process_executor,
)
'''

DEFINITIONS = """
from pathlib import Path

import dagster as dg

import assets
import tidemark.dagster as td

HERE = Path(__file__).parent
heartbeats = td.pipeline(HERE / "heartbeats.toml")
orders = td.pipeline(HERE / "orders.toml", name="orders")


@dg.asset(deps=[orders.diffs], partitions_def=orders.windows, automation_condition=orders.on_computed)
def rows_of_orders(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
    return dg.MaterializeResult(metadata={"rows": orders.read_diffs([context.partition_key]).num_rows})


automation = dg.AutomationConditionSensorDefinition(
    "automation", target="rows_of_orders", default_status=dg.DefaultSensorStatus.RUNNING
)
defs = dg.Definitions.merge(
    assets.defs,
    dg.Definitions(assets=[rows_of_orders], sensors=[automation]),
    heartbeats.definitions(),
    orders.definitions(),
)
"""

SETTINGS = """\
pubsub.project = "guests"
pubsub.topic = "{name}"
pubsub.base_subscription = "{name}-base"
pubsub.tracking_subscription = "{name}-tracking"
pubsub.emulator_host = "{emulator}"
message.fields.temperature = "number"
message.fields.status = "text"
windows.length = "1m"
windows.first = "{first}"
watermark.band = "10s"
watermark.tick = "5s"
watermark.idle_timeout = "20s"
ingest.readers = 2
housekeeping.dagster_runs = "1d"
lake.uri = "file:{name}-lake"
spark.remote = "sc://localhost:{spark}"
spark.config."spark.driver.memory" = "1g"
"""

WORKSPACE = "load_from: [{{grpc_server: {{host: 127.0.0.1, port: {code}, location_name: theirs}}}}]\n"

INSTANCE = """
telemetry: {enabled: false}
sensors: {use_threads: true, num_workers: 12}
run_monitoring: {enabled: true}
run_coordinator:
  module: dagster
  class: QueuedRunCoordinator
  config: {dequeue_interval_seconds: 1}
run_launcher: {module: tidemark.resources.run_launcher, class: WatchedRunLauncher}
"""

"""A Dagster project whose hourly report waits until an hour is complete in a table that another system fills.

pip install DIRECTORY_OR_WHEEL_OF_TIDEMARK
tidemark --config pipeline.toml provision
dagster dev -f definitions.py
"""

from pathlib import Path

import dagster as dg

import tidemark.dagster as td

elsewhere = td.pipeline(Path(__file__).parent / "pipeline.toml")


@dg.asset(
    deps=[elsewhere.complete_windows], partitions_def=elsewhere.windows, automation_condition=elsewhere.on_computed
)
def hourly_report(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """The table's rows of an hour, once the table's loader has acknowledged every message of the hour."""
    hour = context.partition_time_window
    sql = f"event_time >= TIMESTAMP '{hour.start.isoformat()}' AND event_time < TIMESTAMP '{hour.end.isoformat()}'"
    return dg.MaterializeResult(metadata={"where": sql})  # here you would ask the warehouse


automation = dg.AutomationConditionSensorDefinition(
    "automation", target=[hourly_report], default_status=dg.DefaultSensorStatus.RUNNING
)
defs = dg.Definitions.merge(dg.Definitions(assets=[hourly_report], sensors=[automation]), elsewhere.definitions())

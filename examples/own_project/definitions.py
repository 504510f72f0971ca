"""A custom Dagster project with two tidemark pipelines, and an asset over the closed windows of the first pipeline.

pip install DIRECTORY_OR_WHEEL_OF_TIDEMARK
dagster dev -f definitions.py
"""

from pathlib import Path

import dagster as dg
import pyarrow.compute as pc

import tidemark.dagster as td

HERE = Path(__file__).parent
MOST_MISSED = 3

heartbeats = td.pipeline(HERE / "heartbeats.toml")
orders = td.pipeline(HERE / "orders.toml")


@dg.asset(
    deps=[heartbeats.diffs],
    partitions_def=heartbeats.windows,
    automation_condition=heartbeats.on_computed,
    backfill_policy=dg.BackfillPolicy.single_run(),
)
def gaps(context: dg.AssetExecutionContext) -> dg.MaterializeResult[None]:
    """The streams that missed more than a few heartbeats in a row, for each closed window."""
    rows = heartbeats.read_diffs(context.partition_keys)
    found = rows.filter(pc.field("missed_heartbeats") > MOST_MISSED)
    return dg.MaterializeResult(metadata={"rows": rows.num_rows, "gaps": found.num_rows})


# Dagster accepts only one Definitions per module, so the merged ones are not assigned to names.
defs = dg.Definitions.merge(dg.Definitions(assets=[gaps]), heartbeats.definitions(), orders.definitions())

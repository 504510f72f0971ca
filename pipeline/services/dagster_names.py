"""Names shared by Dagster's definitions and the commands that ask it for runs."""

COMPUTE_WINDOWS = "compute_windows"
"""The job that computes a range of windows."""

DRAIN = "drain"
"""The job that drains an outage's backlog."""

DRAINED = "tidemark/drained"
"""The tag that says why a drain ended."""

CODE_LOCATION = "tidemark"
"""The code location's name in `workspace.yaml`."""

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""Dagster's tags for one run over a contiguous range of partitions."""

"""Names that whoever asks Dagster for a run and whoever defines it must agree on."""

COMPUTE_WINDOWS = "compute_windows"
"""The job that computes a range of windows."""

DRAIN = "drain"
"""The job that drains an outage's backlog."""

DRAINED = "tidemark/drained"
"""The tag that says why a run of it ended."""

CODE_LOCATION = "tidemark"
"""As `workspace.yaml` calls it."""

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""The tags by which Dagster launches one run over a contiguous range of partitions."""

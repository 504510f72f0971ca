"""Names shared by Dagster's definitions and the commands that ask it for runs."""

COMPUTE_WINDOWS = "compute_windows"
"""The job that computes a range of windows."""

DRAIN = "drain"
"""The job that drains an outage's backlog."""

PIPELINE = "tidemark/pipeline"
"""The tag that says which pipeline's run it is."""

DRAINED = "tidemark/drained"
"""The tag that says why a drain ended."""

RANGE_START, RANGE_END = "dagster/asset_partition_range_start", "dagster/asset_partition_range_end"
"""Dagster's tags for one run over a contiguous range of partitions."""

COMPUTE_BACKLOG = "compute_backlog"
"""The job that computes older and stale windows, which may have gaps between them, in parts."""

TRIED = "tidemark/tried"
"""The tag with the part of its windows that a run of that job has reached."""

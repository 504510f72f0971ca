"""The micro-batch: heartbeats in, diffs out, on any Spark session."""

"""Finds late, missed, stale and lost heartbeats, failures, and the progress of the watermark, from the lake alone."""

"""Finds late, missed, stale and lost heartbeats, and tells how far the watermark is, from the lake alone."""

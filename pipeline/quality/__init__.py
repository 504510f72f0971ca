"""Finds late, missed, stale and lost heartbeats, from the lake alone."""

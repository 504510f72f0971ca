"""Finds late, missed and lost heartbeats, stale windows and failures, and reports the watermark's progress. All of this
reads only the lake."""

"""Finds late, missed and lost heartbeats, stale windows and failures, and reports the watermark's progress. Never calls
Pub/Sub."""

"""Finds the heartbeats that landed after their window was computed, and the windows that are stale since."""

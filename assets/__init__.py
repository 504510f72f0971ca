"""Dagster's assets, checks, jobs and sensors. Each is a thin wrapper around the pipeline's functions. A job that only
one sensor requests is in that sensor's module."""

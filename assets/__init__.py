"""Dagster's assets, checks, jobs and sensors. Each is a thin wrapper around the pipeline's functions. If only one
sensor requests a job, both are in one module."""

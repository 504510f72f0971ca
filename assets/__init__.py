"""Dagster's assets, checks, jobs and sensors. Each is a thin wrapper around the pipeline's functions. A job is in the
same module as its sensor, if it has only one."""

"""Dagster's assets, checks, jobs and sensors. Each is a thin wrapper around the pipeline's functions. A sensor that
alone requests a job is in the job's module."""

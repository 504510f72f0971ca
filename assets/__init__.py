"""Dagster's assets, checks, jobs and sensors. Each is a thin wrapper around the pipeline's functions. A job with only
one sensor is in the sensor's module."""

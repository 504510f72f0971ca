"""Dagster's assets, sensors and jobs: shells around the pipeline's own functions. A module holds a job and the sensor
that requests it."""

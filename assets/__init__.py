"""Dagster's assets, sensors and jobs: shells around the pipeline's own functions. A job and the sensor that requests it
are one module."""

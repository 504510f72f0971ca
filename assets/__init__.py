"""Dagster's assets, sensors and jobs: shells around the pipeline's own functions."""

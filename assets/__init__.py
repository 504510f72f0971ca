"""What Dagster shows and runs: assets, sensors, jobs. Shells around the pipeline's own functions."""

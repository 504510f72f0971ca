"""The jobs, and the assets that a run computes."""

"""The sensors that tick for tracking, landing and the checks, the wrapper of all ticks, and the metrics of runs."""

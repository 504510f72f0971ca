"""The sensors for tracking, landing and the checks, the wrapper of every sensor's ticks, and the metrics of runs."""

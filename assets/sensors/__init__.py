"""The sensors of both ticks and of the checks, the wrapper of all ticks, and the metrics of runs."""

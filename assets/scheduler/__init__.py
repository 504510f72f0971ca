"""The choice of windows for the next run, the moment when it may begin, and runs that have died."""

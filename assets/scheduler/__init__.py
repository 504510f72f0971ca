"""Decides which windows the next run computes, when it may start, and which runs are dead."""

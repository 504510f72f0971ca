"""The computation of windows on Spark: heartbeats in, rows of every windowed table out."""

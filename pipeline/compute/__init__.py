"""Computes windows on Spark: reads heartbeats, and writes the rows of every windowed table."""

"""A window's way through Spark: heartbeats in, rows of every table by window out."""

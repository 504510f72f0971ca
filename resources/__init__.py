"""Dagster resources for the lake and Spark, and tidemark's versions of Dagster's own processes."""

"""Dagster resources: the lake and Spark, as the settings describe them; and Dagster's own processes, adapted."""

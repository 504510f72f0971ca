"""Dagster resources: the subscriptions, the lake and Spark, as the settings describe them."""

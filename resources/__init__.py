"""Dagster resources: the subscriptions, the lake and Spark, as the settings describe them; and the UI's web server."""

"""The lake: everything that is durable. Create-only objects, the tracking log on top of them, and Delta tables.

Nothing here knows Pub/Sub, Spark or Dagster.
"""

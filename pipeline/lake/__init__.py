"""The lake: all durable state, in objects (most of them create-only) and Delta tables. Independent of Pub/Sub, Spark
and Dagster."""

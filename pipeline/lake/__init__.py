"""The lake: all durable state, in create-only objects and Delta tables. Independent of Pub/Sub, Spark and Dagster."""

"""The lake: all that is durable, in create-only objects and Delta tables. It knows no Pub/Sub, Spark or Dagster."""

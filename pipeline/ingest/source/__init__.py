"""`format("pubsub")`: a PySpark data source whose takes settle into a manifest."""

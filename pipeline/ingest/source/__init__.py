"""`format("pubsub")`: a take that settles into a manifest, as a PySpark data source."""

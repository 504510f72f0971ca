"""`format("pubsub")`: a PySpark data source. A manifest lists the rows that each reader landed."""

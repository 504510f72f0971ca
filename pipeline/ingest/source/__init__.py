"""`format("pubsub")`: a PySpark data source that lists the rows it landed in a manifest."""

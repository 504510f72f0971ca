"""`format("pubsub")`, a PySpark data source. A manifest lists each reader's rows, so a batch can be read again."""

"""An open, explained event-time watermark for Google Pub/Sub, with Dagster and PySpark."""

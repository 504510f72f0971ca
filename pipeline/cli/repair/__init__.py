"""Commands that repair a pipeline, or do the work of the hourly job."""

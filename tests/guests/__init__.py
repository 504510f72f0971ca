"""Two pipelines as guests of somebody else's Dagster project, live, in one instance."""

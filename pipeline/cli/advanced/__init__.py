"""Commands that stand in for a part: for Dagster, for Google's Pub/Sub, and the whole demonstration."""

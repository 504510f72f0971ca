"""tidemark: an event-time watermark for Pub/Sub from two subscriptions, and the tables computed below it.

This package is the product itself, without Dagster. For an overview, see `docs/inside/architecture.md`.
"""

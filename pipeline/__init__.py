"""tidemark: an event-time watermark for Pub/Sub, decided from two subscriptions, and tables of the windows it closes.

This package is the product itself, without Dagster. For an overview, see `docs/inside/architecture.md`.
"""

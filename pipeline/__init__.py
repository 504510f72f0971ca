"""tidemark: an event-time watermark for Pub/Sub from two subscriptions, and tables of the windows that it closes.

This package is the product itself, without Dagster. For an overview, see `docs/inside/architecture.md`.
"""

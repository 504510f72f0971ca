"""tidemark: an event-time watermark for Pub/Sub from two subscriptions, and what is computed below it.

The product itself; it imports no Dagster. `docs/inside/architecture.md` is the map.
"""

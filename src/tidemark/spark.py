"""`format("pubsub")` for your Spark session: the public API.

    import tidemark.spark

    tidemark.spark.register(spark)
    messages = spark.readStream.format("pubsub").options(...).load()

Its names are stable across releases; the packages below `tidemark` may change.
"""

from typing import TYPE_CHECKING, Any

from tidemark.pipeline.ingest.source.registration import register

if TYPE_CHECKING:
    from tidemark.pipeline.ingest.source.pubsub_source import PubSubDataSource

__all__ = ["PubSubDataSource", "register"]


def __getattr__(name: str) -> Any:
    """Import PubSubDataSource on first use, because PySpark before 4.2 lacks its base classes."""
    if name != "PubSubDataSource":
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from tidemark.pipeline.ingest.source.pubsub_source import PubSubDataSource

    return PubSubDataSource

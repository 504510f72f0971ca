"""`format("pubsub")` for a Spark session of one's own: the public API.

    import tidemark.spark

    tidemark.spark.register(spark)
    messages = spark.readStream.format("pubsub").options(...).load()

It keeps its names from release to release; the packages below `tidemark` may change.
"""

from tidemark.pipeline.ingest.pubsub_source import PubSubDataSource
from tidemark.pipeline.ingest.registration import register

__all__ = ["PubSubDataSource", "register"]

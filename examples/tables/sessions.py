"""Sessions: stretches of a stream's heartbeats without a gap of more than two minutes."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

import tidemark


@tidemark.windowed(key=("stream_id", "began_at"), lookback="10m")
def sessions(heartbeats: DataFrame, windows: tidemark.Windows) -> DataFrame:
    """Each stream's sessions in each window. A session that began before its window is followed back for ten
    minutes."""
    stream = Window.partitionBy("window", "stream_id").orderBy("event_time", "message_id")
    pause = F.unix_micros("event_time") - F.lag(F.unix_micros("event_time")).over(stream)
    begins = F.coalesce(pause > 120_000_000, F.lit(True)).cast("int")
    numbered = heartbeats.withColumn("begins", begins).withColumn("session", F.sum("begins").over(stream))
    found = numbered.groupBy("window", "window_start", "stream_id", "session").agg(
        F.min("event_time").alias("began_at"), F.max("event_time").alias("last_at"), F.count("*").alias("heartbeats")
    )
    return found.where("last_at >= window_start").select("window", "stream_id", "began_at", "last_at", "heartbeats")

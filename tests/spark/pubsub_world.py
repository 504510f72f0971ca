"""A topic with messages, and ways to read its base subscription with Spark."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import DataFrame, SparkSession

from tests.fixtures_emulator import QUICK_LEASE
from tests.ingest.fakes import CONTRACT
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings_sections import PubSubSettings


@dataclass
class PubSubWorld:
    """One topic, and the folder that everything is in."""

    subscriber: SubscriberClient
    publisher: PublisherClient
    settings: PubSubSettings
    folder: Path
    published: list[str] = field(default_factory=list)
    rejected: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        provision(self.subscriber, self.publisher, self.settings, CONTRACT, SystemClock(), lease=QUICK_LEASE)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    def options(self, **more: str) -> dict[str, str]:
        return {
            "project": self.settings.project,
            "subscription": self.settings.base_subscription,
            "lake": f"file://{self.lake}",
            "emulatorHost": self.settings.emulator_host or "",
            "fields": '{"load": "number"}',
            **more,
        }

    def publish(self, count: int, *, broken: int = 0) -> None:
        """Messages a millisecond apart, the newest of this moment; then some without a readable event time."""
        newest_ms = to_us(SystemClock().now()) // 1000
        times = [str(newest_ms - number) for number in range(count)] + ["yesterday"] * broken
        messages = [
            {"data": b'{"load": 1.5}', "attributes": {"stream_id": f"s{number % 7}", "event_time": written}}
            for number, written in enumerate(times)
        ]
        ids: list[str] = []
        for start in range(0, len(messages), 1000):
            answer = self.publisher.publish(topic=self.settings.topic_path, messages=messages[start : start + 1000])
            ids += answer.message_ids
        self.published += ids[:count]
        self.rejected += ids[count:]

    def is_quiet(self, *, is_tracked: bool = False) -> bool:
        """Whether everything that was published is acknowledged on base, and on tracking too if that `is_tracked`."""
        time.sleep(1.1)  # a reading tells a message from nothing once that is a second old
        paths = [self.settings.base_path, *([self.settings.tracking_path] if is_tracked else [])]
        backlogs = [SnapshotBacklog(self.subscriber, path, ReadingTimes(SystemClock())) for path in paths]
        return not any(backlog.read().names_a_message for backlog in backlogs)


@dataclass
class Batches:
    """What a stream brought, by micro-batch."""

    rows: dict[int, list[Any]] = field(default_factory=dict)

    def take(self, frame: DataFrame, number: int) -> None:
        self.rows[number] = frame.collect()

    @property
    def ids(self) -> list[str]:
        return sorted(row["message_id"] for rows in self.rows.values() for row in rows)


def read_available(
    spark: SparkSession, options: dict[str, str], checkpoint: Path, take: Callable[[DataFrame, int], None], source: str
) -> dict[str, Any]:
    """Read a stream until it is caught up; the last progress."""
    query = (
        spark.readStream.format(source)
        .options(**options)
        .load()
        .writeStream.foreachBatch(take)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return dict(query.lastProgress)

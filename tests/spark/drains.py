"""Drains of a `PubSubWorld`, and readers that are killed on the way."""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.dying_source import DyingObjects, maybe_die
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.ingest.drain import Drain, Reader, Round, Side, Split, read_split
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake import layout
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.store.disk import DiskObjects
from tidemark.pipeline.lake.store.objects import ObjectStore
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import DrainSettings, LakeSettings, PubSubSettings


def settings_of(pubsub: PubSubSettings, lake: str, drain: DrainSettings) -> Settings:
    """Four readers unless the test says otherwise."""
    fields = {"load": FieldKind.NUMBER}
    return Settings(
        pubsub=pubsub, message=MessageSettings(fields=fields), lake=LakeSettings(uri=f"file:{lake}"), drain=drain
    )


def small_drain(**more: object) -> DrainSettings:
    """Rounds and batches so small that a test has several of them."""
    return DrainSettings.model_validate(
        {"stop_below": "2s", "round_seconds": "5s", "max_seconds": "180s", "batch_messages": 1000, **more}
    )


def drain_of(spark: SparkSession, settings: Settings, run: str, read: Reader = read_split) -> Drain:
    """A drain of a lake and subscriptions."""
    clock, client = SystemClock(), subscriber_client(settings.pubsub.emulator_host)
    paths = {Side.TRACKING: settings.pubsub.tracking_path, Side.BASE: settings.pubsub.base_path}
    return Drain(
        spark=spark,
        settings=settings,
        run=run,
        log=Lake(settings.lake, settings.message.kinds, clock).tracking_log(),
        backlogs={side: SnapshotBacklog(client, path, clock, timedelta(seconds=10)) for side, path in paths.items()},
        clock=clock,
        read=read,
    )


def drained(spark: SparkSession, settings: Settings, run: str, read: Reader = read_split) -> tuple[Drain, list[Round]]:
    """All of a drain."""
    drain = drain_of(spark, settings, run, read)
    return drain, list(drain.rounds())


def read_and_die(split: Split, readers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the readers run, killed once at each step that is ordained for the lake."""

    def dying(place: LakeSettings) -> ObjectStore:
        assert place.folder is not None
        return DyingObjects(DiskObjects(place.folder), place.folder)

    append, deaths_of = Heartbeats.append, split.settings.lake.folder
    assert deaths_of is not None

    def dying_append(table: Heartbeats, rows: pa.Table) -> None:
        maybe_die(deaths_of, "before append heartbeats")
        append(table, rows)
        maybe_die(deaths_of, "after append heartbeats")

    with patch.object(layout, "open_objects", dying), patch.object(Heartbeats, "append", dying_append):
        yield from read_split(split, readers, Kept())

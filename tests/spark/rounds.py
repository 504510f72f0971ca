"""Continuous landing of a `PubSubWorld`."""

import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.spark.dying_source import maybe_die
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.ingest.continuous import ContinuousLanding, RoundDone, Share, read_share
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import LakeSettings, LandingSettings, PubSubSettings


def settings_of(pubsub: PubSubSettings, lake: str, **landing: object) -> Settings:
    """Two readers of base and one of tracking, in short rounds, unless the test says otherwise."""
    chosen = LandingSettings.model_validate({"mode": "continuous", "round": "2s", **landing})
    message = MessageSettings(fields={"load": FieldKind.NUMBER})
    return Settings(pubsub=pubsub, message=message, lake=LakeSettings(uri=f"file:{lake}"), landing=chosen)


def landing_of(spark: SparkSession, settings: Settings, run: str, **parts: Any) -> ContinuousLanding:
    """A run over a lake and subscriptions; `parts` replace its own."""
    clock, pubsub = SystemClock(), settings.pubsub
    client = subscriber_client(pubsub.emulator_host)
    lake = Lake(settings.lake, settings.message.kinds, clock)
    made = {
        "spark": spark,
        "settings": settings,
        "run": run,
        "log": lake.tracking_log(),
        "heartbeats": lake.heartbeats(),
        "quarantine": lake.quarantine(),
        "base": PubSubSubscription(client, pubsub.base_path, clock, pubsub),
        "tracking": PubSubSubscription(client, pubsub.tracking_path, clock, pubsub),
        "tracking_backlog": SnapshotBacklog(client, pubsub.tracking_path, clock, timedelta(seconds=10)),
        "clock": clock,
        "newest_watermark": Lake(settings.lake, settings.message.kinds, clock).tracking_log().newest_watermark,
    }
    return ContinuousLanding(**{**made, **parts})


def landed(spark: SparkSession, settings: Settings, run: str, seconds: float, **parts: Any) -> list[RoundDone]:
    """All rounds of a run."""
    return list(landing_of(spark, settings, run, **parts).rounds(timedelta(seconds=seconds)))


def read_and_die(share: Share, readers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the readers run, killed once at each step that is ordained for the lake."""
    write, deaths_of = NewFiles.write, share.settings.lake.folder
    assert deaths_of is not None

    def dying_write(files: NewFiles, rows: pa.Table) -> list[NewFile]:
        maybe_die(deaths_of, "before write")
        written = write(files, rows)
        maybe_die(deaths_of, "after write")
        return written

    with patch.object(NewFiles, "write", dying_write):
        yield from read_share(share, readers, Kept())
        maybe_die(deaths_of, "before the end")


def read_for_ever(share: Share, readers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Readers that take what there is and do not come back."""
    yield from read_share(share, readers, Kept())
    time.sleep(60)

"""Rounds of a `PubSubWorld` by readers on Spark, and readers that are killed on the way, once at each step that a test
names."""

import os
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.pubsub.builders import subscription_of
from tests.spark.pubsub_world import PubSubWorld
from tidemark.pipeline.clock import SystemClock
from tidemark.pipeline.contract.heartbeat import FieldKind
from tidemark.pipeline.ingest import rounds as module
from tidemark.pipeline.ingest.outcome import Side
from tidemark.pipeline.ingest.rounds import RoundDone, Rounds, RunPlan, Share, read_on_spark, read_share
from tidemark.pipeline.ingest.settle import Settling, judge_of, new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import track
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.lake.tables.table import LakeTable
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import IngestSettings, LakeSettings, PubSubSettings
from tidemark.pipeline.spark.executors import require_able
from tidemark.pipeline.watermark.state import Snapshot

CLOCK = SystemClock()
CLIENTS = Kept()
Read = Callable[[Share, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

NOTHING = Budget(max_messages=0, max_bytes=0, max_time=timedelta(seconds=1), batch_messages=1)

HANDED_OVER = timedelta(seconds=6)
"""How much longer than a round dying readers lease what they have taken: the product's two minutes are long to wait."""


COMES_AGAIN_WITHIN = timedelta(minutes=4)
"""What a killed process had leased comes again after its leases, and so does what its open pulls got after that, again
and again: usually within a minute."""


SHORT = RunPlan(round=timedelta(seconds=2), stop_below=timedelta(seconds=2))


def settings_of(pubsub: PubSubSettings, lake: str, readers: int = 3) -> Settings:
    """Two readers of base and one of tracking, unless the test says otherwise."""
    return Settings(
        pubsub=pubsub,
        message=MessageSettings(fields={"load": FieldKind.NUMBER}),
        lake=LakeSettings(uri=f"file:{lake}"),
        ingest=IngestSettings(readers=readers),
    )


@contextmanager
def a_run(
    spark: SparkSession,
    settings: Settings,
    *,
    read: Read = read_share,
    interrupt: Callable[[], object] = lambda: None,
    plan: RunPlan = SHORT,
) -> Iterator[Rounds]:
    """A run over a lake and subscriptions, as the job has it. Raises ExecutorsUnable before anything is pulled."""
    pubsub = settings.pubsub
    client = CLIENTS.get(pubsub.server, lambda: subscriber_client(*pubsub.server))
    paths = {Side.TRACKING: pubsub.tracking_path, Side.BASE: pubsub.base_path}
    lake = lake_of(settings)
    require_able(spark)
    with (
        patch.object(module, "read_share", read),
        closing(PubSubSubscription(client, paths[Side.TRACKING], CLOCK, pubsub)) as tracking,
        closing(PubSubSubscription(client, paths[Side.BASE], CLOCK, pubsub)) as base,
    ):
        both = {Side.TRACKING: tracking, Side.BASE: base}
        yield Rounds(
            settings=settings,
            run=uuid.uuid4().hex,
            readers=settings.ingest.readers,
            settling=Settling(lake.tracking_log(), CLOCK, both, new_files(lake, CLOCK)),
            read=partial(read_on_spark, spark, interrupt),
            newest=lake_of(settings).tracking_log().newest,
            backlogs={side: SnapshotBacklog(client, path, ReadingTimes(CLOCK)) for side, path in paths.items()},
            plan=plan,
        )


def done_until(
    spark: SparkSession, settings: Settings, is_done: Callable[[], bool], read: Read = read_share
) -> list[RoundDone]:
    """The rounds of a run that ends once that is so. Fails if it is not within COMES_AGAIN_WITHIN."""
    done = []
    with a_run(spark, settings, read=read) as rounds:
        for one in rounds.rounds(COMES_AGAIN_WITHIN, until_young=False):
            done.append(one)
            if is_done():
                return done
    pytest.fail(f"not over after {COMES_AGAIN_WITHIN} and {len(done)} rounds")


def lake_of(settings: Settings) -> Lake:
    """The lake as somebody else sees it."""
    return Lake(settings.lake, settings.message.kinds, CLOCK)


def decide(world: PubSubWorld, settings: Settings, budget: Budget = NOTHING) -> None:
    """A tick that decides. Without a budget it pulls nothing, as the sensor's ticks do while readers are at work."""
    pubsub = world.settings
    paths = {Side.TRACKING: pubsub.tracking_path, Side.BASE: pubsub.base_path}
    tracking = subscription_of(world.subscriber, pubsub, pubsub.tracking_path)
    track(
        Settling(lake_of(settings).tracking_log(), CLOCK, {Side.TRACKING: tracking}),
        {side: SnapshotBacklog(world.subscriber, path, ReadingTimes(CLOCK)) for side, path in paths.items()},
        judge_of(settings, lake_of(settings)),
        settings.policy,
        budget,
    )


def landed(settings: Settings) -> list[str]:
    """The ids in `heartbeats`; a copy counts."""
    return _message_ids(lake_of(settings).heartbeats())


def quarantined(settings: Settings) -> list[str]:
    """The ids in `quarantine`; a copy counts."""
    return _message_ids(lake_of(settings).quarantine())


def _message_ids(table: LakeTable) -> list[str]:
    current = table.in_place()
    return [] if current is None else current.to_pyarrow_table(columns=["message_id"])["message_id"].to_pylist()


def tracked(settings: Settings) -> int:
    """How many messages the entries of the log count."""
    log = lake_of(settings).tracking_log()
    entries = [log.entry(number) for number in log.numbers()]
    return sum(int(entry.histogram.count.sum()) for entry in entries if isinstance(entry, Snapshot))


def read_and_die(share: Share, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the readers run, killed once at each step that is ordained for the lake."""
    write, deaths_of, given = NewFiles.write, share.settings.lake.folder, list(numbers)
    sides = {share.sides[number] for batch in given for number in batch["id"].to_pylist()}

    def dying_write(files: NewFiles, rows: pa.Table) -> list[NewFile]:
        maybe_die(deaths_of, "before write")
        written = write(files, rows)
        maybe_die(deaths_of, "after write")
        return written

    with patch.object(NewFiles, "write", dying_write):
        yield from read_handing_over(share, given)
        for side in sides:
            maybe_die(deaths_of, f"before {side} ends")


def read_handing_over(share: Share, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What readers run if they or their driver may die."""
    with patch.object(module, "HANDED_OVER", HANDED_OVER):
        yield from read_share(share, numbers)


def read_for_ever(share: Share, numbers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Readers that take what there is and do not come back."""
    yield from read_handing_over(share, numbers)
    time.sleep(60)


def deaths(lake: Path) -> Path:
    """The folder with a file for each death that is to come; one that came is called `… done`."""
    return lake.with_name(f"{lake.name}-deaths")


def ordain(lake: Path, *steps: str) -> None:
    deaths(lake).mkdir()
    for step in steps:
        (deaths(lake) / step).touch()


def maybe_die(lake: Path, step: str) -> None:
    """Be killed here, if it is ordained and has not come yet."""
    try:
        (deaths(lake) / step).rename(deaths(lake) / f"{step} done")  # one of any number of workers is first
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGKILL)

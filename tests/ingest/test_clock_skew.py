"""Ticks on a real emulator by a machine whose clock disagrees with Pub/Sub's."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.ingest.fakes import CONTRACT
from tests.pubsub.builders import subscription_of
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import Tracked, land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy

BUDGET = Budget(max_messages=2000, max_bytes=1 << 24, max_time=timedelta(seconds=5), batch_messages=500)
POLICY = Policy(band=timedelta(seconds=1))


class Apart(SystemClock):
    """The machine's clock, off by so much."""

    def __init__(self, by: timedelta) -> None:
        self.by = by

    def now(self) -> datetime:
        return datetime.now(UTC) + self.by


def ticks(
    apart: Apart, subscriber: SubscriberClient, publisher: PublisherClient, settings: PubSubSettings, folder: Path
) -> list[Tracked]:
    """Four live ticks; the clock is off from the second on."""
    by, apart.by = apart.by, timedelta(0)
    provision(subscriber, publisher, settings, CONTRACT, SystemClock())
    lake, reader = Lake(LakeSettings(uri=f"file:{folder}"), CONTRACT.fields, SystemClock()), HeartbeatReader(CONTRACT)
    paths = settings.tracking_path, settings.base_path
    tracking, base = (subscription_of(subscriber, settings, path) for path in paths)
    backlogs = [SnapshotBacklog(subscriber, path, apart, timedelta(seconds=10)) for path in paths]
    (heartbeats, quarantine), log, found = new_files(lake, SystemClock()), lake.tracking_log(), []
    for _ in range(5):
        at_ms = str(to_us(datetime.now(UTC)) // 1000)
        message = {"data": b'{"load": 1}', "attributes": {"stream_id": "s", "event_time": at_ms}}
        publisher.publish(topic=settings.topic_path, messages=[message])
        time.sleep(0.6)
        land(
            base,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=lake.tracking_log(),
            reader=reader,
            budget=BUDGET,
            clock=SystemClock(),
        )
        found.append(
            track(
                tracking,
                tracking_backlog=backlogs[0],
                base_backlog=backlogs[1],
                log=log,
                reader=reader,
                policy=POLICY,
                budget=BUDGET,
                clock=apart,
            )
        )
        apart.by = by
    return found


def test_a_clock_that_is_15_s_ahead_is_named_as_what_holds_the_watermark(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> None:
    found = ticks(Apart(timedelta(seconds=15)), subscriber, publisher, fresh_pubsub, tmp_path)
    assert [each.decision.reason for each in found[2:]] == [Reason.HELD_CLOCK_SKEW] * 3

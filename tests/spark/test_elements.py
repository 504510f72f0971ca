"""Messages that hold several readings, from the emulator to rows of heartbeat_diffs."""

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
from google.pubsub_v1 import PublisherClient, SubscriberClient
from pyspark.sql import SparkSession

from tests.pubsub.builders import subscription_of
from tidemark.pipeline.clock import SystemClock, from_us, to_us
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.micro_batch import MicroBatch, compute_windows
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.quality.lost import audit
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.windows import Windowing

MINUTE = timedelta(minutes=1)
TICKS_AT_MOST = 60
BUDGET = Budget(max_messages=100, max_bytes=1 << 24, max_time=timedelta(seconds=5), batch_messages=100)
POLICY = Policy(band=timedelta(seconds=2), idle_timeout=timedelta(seconds=1), max_idle_lag=timedelta(seconds=1))
MESSAGE = MessageSettings.model_validate(
    {
        "each": "payload:readings[]",
        "event_time": "each:ts",
        "stream_id": ["payload:device", "each:channel"],
        "fields": {"load": "number"},
    }
)


def test_each_reading_of_each_message_is_one_row_of_heartbeat_diffs(
    spark: SparkSession,
    subscriber: SubscriberClient,
    publisher: PublisherClient,
    fresh_pubsub: PubSubSettings,
    tmp_path: Path,
) -> None:
    clock = SystemClock()
    minute_us = 60_000_000
    start_us = to_us(clock.now()) // minute_us * minute_us - 4 * minute_us
    contract = MESSAGE.contract_from(from_us(start_us - 60 * minute_us))
    provision(subscriber, publisher, fresh_pubsub, contract, clock)

    def readings(channel: str, first: int) -> list[dict[str, Any]]:
        return [
            {"ts": start_us // 1000 + 10_000 * number, "channel": channel, "load": number * number}
            for number in range(first, first + 6)
        ]

    published = [[*readings("a", 0), *readings("b", 0)], [*readings("a", 6), {"channel": "a"}], readings("b", 6)]
    messages = [
        {"data": orjson.dumps({"device": "d", "readings": held}), "attributes": {"heartbeat_id": f"p{number}"}}
        for number, held in enumerate(published)
    ]
    publisher.publish(topic=fresh_pubsub.topic_path, messages=[*messages, messages[0]])  # the first was retried

    lake = Lake(LakeSettings(uri=f"file:{tmp_path}"), contract.fields, clock)
    reader, log = HeartbeatReader(contract), lake.tracking_log()
    paths = fresh_pubsub.tracking_path, fresh_pubsub.base_path
    tracking, base = (subscription_of(subscriber, fresh_pubsub, path) for path in paths)
    backlogs = [SnapshotBacklog(subscriber, path, clock, timedelta(seconds=10)) for path in paths]
    end = from_us(start_us + 2 * minute_us)
    watermark = None
    heartbeats, quarantine = new_files(lake, clock)
    for _ in range(TICKS_AT_MOST):
        land(
            base,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=lake.tracking_log(),
            reader=reader,
            budget=BUDGET,
            clock=clock,
        )
        watermark = track(
            tracking,
            tracking_backlog=backlogs[0],
            base_backlog=backlogs[1],
            log=log,
            reader=reader,
            policy=POLICY,
            budget=BUDGET,
            clock=clock,
        ).decision.watermark
        if watermark is not None and watermark >= end:
            break
        time.sleep(0.3)
    assert watermark is not None
    batch = MicroBatch(
        spark,
        heartbeats=lake.heartbeats(),
        diffs=lake.diffs(),
        status=lake.stream_status(),
        plan=DiffPlan(contract.fields, timedelta(minutes=10), timedelta(seconds=10), MINUTE),
        watermark=watermark,
        run="run",
        clock=clock,
        refuse_expired=lambda _: None,
    )
    windows = Windowing(MINUTE, contract.first_event_time).between(from_us(start_us), end)
    assert list(compute_windows(batch, list(windows)).rows.values()) == [12, 12]
    table = lake.diffs().table.current()
    assert table is not None
    rows = table.to_pyarrow_table(columns=["stream_id", "event_time", "load", "load_delta"]).to_pylist()
    found = sorted(tuple(row.values()) for row in rows)
    assert found == [
        (f"d/{channel}", from_us(start_us + 10_000_000 * n), n * n, None if n == 0 else 2 * n - 1)
        for channel in "ab"
        for n in range(12)
    ]
    (rejected,) = lake.quarantine().reasons().waiting.items()
    assert rejected == ("NO_EVENT_TIME", 1)
    losses = audit(lake.tracking_log(), lake.heartbeats(), lake.quarantine())
    assert (losses.tracked - losses.landed, losses.at_least) == (0, 0)

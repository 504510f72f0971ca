"""Both ticks on the official emulator, with a lake in a folder."""

import time
from datetime import timedelta
from pathlib import Path

from google.pubsub_v1 import PublisherClient, SubscriberClient

from tests.ingest.fakes import CONTRACT
from tests.pubsub.builders import subscription_of
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.ingest.outcome import Ingested
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.backlog import SnapshotBacklog
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings_sections import LakeSettings, PubSubSettings
from tidemark.pipeline.watermark.decision import Reason
from tidemark.pipeline.watermark.policy import Policy

MESSAGES = 500
TICKS_AT_MOST = 60
BUDGET = Budget(max_messages=2000, max_bytes=1 << 24, max_time=timedelta(seconds=5), batch_messages=150)
POLICY = Policy(band=timedelta(seconds=2), idle_timeout=timedelta(seconds=3), max_idle_lag=timedelta(seconds=1))


def test_a_backlog_is_tracked_and_landed_whole_and_the_watermark_passes_it(
    subscriber: SubscriberClient, publisher: PublisherClient, fresh_pubsub: PubSubSettings, tmp_path: Path
) -> None:
    clock = SystemClock()
    provision(subscriber, publisher, fresh_pubsub, CONTRACT, clock)
    newest = clock.now() - timedelta(seconds=1)
    times_ms = [to_us(newest) // 1000 - 20 * number for number in range(MESSAGES)]
    messages = [
        {"data": b'{"load": 1}', "attributes": {"stream_id": f"s{number % 7}", "event_time": str(ms)}}
        for number, ms in enumerate(times_ms)
    ]
    messages += [{"data": b"{}", "attributes": {"stream_id": "s", "event_time": "yesterday"}}] * 3
    publisher.publish(topic=fresh_pubsub.topic_path, messages=messages)

    lake = Lake(LakeSettings(uri=f"file:{tmp_path}"), CONTRACT.fields, clock)
    reader, log = HeartbeatReader(CONTRACT), lake.tracking_log()
    tracking, base = (
        subscription_of(subscriber, fresh_pubsub, path) for path in (fresh_pubsub.tracking_path, fresh_pubsub.base_path)
    )
    tracking_backlog, base_backlog = (
        SnapshotBacklog(subscriber, path, clock, timedelta(seconds=10))
        for path in (fresh_pubsub.tracking_path, fresh_pubsub.base_path)
    )
    heartbeats, quarantine = new_files(lake, clock)
    marks, landed, tracked = [], Ingested(), 0
    for _ in range(TICKS_AT_MOST):
        outcome = track(
            tracking,
            tracking_backlog=tracking_backlog,
            base_backlog=base_backlog,
            log=log,
            reader=reader,
            policy=POLICY,
            budget=BUDGET,
            clock=clock,
        )
        tracked += outcome.persisted.messages
        marks.append(outcome.decision.watermark)
        landed += land(
            base,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=lake.tracking_log(),
            reader=reader,
            budget=BUDGET,
            clock=clock,
        )
        if marks[-1] is not None and marks[-1] > newest:
            break
        time.sleep(0.3)

    known = [mark for mark in marks if mark is not None]
    assert known == sorted(known)
    assert known[-1] > newest
    assert outcome.decision.reason is Reason.IDLE_ADVANCED
    assert (landed.heartbeats, landed.rejected.total(), landed.late) == (MESSAGES, 3, 0)
    assert (tracked, landed.acknowledged.failed) == (MESSAGES + 3, 0)
    table = lake.heartbeats().current()
    assert table is not None
    rows = table.to_pyarrow_table(columns=["event_time", "message_id"])
    assert sorted(to_us(moment) // 1000 for moment in rows["event_time"].to_pylist()) == sorted(times_ms)
    assert len(set(rows["message_id"].to_pylist())) == MESSAGES
    assert lake.quarantine().reasons().waiting == {"UNREADABLE_EVENT_TIME": 3}
    assert lake.tracking_log().catch_up() == log.catch_up()  # restored from the log alone
    assert (tracking_backlog.sweep(), base_backlog.sweep()) == (0, 0)

"""The real client code and both ticks against a server that fails: what no other server does on request."""

import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.builders import ROUGH
from tests.fixtures_emulator import QUICK_LEASE, unique_pubsub
from tests.ingest.fakes import CONTRACT
from tests.pubsub.builders import subscription_of
from tidemark.local.emulator.faults import Faults
from tidemark.local.emulator.model import PubSubModel
from tidemark.local.emulator.server import served
from tidemark.pipeline.clock import Clock, SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import PubSubUnreachable
from tidemark.pipeline.ingest.outcome import Ingested, Side
from tidemark.pipeline.ingest.settle import Settling, new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import Tracked, land, track
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.pubsub.backlog import ReadingTimes, SnapshotBacklog
from tidemark.pipeline.pubsub.connection import publisher_client, subscriber_client
from tidemark.pipeline.pubsub.provision import provision
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.watermark.policy import Policy

SPEED = 10
BUDGET = Budget(max_messages=500, max_bytes=1 << 24, max_time=timedelta(seconds=5), batch_messages=100)
BAND = timedelta(seconds=5)


class HurriedClock(SystemClock):
    """Wall time passes ten times as fast, so that leases end soon; budgets and waits are as they are."""

    def __init__(self) -> None:
        self._began = super().now()

    def now(self) -> datetime:
        return self._began + SPEED * (super().now() - self._began)


class Ticks:
    """Both ticks of a pipeline on a server whose faults a test sets, over a lake in a folder, and what they did."""

    def __init__(self, address: str, model: PubSubModel, clock: Clock, folder: Path) -> None:
        self.model, self.clock, self.settings = model, clock, (settings := unique_pubsub(address))
        self.publisher, self.subscriber = publisher_client(address), subscriber_client(address)
        provision(self.subscriber, self.publisher, settings, CONTRACT, clock, lease=QUICK_LEASE)
        self.lake = Lake(LakeSettings(uri=f"file:{folder}"), CONTRACT.fields, clock)
        self.log, self.reader = self.lake.tracking_log(), HeartbeatReader(CONTRACT)
        self.base, self.tracking = (
            subscription_of(self.subscriber, settings, path, clock, pull_wait=timedelta(seconds=0.15))
            for path in (settings.base_path, settings.tracking_path)
        )
        self.marks: list[datetime] = []
        self.sent: dict[str, int] = {}  # the event time in milliseconds, by message id

    def publish(self, count: int, rng: random.Random) -> None:
        """Heartbeats whose event times are out of order by less than the band."""
        now = self.clock.now()
        times = [to_us(now - rng.random() * BAND / 2) // 1000 for _ in range(count)]
        messages = [
            {"data": b'{"load": 1}', "attributes": {"stream_id": f"s{number % 7}", "event_time": str(ms)}}
            for number, ms in enumerate(times)
        ]
        answer = self.publisher.publish(topic=self.settings.topic_path, messages=messages)
        self.sent.update(zip(answer.message_ids, times, strict=True))

    def track(self) -> Tracked:
        tracked = track(
            Settling(self.log, self.clock, {Side.TRACKING: self.tracking}),
            {
                Side.TRACKING: self.backlog(self.settings.tracking_path),
                Side.BASE: self.backlog(self.settings.base_path),
            },
            self.reader,
            Policy(band=BAND, near_real_time=timedelta(seconds=20)),
            BUDGET,
        )
        if tracked.decision.watermark is not None:
            self.marks.append(tracked.decision.watermark)
        return tracked

    def land(self) -> Ingested:
        tables = new_files(self.lake, self.clock)
        return land(Settling(self.log, self.clock, {Side.BASE: self.base}, tables), self.reader, BUDGET)

    def backlog(self, path: str) -> SnapshotBacklog:
        return SnapshotBacklog(self.subscriber, path, ReadingTimes(self.clock))

    def outstanding(self) -> set[str]:
        """Ids of what the server holds as unacknowledged on base."""
        return {message.message_id for message in self.model.unacknowledged(self.settings.base_path)}

    def rows(self) -> list[dict[str, Any]]:
        table = self.lake.heartbeats().in_place()
        return [] if table is None else table.to_pyarrow_table().sort_by("landed_at").to_pylist()


@pytest.fixture
def ticks(tmp_path: Path) -> Iterator[Ticks]:
    clock, model = HurriedClock(), PubSubModel(rng=random.Random(1))
    with served(model, clock=clock) as address:
        yield (ticks := Ticks(address, model, clock, tmp_path))
        for client in (ticks.publisher, ticks.subscriber):
            client.transport.close()


def test_both_ticks_go_on_under_all_faults_and_nothing_is_lost_nor_late(ticks: Ticks) -> None:
    rng = random.Random(1)
    ticks.model.faults = ROUGH
    errors = 0
    for _ in range(15):
        ticks.model.faults = Faults()  # the source's publisher would repeat itself
        ticks.publish(20, rng)
        ticks.model.faults = ROUGH
        for tick in (ticks.track, ticks.land):
            try:
                tick()
            except PubSubUnreachable:
                errors += 1
        landed = {row["message_id"] for row in ticks.rows()}
        assert ticks.sent.keys() <= landed | ticks.outstanding()
    ticks.model.faults = Faults()
    recovered = ticks.clock.now()
    for _ in range(40):
        ticks.publish(5, rng)
        ticks.track()
        ticks.land()
        if ticks.marks and ticks.marks[-1] > recovered and not ticks.outstanding():
            break
    assert errors > 0
    assert ticks.marks == sorted(ticks.marks)
    assert ticks.marks[-1] > recovered
    first = {row["message_id"]: row for row in reversed(ticks.rows())}  # of each, its first landing
    assert first.keys() == ticks.sent.keys()
    assert {message_id: to_us(row["event_time"]) // 1000 for message_id, row in first.items()} == ticks.sent
    assert [row for row in first.values() if row["late"]] == []
    assert len(ticks.rows()) > len(first)  # some came again
    assert ticks.lake.tracking_log().catch_up() == ticks.log.catch_up()

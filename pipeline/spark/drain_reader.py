"""One reader of a drain, on an executor. Every reader is given the same, a whole subscription: Pub/Sub has no
partitions, and shares out its messages itself (the static split of FLINK-20625).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from itertools import count
from typing import Any

import pyarrow as pa

from pipeline.clock import SystemClock, to_us
from pipeline.heartbeat import HeartbeatReader, MessageContract
from pipeline.lake.layout import Lake
from pipeline.lake.store.address import open_objects
from pipeline.lake.tables.landings import LandedBatches
from pipeline.pubsub.connection import subscriber_client
from pipeline.pubsub.subscription import PubSubSubscription
from pipeline.settings import LakeSettings, PubSubSettings
from pipeline.ticks.budget import SMALL_SHARE, Budget
from pipeline.ticks.landing import Landed, Tables
from pipeline.ticks.named_landing import land_named
from pipeline.ticks.tracking import Persisted, persist

NAMES = pa.map_(pa.string(), pa.int64())
REPORTED = pa.schema(
    [
        pa.field("reader", pa.int64()),
        pa.field("began_us", pa.int64()),
        pa.field("ended_us", pa.int64()),
        pa.field("is_last", pa.bool_()),
        pa.field("heartbeats", pa.int64()),
        pa.field("rejected", NAMES),
        pa.field("late", pa.int64()),
        pa.field("of_another_kind", NAMES),
        pa.field("oldest_event_us", pa.int64()),
        pa.field("newest_event_us", pa.int64()),
        pa.field("tracked", pa.int64()),
        pa.field("snapshots", pa.int64()),
        pa.field("acknowledged", pa.int64()),
        pa.field("acknowledgements_failed", pa.int64()),
    ]
)
"""One row a batch. Its reader began at `began_us`, and it was done at `ended_us`, by the executor's clock. `is_last`:
hardly anything was left to pull after it."""


class Side(StrEnum):
    """Which of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Split:
    """What each reader of a round is given: the same, and all that travels to the executors.

    `run` names the drain, and no other ever. `budget` is of one batch; readers pull batches for `time`.
    """

    side: Side
    run: str
    number: int
    pubsub: PubSubSettings
    lake: LakeSettings
    contract: MessageContract
    budget: Budget
    time: timedelta

    @property
    def subscription(self) -> str:
        """The subscription's full resource name."""
        return self.pubsub.tracking_path if self.side is Side.TRACKING else self.pubsub.base_path


def read_split(split: Split, readers: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What Spark runs: pull, make durable, acknowledge, report, until the time is over or hardly anything is left.

    A row of `REPORTED` for each batch of each reader whose number is in the column `id`. Raises PubSubError or
    LakeError, with nothing acknowledged that is not durable; tried again, a reader is told what it had landed.
    """
    opened = _opened(split)
    for numbers in readers:
        for reader in numbers["id"].to_pylist():
            for row in opened.read(split, reader):
                yield pa.RecordBatch.from_pylist([row], REPORTED)


class _Opened:
    """What a worker process keeps open from one round of a run to the next: the log's live fold above all."""

    def __init__(self, split: Split) -> None:
        self.run = split.run
        self._clock = SystemClock()
        self._client = subscriber_client(split.pubsub.emulator_host)
        self._objects = open_objects(split.lake)
        lake = Lake(split.lake, split.contract.fields, self._clock)
        self._log = lake.tracking_log()
        self._tables = Tables(lake.heartbeats(), lake.quarantine())
        self._reader = HeartbeatReader(split.contract)

    def close(self) -> None:
        self._client.transport.close()

    def read(self, split: Split, reader: int) -> Iterator[dict[str, Any]]:
        """Batch after batch, until the time is over or hardly anything is left."""
        began, until = self._clock.now(), self._clock.monotonic() + split.time.total_seconds()
        self._log.catch_up()  # before anything is pulled: with a damaged log nothing could be judged
        for number in count():
            left = until - self._clock.monotonic()
            if left <= 0:
                return
            budget = replace(split.budget, max_time=timedelta(seconds=left))
            landed, persisted = Landed(), Persisted()
            if split.side is Side.TRACKING:
                persisted = self._track(split, budget)
            else:
                landed = self._land(split, reader, number, budget)
            is_small = landed.messages + persisted.messages < budget.batch_messages * SMALL_SHARE
            is_last = is_small and self._clock.monotonic() < until
            times = {"began_us": to_us(began), "ended_us": to_us(self._clock.now())}
            yield {"reader": reader, **times, **_reported(is_last, landed, persisted)}
            if is_last:
                return

    def _track(self, split: Split, budget: Budget) -> Persisted:
        return persist(self._subscription(split), log=self._log, reader=self._reader, budget=budget, clock=self._clock)

    def _land(self, split: Split, reader: int, number: int, budget: Budget) -> Landed:
        """A batch under its name: `landings/<run>/<round>-<reader>-<batch>`."""
        rounds = LandedBatches(self._objects, split.run)
        landing = land_named(
            f"{rounds.name(split.number, reader)}-{number:06d}",
            self._subscription(split),
            objects=self._objects,
            keeper=self._tables,
            watermark=lambda: self._log.newest_watermark(),
            reader=self._reader,
            budget=budget,
            clock=self._clock,
            is_over=lambda: rounds.is_over(split.number),
        )
        return landing.landed

    def _subscription(self, split: Split) -> PubSubSubscription:
        return PubSubSubscription(
            self._client,
            split.subscription,
            self._clock,
            ack_deadline=split.pubsub.ack_deadline,
            pull_wait=split.pubsub.pull_wait,
            call_timeout=split.pubsub.call_timeout,
        )


_kept: list[_Opened] = []
"""Of this worker process, which has one task at a time: what is open for the newest run, if anything."""


def _opened(split: Split) -> _Opened:
    if not any(opened.run == split.run for opened in _kept):
        while _kept:
            _kept.pop().close()
        _kept.append(_Opened(split))
    return _kept[0]


def _reported(is_last: bool, landed: Landed, persisted: Persisted) -> dict[str, Any]:
    acknowledged = landed.acknowledged + persisted.acknowledged
    oldest, newest = landed.oldest_event_time, landed.newest_event_time
    return {
        "is_last": is_last,
        "heartbeats": landed.heartbeats,
        "rejected": [(reason.value, count) for reason, count in landed.rejected.items()],
        "late": landed.late,
        "of_another_kind": list(landed.of_another_kind.items()),
        "oldest_event_us": None if oldest is None else to_us(oldest),
        "newest_event_us": None if newest is None else to_us(newest),
        "tracked": persisted.messages,
        "snapshots": persisted.snapshots,
        "acknowledged": acknowledged.count,
        "acknowledgements_failed": acknowledged.failed,
    }

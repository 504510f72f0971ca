"""One reader of a drain, on an executor. Every reader is given the same, a whole subscription: Pub/Sub has no
partitions, and shares out its messages itself (the static split of FLINK-20625).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter

from pipeline.clock import SystemClock, to_us
from pipeline.heartbeat import HeartbeatReader, MessageContract
from pipeline.kept import Kept
from pipeline.lake.layout import Lake
from pipeline.pubsub.connection import subscriber_client
from pipeline.pubsub.subscription import PubSubSubscription
from pipeline.settings_sections import LakeSettings, PubSubSettings
from pipeline.ticks.budget import SMALL_SHARE, Budget
from pipeline.ticks.landing import Landed, land
from pipeline.ticks.tracking import Persisted, persist

REPORTED = pa.schema(
    {
        "reader": pa.int64(),
        "began_us": pa.int64(),
        "ended_us": pa.int64(),
        "is_last": pa.bool_(),
        "landed": pa.binary(),
        "persisted": pa.binary(),
    }
)
"""One row a batch. Its reader began at `began_us`, and the batch was done at `ended_us`, by the executor's clock.
`is_last` says that little was left to pull after it. `landed` and `persisted` are JSON, by LANDED and PERSISTED."""

LANDED, PERSISTED = TypeAdapter(Landed), TypeAdapter(Persisted)


class Side(StrEnum):
    """Which of the two subscriptions."""

    TRACKING = "tracking"
    BASE = "base"


@dataclass(frozen=True, slots=True)
class Split:
    """What travels to the executors, the same for each reader of a drain's round.

    `run` is unique to the drain. `budget` is for one batch, but for its time, which is all that a reader has.
    """

    side: Side
    run: str
    pubsub: PubSubSettings
    lake: LakeSettings
    contract: MessageContract
    budget: Budget

    @property
    def subscription(self) -> str:
        """The subscription's full resource name."""
        return self.pubsub.tracking_path if self.side is Side.TRACKING else self.pubsub.base_path


KEPT = Kept()
"""What a worker process of Spark keeps open from one round of a drain to the next."""


def read_split(split: Split, readers: Iterable[pa.RecordBatch], kept: Kept = KEPT) -> Iterator[pa.RecordBatch]:
    """The function that Spark runs: pull, make durable, acknowledge, report, until the time is up or little is left.

    Yields a row of `REPORTED` for each batch of each reader whose number is in the column `id`. Raises PubSubError or
    LakeError; then nothing was acknowledged that is not durable. A task that Spark tries again pulls what is left.
    """
    connections = kept.get(split.run, lambda: _Connections(split))
    for numbers in readers:
        for reader in numbers["id"].to_pylist():
            for row in _read(split, connections, reader):
                yield pa.RecordBatch.from_pylist([row], REPORTED)


class _Connections:
    """The client and the lake of one drain, as a reader uses them."""

    def __init__(self, split: Split) -> None:
        self.clock = SystemClock()
        self.client = subscriber_client(split.pubsub.emulator_host)
        lake = Lake(split.lake, split.contract.fields, self.clock)
        self.log, self.heartbeats, self.quarantine = lake.tracking_log(), lake.heartbeats(), lake.quarantine()


def _read(split: Split, to: _Connections, reader: int) -> Iterator[dict[str, Any]]:
    """Batch after batch, until the time is up or little is left to pull."""
    clock, contract = to.clock, HeartbeatReader(split.contract)
    subscription = PubSubSubscription(to.client, split.subscription, clock, split.pubsub)
    began, until = clock.now(), clock.monotonic() + split.budget.max_time.total_seconds()
    is_last = False
    while not is_last and (left := until - clock.monotonic()) > 0:
        budget = replace(split.budget, max_time=timedelta(seconds=left))
        landed, persisted = Landed(), Persisted()
        if split.side is Side.TRACKING:
            to.log.catch_up()  # before anything is pulled: with a damaged log nothing could be persisted
            persisted = persist(subscription, log=to.log, reader=contract, budget=budget, clock=clock)
        else:
            landed = land(
                subscription,
                heartbeats=to.heartbeats,
                quarantine=to.quarantine,
                log=to.log,
                reader=contract,
                budget=budget,
                clock=clock,
            )
        is_small = landed.messages + persisted.messages < budget.batch_messages * SMALL_SHARE
        is_last = is_small and clock.monotonic() < until
        yield {
            "reader": reader,
            "began_us": to_us(began),
            "ended_us": to_us(clock.now()),
            "is_last": is_last,
            "landed": LANDED.dump_json(landed),
            "persisted": PERSISTED.dump_json(persisted),
        }

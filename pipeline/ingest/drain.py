"""Draining an outage's backlog: rounds of a Spark job whose tasks all read the same subscription.

A round's length is bounded, so that a run says how far it is, ends in time, and loses nothing when it is killed. Every
reader is given the whole subscription: Pub/Sub has no partitions, and shares out its messages itself (the static split
of FLINK-20625).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from functools import partial
from itertools import accumulate
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import Clock, SystemClock, to_us
from tidemark.pipeline.durations import format_duration
from tidemark.pipeline.errors import ReadingUnavailable
from tidemark.pipeline.ingest.budget import SMALL_SHARE, Budget
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.landing import Landed, land
from tidemark.pipeline.ingest.tracking import Persisted, begin_where_new, persist
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.pubsub.spending import Spending
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.executors import require_able

logger = logging.getLogger(__name__)

DRY_ROUNDS = 2
"""Rounds in a row that found little to pull and so end a side. One is not enough: an empty pull proves nothing."""

YOUNG_ROUNDS = 2
"""Rounds in a row that found only young messages and so end a side whose age is not known."""

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


class Ended(StrEnum):
    """Why a drain ended. Of the two sides' reasons, the one that stands further down counts."""

    CAUGHT_UP = "caught up"
    RAN_DRY = "ran dry"
    TIME_IS_UP = "time is up"


@dataclass(frozen=True, slots=True)
class Round:
    """The result of one Spark job on one subscription, and the age of its backlog afterwards (None: not known).
    `at_once` is the most readers that ran at the same time, by their own clocks. The oldest message that they made
    durable was `oldest` old when they began, negative if it was published later (None: there was none)."""

    side: Side
    number: int
    readers: int
    at_once: int
    seconds: float
    landed: Landed
    persisted: Persisted
    is_dry: bool
    backlog_age: timedelta | None
    oldest: timedelta | None = None

    @property
    def messages(self) -> int:
        """All that were made durable."""
        return self.landed.messages + self.persisted.messages

    @property
    def messages_per_second(self) -> float:
        """All readers together."""
        return self.messages / self.seconds if self.seconds else 0.0

    def sentence(self) -> str:
        """How far the drain has come."""
        what = (
            f"tracked {self.persisted.messages} messages"
            if self.side is Side.TRACKING
            else f"landed {self.landed.heartbeats} heartbeats ({self.landed.late} late), "
            f"quarantined {self.landed.rejected.total()}"
        )
        age = "unknown"
        if self.backlog_age is not None:
            age = format_duration(timedelta(seconds=round(self.backlog_age.total_seconds())))
        together = "" if self.at_once == self.readers else f", at most {self.at_once} at the same time,"
        return (
            f"round {self.number}: {self.readers} readers of {self.side}{together} {what} in {self.seconds:.1f} s, "
            f"{self.messages_per_second:.0f} a second; the age of its backlog is {age}"
        )


@dataclass(frozen=True, slots=True)
class Split:
    """What travels to the executors, the same for each reader of a round. `run` is unique to the drain; a reader pulls
    batches for `time`."""

    side: Side
    run: str
    settings: Settings
    time: timedelta


Reader = Callable[[Split, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


KEPT = Kept()
"""What a worker process of Spark keeps open from one round of a drain to the next."""


def read_split(split: Split, readers: Iterable[pa.RecordBatch], kept: Kept = KEPT) -> Iterator[pa.RecordBatch]:
    """The function that Spark runs: pull, make durable, acknowledge, report, until the time is up or little is left.

    Yields a row of `REPORTED` for each batch of each reader whose number is in the column `id`. Raises PubSubError or
    LakeError; then nothing was acknowledged that is not durable. A task that Spark tries again pulls what is left.
    """
    connections = kept.get(split.run, lambda: Connections(split))
    for numbers in readers:
        for reader in numbers["id"].to_pylist():
            for row in _read(split, connections, reader):
                yield pa.RecordBatch.from_pylist([row], REPORTED)


class Connections:
    """The client and the lake of one drain, as a reader uses them, and what the process has made durable on tracking:
    copies of it hold nobody."""

    def __init__(self, split: Split) -> None:
        self.clock: Clock = SystemClock()
        settings = split.settings
        self.client = subscriber_client(*settings.pubsub.server)
        lake = Lake(settings.lake, settings.message.kinds, self.clock)
        self.reader = reader_of(settings.contract, settings.pubsub)
        self.copies = RememberedCopies(settings.track.copies_remembered)
        self.log, self.heartbeats, self.quarantine = lake.tracking_log(), lake.heartbeats(), lake.quarantine()


def _read(split: Split, to: Connections, reader: int) -> Iterator[dict[str, Any]]:
    """Batch after batch, until the time is up or little is left to pull."""
    clock, pubsub = to.clock, split.settings.pubsub
    path = pubsub.tracking_path if split.side is Side.TRACKING else pubsub.base_path
    with closing(PubSubSubscription(to.client, path, clock, pubsub)) as subscription:
        yield from batches(split, to, subscription, reader)


def batches(split: Split, to: Connections, subscription: PubSubSubscription, reader: int) -> Iterator[dict[str, Any]]:
    clock, chosen = to.clock, split.settings.drain
    began, until = clock.now(), clock.monotonic() + split.time.total_seconds()
    is_last = False
    while not is_last and (left := until - clock.monotonic()) > 0:
        budget = Budget(chosen.batch_messages, chosen.batch_bytes, timedelta(seconds=left), chosen.batch_messages)
        landed, persisted = Landed(), Persisted()
        if split.side is Side.TRACKING:
            to.log.catch_up()  # before anything is pulled: with a damaged log nothing could be persisted
            persisted = persist(
                subscription,
                log=to.log,
                reader=to.reader,
                budget=budget,
                clock=clock,
                copies=to.copies,
                laggard=split.settings.policy.band,
            )
        else:
            landed = land(
                subscription,
                heartbeats=to.heartbeats,
                quarantine=to.quarantine,
                log=to.log,
                reader=to.reader,
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


@dataclass(slots=True)
class Drain:
    """One run of rounds, and its result so far. `run` is a name that no other run has, not even one that repeats it.
    `spending` learns how far back the rounds still reach: it may put off readings of what is left.

    `read` is what the tasks run. Assumption: executors reach Pub/Sub and the lake at the same addresses as this
    process.
    """

    spark: SparkSession
    settings: Settings
    run: str
    log: TrackingLog
    backlogs: Mapping[Side, Backlog]
    clock: Clock
    spending: Spending | None = None
    read: Reader = read_split
    ended: Ended = Ended.CAUGHT_UP
    rounds_done: int = 0
    landed: Landed = field(default_factory=Landed)
    persisted: Persisted = field(default_factory=Persisted)

    def rounds(self) -> Iterator[Round]:
        """Drain tracking, then base, as far as either is behind, until caught up or the time is up.

        Tracking is first because the watermark moves only when tracking is ahead. Guarantee: what is acknowledged is
        durable, whatever is killed, and however many drains and ticks read the same subscriptions. Raises
        ExecutorsUnable, before anything is pulled, where executors lack tidemark; PubSubError, LakeError, and what
        Spark raises when a task has failed too often; what was done until then stays.
        """
        until = self.clock.monotonic() + self.settings.drain.max_seconds.total_seconds()
        state = begin_where_new(self.log, self.backlogs[Side.TRACKING], self.clock)
        if self.spending is not None:
            self.spending.learn(state)
        for side in (Side.TRACKING, Side.BASE):
            yield from self._empty(side, until)

    def _empty(self, side: Side, until: float) -> Iterator[Round]:
        chosen, dry, young = self.settings.drain, 0, 0
        age = self._age(side)
        while young < YOUNG_ROUNDS if age is None else age >= chosen.stop_below:
            left = until - self.clock.monotonic()
            if left <= 0 or dry == DRY_ROUNDS:
                why = Ended.TIME_IS_UP if left <= 0 else Ended.RAN_DRY
                self.ended = max(self.ended, why, key=list(Ended).index)
                return
            done = self._round(side, min(chosen.round_seconds, timedelta(seconds=left)))
            yield done
            age = done.backlog_age
            dry = dry + 1 if done.is_dry else 0
            young = young + 1 if done.oldest is not None and done.oldest < chosen.stop_below else 0

    def _round(self, side: Side, time: timedelta) -> Round:
        if not self.rounds_done:
            require_able(self.spark)
        chosen = self.settings.drain
        read = partial(self.read, Split(side, self.run, self.settings, time))
        began, began_at = self.clock.monotonic(), self.clock.now()
        readers = self.spark.range(0, chosen.readers, 1, chosen.readers)
        rows = readers.mapInArrow(read, from_arrow_schema(REPORTED)).collect()
        landed = sum((LANDED.validate_json(row["landed"]) for row in rows), Landed())
        persisted = sum((PERSISTED.validate_json(row["persisted"]) for row in rows), Persisted())
        published = landed.oldest_publish_time if side is Side.BASE else persisted.oldest_publish_time
        if self.spending is not None:
            pubsub = self.settings.pubsub
            self.spending.reached(pubsub.base_path, landed.oldest_publish_time)
            self.spending.reached(pubsub.tracking_path, persisted.oldest_publish_time)
        self.rounds_done += 1
        self.landed += landed
        self.persisted += persisted
        return Round(
            side=side,
            number=self.rounds_done - 1,
            readers=chosen.readers,
            at_once=at_once(rows),
            seconds=self.clock.monotonic() - began,
            landed=landed,
            persisted=persisted,
            is_dry=len({row["reader"] for row in rows if row["is_last"]}) == chosen.readers,
            backlog_age=self._age(side),
            oldest=None if published is None else began_at - published,
        )

    def _age(self, side: Side) -> timedelta | None:
        try:
            return self.backlogs[side].read().age
        except ReadingUnavailable as error:
            logger.warning("the age of %s's backlog is not known: %s", side, error)
            return None


def at_once(rows: Iterable[Any]) -> int:
    """The most readers that ran at the same time, of rows with the columns of REPORTED."""
    spans: dict[int, tuple[int, int]] = {}
    for row in rows:
        began_us, ended_us = spans.get(row["reader"], (row["began_us"], row["ended_us"]))
        spans[row["reader"]] = min(began_us, row["began_us"]), max(ended_us, row["ended_us"])
    # A reader that ends at the moment when another begins did not run beside it: ends sort first.
    turns = sorted(turn for began_us, ended_us in spans.values() for turn in ((began_us, 1), (ended_us, -1)))
    return max(accumulate(change for _, change in turns), default=0)

"""Continuous landing: rounds of a Spark job whose tasks read both subscriptions, one after another without an end.

The driver settles a round while the tasks of the next are at work: one entry of the log, one transaction of each table,
then it acknowledges. So what a message costs is spread over the executors, and what a round costs is the same at any
traffic.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from threading import Timer
from typing import Any

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import Clock, SystemClock
from tidemark.pipeline.ingest.budget import Budget
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.landing import Landed
from tidemark.pipeline.ingest.rounds import (
    Provisional,
    Settled,
    TakenHeartbeats,
    TakenTimes,
    settle,
    take_heartbeats,
    take_times,
)
from tidemark.pipeline.ingest.tracking import begin_where_new
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.codec import decode, encode
from tidemark.pipeline.lake.log.tracking_log import TrackingLog
from tidemark.pipeline.lake.tables.heartbeats import Heartbeats
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.lake.tables.quarantine import QUARANTINE, Quarantine
from tidemark.pipeline.lake.tables.rounds import says_of
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.pubsub.subscription import PubSubSubscription, Subscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.spark.executors import require_able
from tidemark.pipeline.watermark.state import Snapshot
from tidemark.pipeline.watermark.usage import Usage

READER_MESSAGES, READER_BYTES = 200_000, 256 << 20
"""The most that one reader takes in a round. Its ids, some 40 MB of them, go to the driver."""

IDS_IN_A_ROW = 20_000
"""Ids to acknowledge in one row of an answer, some 4 MB."""

HANGS_AFTER = timedelta(minutes=2)
"""A round that takes so much longer than its time fails the run: no executor has a place, or one hangs. Ticks land
until the next run."""

ROUNDS_TOLD = 3
"""Settled rounds whose attempts the readers are told: a worker may have no task in one of them."""

TAKEN = pa.schema(
    {"reader": pa.int64(), "what": pa.binary(), "histogram": pa.binary(), "ack_ids": pa.list_(pa.string())}
)
"""One row a reader, and further ones with no more than ids. `what` is JSON, by _HEARTBEATS or _TIMES; `histogram` is an
entry of the log."""


@dataclass(frozen=True, slots=True)
class _Heartbeats:
    landed: Landed
    heartbeats: list[NewFile]
    rejected: list[NewFile]
    usage: Usage


@dataclass(frozen=True, slots=True)
class _Times:
    messages: int
    attempt: str
    usage: Usage


_HEARTBEATS, _TIMES = TypeAdapter(_Heartbeats), TypeAdapter(_Times)


@dataclass(frozen=True, slots=True)
class Share:
    """What travels to the executors, the same for each reader of a round. `run` is unique to the run; `settled` names
    the attempts of trackers that are in the log since the round before."""

    run: str
    settings: Settings
    time: timedelta
    watermark: datetime | None = None
    settled: frozenset[str] = frozenset()

    @property
    def readers(self) -> int:
        """Those of base, then those of tracking."""
        return self.settings.landing.readers

    def is_of_base(self, reader: int) -> bool:
        """Which subscription a reader reads."""
        return reader < self.settings.landing.landers


Reader = Callable[[Share, Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

KEPT = Kept()
"""What a worker process of Spark keeps open from one round to the next."""


def new_files(heartbeats: Heartbeats, quarantine: Quarantine, clock: Clock) -> tuple[NewFiles, NewFiles]:
    """Both tables as readers and settling see them."""
    return NewFiles(heartbeats, heartbeats.schema, clock), NewFiles(quarantine, QUARANTINE, clock)


class Connections:
    """The client and the lake of one run, as its readers use them, and what the process remembers."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.client = subscriber_client(*settings.pubsub.server)
        self.reader = reader_of(settings.contract, settings.pubsub)
        self.remembered = Provisional(RememberedCopies(settings.track.copies_remembered))
        lake = Lake(settings.lake, settings.message.kinds, self.clock)
        self.heartbeats, self.quarantine = lake.heartbeats(), lake.quarantine()
        self.new_heartbeats, self.new_rejected = new_files(self.heartbeats, self.quarantine, self.clock)

    def subscription(self, path: str, calls: "Calls") -> PubSubSubscription:
        """A subscription, to be closed."""
        return PubSubSubscription(self.client, path, self.clock, self.settings.pubsub, meter=calls)


class Calls:
    """Counts the pulls of one reader, which its client sends from several threads."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._sent = 0

    def called(self) -> None:
        self._sent = next(self._numbers)

    def pulled(self, messages: int, size_bytes: int) -> None:
        """The reader counts them itself."""

    @property
    def usage(self) -> Usage:
        """The calls as the account has them."""
        return Usage(pulls=self._sent)


def read_share(share: Share, readers: Iterable[pa.RecordBatch], kept: Kept = KEPT) -> Iterator[pa.RecordBatch]:
    """The function that Spark runs: pull, judge, write files or count, and answer with what was taken. Acknowledges
    nothing. Raises PubSubError or LakeError; a task that Spark tries again takes what is left."""
    to = kept.get(share.run, lambda: Connections(share.settings))
    to.remembered.settle(share.settled)
    for numbers in readers:
        for reader in numbers["id"].to_pylist():
            for row in _base_rows(share, to) if share.is_of_base(reader) else _tracking_rows(share, to):
                yield pa.RecordBatch.from_pylist([{"reader": reader, **row}], TAKEN)


def _base_rows(share: Share, to: Connections) -> Iterator[dict[str, Any]]:
    settings = share.settings
    to.heartbeats.refuse_other_kinds()  # before anything is pulled
    calls = Calls()
    with closing(to.subscription(settings.pubsub.base_path, calls)) as subscription:
        taken = take_heartbeats(
            subscription,
            heartbeats=to.new_heartbeats,
            quarantine=to.new_rejected,
            watermark=share.watermark,
            reader=to.reader,
            budget=_budget(share, settings.land.batch_messages),
            clock=to.clock,
        )
    files = [*taken.heartbeats], [*taken.rejected]
    yield {"what": _HEARTBEATS.dump_json(_Heartbeats(taken.landed, *files, taken.usage + calls.usage))}
    yield from _id_rows(taken.ack_ids)


def _tracking_rows(share: Share, to: Connections) -> Iterator[dict[str, Any]]:
    settings = share.settings
    calls = Calls()
    with closing(to.subscription(settings.pubsub.tracking_path, calls)) as subscription:
        taken = take_times(
            subscription,
            reader=to.reader,
            remembered=to.remembered,
            laggard=settings.policy.band,
            budget=_budget(share, settings.track.batch_messages),
            clock=to.clock,
        )
    what = _TIMES.dump_json(_Times(taken.messages, taken.attempt, taken.usage + calls.usage))
    yield {"what": what, "histogram": encode(Snapshot(taken.histogram), share.run)}
    yield from _id_rows(taken.ack_ids)


def _budget(share: Share, batch_messages: int) -> Budget:
    return Budget(READER_MESSAGES, READER_BYTES, share.time, batch_messages)


def _id_rows(ack_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
    ids = list(ack_ids)
    for first in range(0, len(ids), IDS_IN_A_ROW):
        yield {"ack_ids": ids[first : first + IDS_IN_A_ROW]}


@dataclass(frozen=True, slots=True)
class TakenRound:
    """What the readers of a round have taken, nothing of it visible or acknowledged."""

    of_base: list[TakenHeartbeats]
    of_tracking: list[TakenTimes]

    @classmethod
    def of(cls, rows: pa.Table, share: Share) -> "TakenRound":
        """The answers of all readers, with the columns of TAKEN."""
        ids: dict[int, list[str]] = {reader: [] for reader in range(share.readers)}
        said: dict[int, tuple[bytes, bytes | None]] = {}
        for reader, what, histogram, ack_ids in zip(*(column.to_pylist() for column in rows.columns), strict=True):
            ids[reader] += ack_ids or ()
            if what is not None:
                said[reader] = what, histogram
        of_base, of_tracking = list[TakenHeartbeats](), list[TakenTimes]()
        for reader, (what, histogram) in said.items():
            if share.is_of_base(reader):
                one = _HEARTBEATS.validate_json(what)
                of_base.append(TakenHeartbeats(one.landed, one.heartbeats, one.rejected, ids[reader], one.usage))
            else:
                times, entry = _TIMES.validate_json(what), decode(histogram or b"", f"the answer of reader {reader}")
                if not isinstance(entry, Snapshot):
                    raise TypeError(f"reader {reader} answered with {type(entry).__name__}")
                of_tracking.append(TakenTimes(entry.histogram, times.messages, ids[reader], times.attempt, times.usage))
        return cls(of_base, of_tracking)

    @property
    def attempts(self) -> frozenset[str]:
        """The attempts of trackers that are counted here."""
        return frozenset(one.attempt for one in self.of_tracking)


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A round that is settled, and how long its readers and its settling took."""

    number: int
    settled: Settled
    readers_seconds: float
    settle_seconds: float

    @property
    def messages(self) -> int:
        """Messages of base that landed or were quarantined."""
        return self.settled.landed.messages


@dataclass(slots=True)
class ContinuousLanding:
    """One run of rounds. `run` is a name that no other run has. `interrupt` ends what the session has under way, and
    `newest_watermark` reads the log, beside the settling, which has `log` for itself. `read` is what the tasks run.

    Assumption: executors reach Pub/Sub and the lake at the same addresses as this process, and have tidemark.
    """

    spark: SparkSession
    settings: Settings
    run: str
    log: TrackingLog
    heartbeats: Heartbeats
    quarantine: Quarantine
    base: Subscription
    tracking: Subscription
    tracking_backlog: Backlog
    clock: Clock
    newest_watermark: Callable[[], datetime | None]
    interrupt: Callable[[], object] = lambda: None
    read: Reader = read_share
    _used: Usage = field(default_factory=Usage)
    _attempts: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=ROUNDS_TOLD))

    def rounds(self, run_for: timedelta) -> Iterator[RoundDone]:
        """Rounds until the time is over; each is given once it is settled.

        Guarantee: what is acknowledged is visible and in the log, whatever is killed, and however many runs and ticks
        read the same subscriptions. Raises ExecutorsUnable, before anything is pulled, where executors lack tidemark;
        PubSubError, LakeError, and what Spark raises when a task has failed too often. What was settled until then
        stays, and what was not comes again.
        """
        require_able(self.spark)
        begin_where_new(self.log, self.tracking_backlog, self.clock)
        until = self.clock.monotonic() + run_for.total_seconds()
        under_way: Future[RoundDone] | None = None
        with ThreadPoolExecutor(1, thread_name_prefix="settle") as settling:
            for number in count():
                if self.clock.monotonic() >= until:
                    break
                began = self.clock.monotonic()
                taken = self._taken()
                seconds = self.clock.monotonic() - began
                if under_way is not None:
                    yield under_way.result()
                under_way = settling.submit(self._settle, number, taken, seconds)
            if under_way is not None:
                yield under_way.result()

    def _taken(self) -> TakenRound:
        """The work of the readers of one round."""
        attempts = frozenset[str]().union(*self._attempts)
        share = Share(self.run, self.settings, self.settings.landing.round, self.newest_watermark(), attempts)
        watchdog = Timer((share.time + HANGS_AFTER).total_seconds(), self.interrupt)
        watchdog.daemon = True
        watchdog.start()
        try:
            readers = self.spark.range(0, share.readers, 1, share.readers)
            rows = readers.mapInArrow(partial(self.read, share), from_arrow_schema(TAKEN)).toArrow()
        finally:
            watchdog.cancel()
        return TakenRound.of(rows, share)

    def _settle(self, number: int, taken: TakenRound, readers_seconds: float) -> RoundDone:
        began = self.clock.monotonic()
        heartbeats, quarantine = new_files(self.heartbeats, self.quarantine, self.clock)
        settled = settle(
            taken.of_base,
            taken.of_tracking,
            base=self.base,
            tracking=self.tracking,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=self.log,
            clock=self.clock,
            says=says_of(self.run, number),
            used=self._used,
        )
        self._attempts.append(taken.attempts)
        self._used = settled.used
        return RoundDone(number, settled, readers_seconds, self.clock.monotonic() - began)

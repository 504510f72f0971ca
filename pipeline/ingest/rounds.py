"""Reads with many readers on Spark, in rounds. In a round, the readers take messages. Then one process settles them,
while the readers take the messages of the next round.

The cost per message is spread over the readers, and the cost per round does not depend on traffic. Rounds are used to
catch up with a backlog, and to land continuously; only the condition to stop is different. Each reader pulls from the
whole subscription, because Pub/Sub has no partitions: it distributes the messages itself. FLINK-20625 proposes the same
design for Flink.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from itertools import count, takewhile
from threading import Timer

import pyarrow as pa
from pydantic import TypeAdapter
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from tidemark.pipeline.clock import Clock, SystemClock, format_duration, is_recent, rough
from tidemark.pipeline.errors import PubSubError
from tidemark.pipeline.figures import counted, oldest_of
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Settled, Side, Taken
from tidemark.pipeline.ingest.settle import Settling, judge_of, new_files
from tidemark.pipeline.ingest.take import BATCH_MESSAGES, SMALL_SHARE, Batches, Budget, Keeper, Landing, Tracking, take
from tidemark.pipeline.ingest.ticks import begin_where_new
from tidemark.pipeline.kept import Kept
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.tracking_log import Newest
from tidemark.pipeline.lake.tables.delta_log import metadata_of_round
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.connection import subscriber_client
from tidemark.pipeline.pubsub.subscription import PubSubSubscription
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.watermark.decision import Decision
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.watermark.situation import has_no_backlog
from tidemark.pipeline.watermark.usage import Usage

ROUND_MESSAGES, READER_BYTES = 400_000, 256 << 20
"""Maximum number of messages per round, divided among its readers, and maximum number of bytes per reader. The ack ids
of a round, about 80 MB, are sent to the driver."""

HANDED_OVER = timedelta(minutes=2)
"""Minimum time for which a round's messages stay leased after the round ends. The driver must begin to extend the
leases by then."""

PIECE_BYTES = 4 << 20
"""Maximum size of one row of a reader's answer in bytes."""

HANGS_AFTER = timedelta(minutes=2)
"""If a round takes this much longer than its planned duration, the run fails, and ticks pull until the next run.
Possible causes: the executors have no free slot, or an executor hangs."""

TAKEN = pa.schema({"reader": pa.int64(), "piece": pa.binary()})
"""Schema of readers' answers. The rows of a reader are consecutive pieces of its `Taken` as JSON."""

AS_JSON = TypeAdapter(Taken)

KEPT = Kept(at_most=2)
"""The readers that a Spark worker process keeps open: one per pair of settings and schema file. All runs share them."""

ROUNDS_TOLD = 3
"""In each round, the driver tells the readers which messages of the last ROUNDS_TOLD settled rounds are in the log. The
readers then recognize copies of these messages. One round is not enough, because a worker process may have no task in
a round."""

NEW = timedelta(minutes=1)
"""Maximum age of a reading that a run uses, and of the newest decision. For the decision, three tick intervals apply if
that is longer. If the decision is older, no tick makes decisions now, so the run reads the backlogs itself."""

SLOW = 1.5
"""A round is reported as slow if it takes this many times its planned duration. The first round is never reported,
because it also waits for Spark to start its workers."""

A_TRACKER_IN = 4
"""One reader of this many reads tracking, because tracking costs less than base. While tracking is behind, all readers
read tracking."""

DRY_ROUNDS, YOUNG_ROUNDS = 2, 2
"""A run ends after DRY_ROUNDS consecutive rounds that together read both subscriptions and find few messages. If a
backlog's age is unknown, and neither backlog is known to be old, the run also ends after YOUNG_ROUNDS consecutive
rounds whose messages are all younger than `RunPlan.stop_below`. One round is not enough: an empty pull does not prove
an empty backlog."""


# Readers


@dataclass(frozen=True, slots=True)
class Share:
    """The input of a round's readers, which pull for `time`.

    `sides` contains the subscription that each reader reads. Heartbeats below `watermark` are late. `settled` contains
    the names of attempts (counted batches) that are in the log. Readers remember the messages of these attempts, to
    recognize copies.
    """

    settings: Settings
    time: timedelta
    sides: Sequence[Side]
    watermark: datetime | None = None
    settled: frozenset[str] = frozenset()

    def budget(self, side: Side) -> Budget:
        """Return the limits for one reader of this subscription."""
        return Budget(ROUND_MESSAGES // len(self.sides), READER_BYTES, self.time, BATCH_MESSAGES[side])


class Reader:
    """Takes messages in one process. All runs with the same settings share its client, its tables, and the messages
    that it remembers to recognize copies."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.clock = clock or SystemClock()
        self.client = subscriber_client(*settings.pubsub.server)
        self.copies = RememberedCopies(settings.copies_remembered)
        lake = Lake(settings.lake, settings.message.kinds, self.clock)
        self.judge = judge_of(settings, lake)
        self.tables = new_files(lake, self.clock)

    def take(self, share: Share, side: Side) -> Taken:
        """Take messages from a subscription for the round's duration. Their leases last long enough for the driver to
        extend them. Raises PubSubError or LakeError."""
        pubsub, calls = self.settings.pubsub, count()
        path = pubsub.base_path if side is Side.BASE else pubsub.tracking_path
        pulling = PubSubSubscription(self.client, path, self.clock, pubsub, on_call=partial(next, calls))
        with closing(pulling) as subscription:
            taken = taken_of(share, side, subscription, self.keeper(share, side))
        return replace(taken, used=taken.used + Usage(pulls=next(calls)))

    def keeper(self, share: Share, side: Side) -> Keeper:
        if side is Side.BASE:
            return Landing(*self.tables, self.judge, lambda: share.watermark, self.clock)
        return Tracking(self.judge, self.copies, self.settings.policy.band, self.clock)


def taken_of(share: Share, side: Side, subscription: PubSubSubscription, keeper: Keeper) -> Taken:
    """Take one reader's part of a round's messages from a subscription. Their leases last long enough for the driver to
    extend them."""
    budget, clock = share.budget(side), keeper.clock
    until = clock.monotonic() + budget.max_time.total_seconds()
    taken = take(Batches(subscription, budget, clock, until_spent=True), subscription, keeper, until)
    subscription.give_back(taken.ack_ids, int((share.time + HANDED_OVER).total_seconds()))
    return taken


def read_share(share: Share, readers: Iterable[pa.RecordBatch], kept: Kept = KEPT) -> Iterator[pa.RecordBatch]:
    """Run the readers whose numbers are in the column `id`, and yield their answers as rows of TAKEN. Spark calls this
    function in its tasks.

    Acknowledges nothing. Raises PubSubError or LakeError. If Spark retries a task, Pub/Sub delivers the messages of
    the first attempt again.
    """
    settings = share.settings
    reader = kept.get((settings.model_dump_json(), settings.judged_by), lambda: Reader(settings))
    reader.copies.settle(share.settled)
    for numbers in readers:
        for number in numbers["id"].to_pylist():
            answer = AS_JSON.dump_json(reader.take(share, share.sides[number]))
            for first in range(0, len(answer), PIECE_BYTES):
                piece = answer[first : first + PIECE_BYTES]
                yield pa.RecordBatch.from_pylist([{"reader": number, "piece": piece}], TAKEN)


def taken_of_rows(rows: pa.Table) -> list[Taken]:
    """Decode the answers of all readers of a round. The pieces of each answer must be in order."""
    answers = rows.group_by("reader", use_threads=False).aggregate([("piece", "list")])
    return [AS_JSON.validate_json(b"".join(pieces)) for pieces in answers["piece_list"].to_pylist()]


def read_on_spark(spark: SparkSession, interrupt: Callable[[], object], share: Share) -> list[Taken]:
    """Run the readers of one round as tasks of a Spark job, and return what they took. If the round takes HANGS_AFTER
    longer than planned, `interrupt` is called to stop the running jobs of the session.

    Executors must have tidemark, and reach Pub/Sub and the lake at the same addresses as this process. Raises Spark's
    error if a task fails too often.
    """
    watchdog = Timer((share.time + HANGS_AFTER).total_seconds(), interrupt)
    watchdog.daemon = True
    watchdog.start()
    try:
        readers = spark.range(0, len(share.sides), 1, len(share.sides))
        return taken_of_rows(readers.mapInArrow(partial(read_share, share), from_arrow_schema(TAKEN)).toArrow())
    finally:
        watchdog.cancel()


# The driver


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The limits of a run of readers on Spark: when it starts, how long its rounds last, and when it ends. Tests and
    benchmarks shorten these times."""

    round: timedelta = timedelta(seconds=5)
    """Duration of a round's pulling. Longer rounds make fewer commits and larger files, but each extra second is added
    to the watermark's lag. Rule 4 lets tracking be 10 s behind, which is enough for two rounds."""
    run_for: timedelta = timedelta(hours=1)
    """Maximum duration of a run. It is well below the time after which a run counts as dead."""
    start_after: timedelta = timedelta(hours=1)
    """A run starts if base or tracking has a message this old. As long as ticks keep up, they land messages within
    minutes."""
    start_size: int = 1_000_000
    """A run also starts if this many messages wait, which is four times the maximum that a tick pulls."""
    stop_below: timedelta = timedelta(minutes=1)
    """A run ends when the oldest message of each subscription is younger than this. Ticks can handle such a backlog."""


PLAN = RunPlan()


class Ended(StrEnum):
    """The reason why a run of readers ended. RAN_DRY: few messages are found, although an old backlog is reported."""

    CAUGHT_UP = "caught up"
    RAN_DRY = "ran dry"
    TIME_IS_UP = "time is up"


@dataclass(frozen=True, slots=True)
class RoundDone:
    """A settled round. Its readers began at `began`. `ages` are the ages of both backlogs after the round. An
    unknown age is left out."""

    number: int
    share: Share
    settled: Settled
    began: datetime
    readers_seconds: float
    settle_seconds: float
    ages: Mapping[Side, timedelta] = field(default_factory=dict)

    @property
    def messages(self) -> int:
        """Number of messages that landed, went to quarantine, or were tracked."""
        return sum(one.messages for one in self.settled.sides.values())

    @property
    def is_dry(self) -> bool:
        return self.messages < SMALL_SHARE * min(min(BATCH_MESSAGES.values()) * len(self.share.sides), ROUND_MESSAGES)


Beside = Callable[[Callable[[], RoundDone]], "Future[RoundDone]"]
"""Function that runs another function concurrently with its caller."""


@dataclass(slots=True)
class Rounds:
    """One run of readers on Spark, as a series of rounds. `run` is its unique name.

    - `read` runs the readers of a round, in any processes.
    - `newest` returns the newest state of the log. It must not use `settling.log`, which another thread may be using.
    - `backlogs` are read only if there is no recent decision or the log is empty.
    - `beside` runs the settling of a round while the next round is read.
    """

    settings: Settings
    run: str
    readers: int
    settling: Settling
    read: Callable[[Share], Sequence[Taken]]
    newest: Callable[[], Newest]
    backlogs: Mapping[Side, Backlog]
    beside: Beside | None = None
    plan: RunPlan = PLAN
    ended: Ended = Ended.TIME_IS_UP
    _used: Usage = field(default_factory=Usage)
    _attempts: deque[frozenset[str]] = field(default_factory=lambda: deque(maxlen=ROUNDS_TOLD))
    _tracking_is_dry: bool = False
    _dry: Sequence[frozenset[Side]] = ()
    """The subscriptions read by each of the last consecutive rounds that found few messages."""
    _young: int = 0

    def rounds(self, run_for: timedelta, *, until_young: bool) -> Iterator[RoundDone]:
        """Run rounds for `run_for`, and yield each round when it is settled. With `until_young`, stop earlier if both
        backlogs are young or the readers find few messages.

        Guarantee: each acknowledged message is in the log or visible in a table, even if processes are killed, or if
        other runs and ticks read the same subscriptions. Raises PubSubError, LakeError, and any error of `read`. Rounds
        that were settled before the error stay settled; all other messages are redelivered.
        """
        begin_where_new(self.settling.log, self.backlogs[Side.TRACKING], self.settling.clock)
        with ThreadPoolExecutor(1, thread_name_prefix="settle") as pool:
            beside: Beside = self.beside or (lambda work: pool.submit(work))
            until = self.settling.clock.monotonic() + run_for.total_seconds()
            under_way: Future[RoundDone] | None = None
            for number in takewhile(lambda _: self.settling.clock.monotonic() < until, count()):
                taken = self._taken(number)
                try:
                    if under_way is not None:
                        settled, under_way = self._aged(under_way.result()), None
                        if until_young and (ended := self._why_ended(settled)):
                            self.ended = ended
                            yield from (settled, self._settled(number, *taken))
                            return
                        yield settled
                except BaseException:  # otherwise the readers' leases would delay redelivery by minutes
                    self.settling.give_back(taken[1])
                    raise
                under_way = beside(partial(self._settled, number, *taken))
            if under_way is not None:
                yield under_way.result()

    def _taken(self, number: int) -> tuple[Share, Sequence[Taken], datetime, float]:
        watermark, began, since = self.newest().watermark, self.settling.clock.now(), self.settling.clock.monotonic()
        decision = None if self._tracking_is_dry else self._decision()
        sides = sides_of(self.readers, decision, self.settings.policy, number)
        attempts = frozenset[str]().union(*self._attempts)
        share = Share(self.settings, self.plan.round, sides, watermark, attempts)
        taken = self.read(share)
        self.settling.hold(taken)
        return share, taken, began, self.settling.clock.monotonic() - since

    def _settled(
        self, number: int, share: Share, taken: Sequence[Taken], began: datetime, readers_seconds: float
    ) -> RoundDone:
        since = self.settling.clock.monotonic()
        settled = self.settling.settle(taken, metadata_of_round(self.run, number), self._used)
        self._attempts.append(frozenset(one.attempt for one in taken if one.side is Side.TRACKING))
        self._used = settled.unsaid
        done = RoundDone(number, share, settled, began, readers_seconds, self.settling.clock.monotonic() - since)
        self._tracking_is_dry = done.is_dry and Side.BASE not in share.sides  # whatever an older decision says
        return done

    def _decision(self) -> Decision | None:
        record, now, new = self.newest().record, self.settling.clock.now(), max(NEW, 3 * self.settings.watermark.tick)
        return record.decision if record is not None and is_recent(record.decision.at, now, new) else None

    def _aged(self, done: RoundDone) -> RoundDone:
        """Return the round with the known ages of both backlogs. They come from the newest decision or, if no tick
        makes decisions, from new readings. A subscription whose messages cannot all be judged yet has no age."""
        decision, ages = self._decision(), dict[Side, timedelta]()
        for side in (side for side in Side if not done.settled.sides[side].waiting.messages):
            effective = None if decision is None else decision.readings.get(side)
            if effective is not None and is_recent(effective.newest.observed_at, self.settling.clock.now(), NEW):
                ages[side] = effective.newest.age
            elif decision is None:
                with suppress(PubSubError):
                    ages[side] = self.backlogs[side].read().age
        return replace(done, ages=ages)

    def _why_ended(self, done: RoundDone) -> Ended | None:
        """Return why the run ends after this round; None if it continues. A run ends when it has caught up, or when it
        finds few messages in both subscriptions.

        If it finds few although the backlog is old, another consumer holds the backlog's messages.
        """
        young = self.plan.stop_below
        self._dry = [*self._dry, frozenset(done.share.sides)] if done.is_dry else ()
        oldest = oldest_of(*(one.oldest_publish_time for one in done.settled.sides.values()))
        self._young = self._young + 1 if oldest is None or done.began - oldest < young else 0
        if len(done.ages) == len(Side) and max(done.ages.values()) < young:
            return Ended.CAUGHT_UP
        if len(self._dry) >= DRY_ROUNDS and frozenset().union(*self._dry) == frozenset(Side):
            return Ended.RAN_DRY if done.ages and max(done.ages.values()) >= young else Ended.CAUGHT_UP
        known = [age for age in done.ages.values() if age >= young]
        return Ended.CAUGHT_UP if not known and self._young >= YOUNG_ROUNDS and len(done.ages) < len(Side) else None


def sides_of(readers: int, decision: Decision | None, policy: Policy, number: int) -> list[Side]:
    """Return the subscription that each of the readers reads in round `number`. These readers read tracking:

    - All readers, while the newest decision shows that tracking has a backlog and leads base by less than the band.
      Reason: without this lead, the watermark does not move.
    - Otherwise a quarter of the readers (see A_TRACKER_IN), but at least one. If there is only one reader, it reads
      tracking every other round.
    """
    trackers = number % 2 if readers == 1 else max(1, readers // A_TRACKER_IN)
    if decision is not None and decision.base is not None and decision.tracking is not None:
        is_ahead = decision.tracking.oldest_unacked - decision.base.oldest_unacked >= policy.band
        if not is_ahead and not has_no_backlog(decision.tracking, policy.near_on_tracking):
            trackers = readers
    return [Side.BASE] * (readers - trackers) + [Side.TRACKING] * trackers


def sentence_of(rounds: Sequence[RoundDone]) -> str:
    """Return a sentence for the run's log: what these consecutive rounds landed and tracked, and how long they took."""
    first, last, settled = rounds[0], rounds[-1], sum((one.settled for one in rounds), Settled())
    share, landed, seconds = last.share, settled.landed, sum(one.readers_seconds for one in rounds)
    landers, trackers = map(share.sides.count, (Side.BASE, Side.TRACKING))
    rate = f"{sum(one.messages for one in rounds) / seconds:,.0f} messages/s; " if seconds else ""
    ages = ", ".join(f"{side} {rough(age)}" for side, age in last.ages.items())
    is_slow = first.number > 0 and last.readers_seconds >= SLOW * share.time.total_seconds()
    slow = (
        f". A round should take {format_duration(share.time)}: Spark needs a task slot for each of the "
        f"{len(share.sides)} readers, and for windows"
    )
    return (
        f"{f'round {last.number}' if first is last else f'rounds {first.number} to {last.number}'}: landed "
        f"{counted(landed.heartbeats, 'heartbeat')} ({landed.late} late), quarantined {landed.rejected.total()}, "
        f"tracked {counted(settled.persisted.messages, 'message')}; {rate}the readers (base: {landers}, tracking: "
        f"{trackers}) took {last.readers_seconds:.1f} s, settling {max(one.settle_seconds for one in rounds):.1f} s at "
        f"most{f'; age of the backlog: {ages}' if ages else ''}{slow if is_slow else ''}"
    )

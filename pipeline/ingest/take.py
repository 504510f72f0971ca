"""Taking: pull, judge, make durable without being visible. Leases are kept, and nothing is acknowledged.

A reader that dies, or whose answer is lost, has done nothing: its messages come again, and its files are orphans. Any
number of readers may take from one subscription at once.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import Clock, duration_us, from_us, to_us
from tidemark.pipeline.contract.heartbeat import PATIENCE, Asking, HeartbeatReader, Undecided
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.errors import PubSubError, ReadingPostponed
from tidemark.pipeline.ingest.copies import RememberedCopies
from tidemark.pipeline.ingest.count import Counted, counted_parts
from tidemark.pipeline.ingest.outcome import Ingested, Side, Taken, Waiting
from tidemark.pipeline.ingest.rows import JudgedRows, judged_rows
from tidemark.pipeline.lake.tables.heartbeats import PARTITION
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.subscription import PubSubSubscription, PulledBatch
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.usage import Usage

logger = logging.getLogger(__name__)

SMALL_SHARE = 0.05
"""A batch smaller than this share of a full one is small. It may mean that the backlog is nearly gone."""

SMALL_BATCHES = 3
"""The number of small batches in a row that ends a tick, whatever the backlog is: another consumer may hold it."""

FIRST_SECONDS = 0.4
"""A tick's first batch is pulled for so long at most, so that a tick without a backlog decides soon."""

FURTHER_SECONDS = 2.0
"""Like FIRST_SECONDS, for a batch after a small one."""

CAUGHT_UP = timedelta(seconds=0.2)
"""There is no backlog if the oldest message was published at most so long before the batch was begun: messages become
visible a moment later, and clocks differ."""

FILE_BYTES = 64 << 20
"""A reader writes what it holds into files when it is larger than this: so much is in memory, and a few times as much
while it is written."""

HOURS_AT_ONCE = 200
"""Event hours of one taking: each is a file. Messages of further hours are given back, the oldest hours first."""

SOONEST, LATEST = timedelta(seconds=5), timedelta(seconds=60)
"""Bounds on when an undecided message is looked at again. In between it waits as long as it has waited already, so that
many of them do not crowd out the others, and no longer than until the end of its patience."""


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that is pulled. The first limit that is reached ends it; a part that was begun is finished."""

    max_messages: int
    max_bytes: int
    max_time: timedelta
    batch_messages: int


class Files(Protocol):
    """Makes rows durable without making them visible."""

    def write(self, rows: pa.Table) -> list[NewFile]:
        """Write rows into files, and make them durable. Raises LakeError."""


Part = tuple[int, Mapping[int, Undecided], Sequence[int]]
"""Messages that were judged and kept together: how many, and the positions in the part of those that are undecided, and
of those that are left for another time."""


@dataclass
class Landing:
    """Keeps messages of base as files. A heartbeat below `watermark` is late. One may be undecided for `patience` after
    its publish time."""

    heartbeats: Files
    quarantine: Files
    reader: HeartbeatReader
    watermark: datetime | None
    clock: Clock
    contract: str = ""
    patience: timedelta = PATIENCE
    _landed: Ingested = field(default_factory=Ingested)
    _hours: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._good, self._bad = _Held(self.heartbeats), _Held(self.quarantine)

    @property
    def is_full(self) -> bool:
        """True if it should be given nothing more."""
        return len(self._hours) >= HOURS_AT_ONCE

    def keep(self, messages: Messages) -> Iterator[Part]:
        """Judge and keep messages part by part. Raises LakeError."""
        now = self.clock.now()
        asking = Asking(to_us(now), duration_us(self.patience))
        for judged in judged_rows(messages, self.reader, asking, self.watermark, now):
            kept = self._within_hours(judged)
            self._good.hold(kept.heartbeats)
            self._bad.hold(kept.rejected)
            self._landed += Ingested.of(kept)
            yield kept.messages, kept.undecided, kept.left

    def _within_hours(self, judged: JudgedRows) -> JudgedRows:
        """Without the messages of so many further hours that these would be too many: the newest hours are kept, and
        at least one message."""
        hours = judged.heartbeats[PARTITION]
        new = sorted(set(pc.unique(hours).to_pylist()) - self._hours, reverse=True)
        room = HOURS_AT_ONCE - len(self._hours)
        self._hours.update(new[:room])
        if len(new) <= room:
            return judged
        is_beyond = ~pc.is_in(hours, pa.array(self._hours)).to_numpy()
        left = np.unique(judged.owners[is_beyond])
        stays = judged.without(left)
        if len(stays.heartbeats) or len(self._hours) > HOURS_AT_ONCE:
            return stays
        return judged.without(left[1:])

    def kept(self) -> Taken:
        """Return what was kept, without its ids. Raises LakeError."""
        return Taken(
            Side.BASE, self.contract, self._landed, heartbeats=self._good.written(), rejected=self._bad.written()
        )


class _Held:
    """Rows of a table on their way into files."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._rows: list[pa.Table] = []
        self._size = 0
        self._written: list[NewFile] = []

    def hold(self, rows: pa.Table) -> None:
        if len(rows):
            self._rows.append(rows)
            self._size += rows.nbytes
        if self._size >= FILE_BYTES:
            self.written()

    def written(self) -> Sequence[NewFile]:
        if self._rows:
            self._written += self._files.write(pa.concat_tables(self._rows))
        self._rows, self._size = [], 0
        return self._written


@dataclass
class Tracking:
    """Keeps the times of messages of tracking as a histogram. One that lags more than `laggard` is judged by
    its payload as well."""

    reader: HeartbeatReader
    copies: RememberedCopies
    laggard: timedelta | None
    clock: Clock
    contract: str = ""
    patience: timedelta = 2 * PATIENCE
    is_full: bool = False
    _parts: list[Counted] = field(default_factory=list)

    def keep(self, messages: Messages) -> Iterator[Part]:
        """Judge and count messages part by part."""
        asking = Asking(to_us(self.clock.now()), duration_us(self.patience))
        for counted in counted_parts(messages, self.reader, self.copies, asking, self.laggard):
            self._parts.append(counted)
            yield counted.messages, counted.undecided, ()

    def kept(self) -> Taken:
        """Return what was counted, without its ids."""
        histogram = sum((one.histogram for one in self._parts), Histogram.empty())
        keys, publish_us = (
            np.concatenate([np.empty(0, dtype=np.int64), *(getattr(one, name) for one in self._parts)])
            for name in ("keys", "publish_us")
        )
        attempt = self.copies.note(keys, publish_us)
        oldest = from_us(int(histogram.first_publish_us.min())) if len(histogram) else None
        tracked = Ingested(sum(one.messages - len(one.undecided) for one in self._parts), oldest)
        return Taken(Side.TRACKING, self.contract, tracked, histogram=histogram, attempt=attempt)


Keeper = Landing | Tracking
"""Judges messages, and keeps what they become."""


def take(
    batches: Iterable[PulledBatch], subscription: PubSubSubscription, keeper: Keeper, clock: Clock, until: float
) -> Taken:
    """Judge batches and keep what they become, until they end, or the time `until` by the monotonic clock is over, or
    the keeper is full. At least one part.

    What is undecided is given back at once, and in the end what is not looked at. Raises PubSubError or LakeError; then
    all of it was.
    """
    ack_ids, waiting, back, size = list[str](), Waiting(), list[str](), 0
    unread: Sequence[str] = ()
    try:
        for batch in batches:
            done, unread = 0, batch.ack_ids
            size += batch.size_bytes
            for messages, undecided, left in keeper.keep(batch.messages):
                ids, unread = unread[:messages], unread[messages:]
                published_us = batch.messages.published_us[done : done + messages]
                now, waits = clock.now(), defaultdict[int, list[str]](list)
                for position, why in undecided.items():
                    published = from_us(int(published_us[position]))
                    waits[seconds_of(now - published, keeper.patience)].append(ids[position])
                    waiting += Waiting(1, published, why.why)
                for seconds, these in waits.items():
                    subscription.give_back(these, seconds)
                back += [ids[position] for position in left]
                apart = {*undecided, *left}
                ack_ids += [one for position, one in enumerate(ids) if position not in apart] if apart else ids
                done += messages
                if keeper.is_full or clock.monotonic() >= until:
                    break
            is_over = bool(unread) or keeper.is_full or clock.monotonic() >= until
            back += unread
            unread = ()
            del batch  # before the next one is pulled
            if is_over:
                break
        kept = keeper.kept()
    except BaseException:
        subscription.give_back([*ack_ids, *back, *unread])
        raise
    subscription.give_back(back)
    used = Usage(landed=len(ack_ids), landed_bytes=size)
    if kept.side is Side.TRACKING:
        used = Usage(tracked=len(ack_ids), tracked_bytes=size)
    return replace(kept, ingested=replace(kept.ingested, waiting=waiting), ack_ids=ack_ids, used=used)


def seconds_of(waited: timedelta, patience: timedelta) -> int:
    """After how many seconds an undecided message is looked at again that has waited so long."""
    wait = min(LATEST, waited)
    if waited <= patience + SOONEST:
        wait = max(SOONEST, min(waited, patience - waited))
    return math.ceil(wait.total_seconds())


def pulled(
    subscription: PubSubSubscription,
    budget: Budget,
    clock: Clock,
    is_gone: Callable[[datetime, bool], bool] | None,
    *,
    is_paced: bool = False,
) -> Iterator[PulledBatch]:
    """Batches until the budget is spent, or until `is_gone` says, after a batch that was not full, that there is no
    backlog: it is given when the batch was begun, and whether it is small. None: until the budget is spent.

    While a batch is processed, a part of the next may be pulled ahead within the budget. A tick `is_paced`: it waits
    little for its first batch, and ends after SMALL_BATCHES.
    """
    until = clock.monotonic() + budget.max_time.total_seconds()
    messages, size, small = budget.max_messages, budget.max_bytes, 0
    at_most = FIRST_SECONDS if is_paced else budget.max_time.total_seconds()
    while messages > 0 and size > 0 and (left := until - clock.monotonic()) > 0:
        began, wanted = clock.now(), min(budget.batch_messages, messages)
        batch = subscription.pull(wanted, size, min(left, at_most), messages - wanted)
        found = len(batch)
        messages -= found
        size -= batch.size_bytes
        if found:
            yield batch
            del batch
        is_small = found < budget.batch_messages * SMALL_SHARE
        small = small + 1 if is_small else 0
        at_most = FURTHER_SECONDS if is_paced and small else left
        if is_gone is None or messages <= 0 or size <= 0 or found >= wanted:
            continue
        if (is_paced and small == SMALL_BATCHES) or is_gone(began, is_small):
            return


def after_a_small_batch(_began: datetime, is_small: bool) -> bool:
    """There is no backlog, as far as a batch tells that is nearly empty."""
    return is_small


def by_reading(backlog: Backlog, waits: Callable[[], object]) -> Callable[[datetime, bool], bool]:
    """Tell by a reading whether the backlog is gone: an empty pull does not prove that. What cannot be read now counts
    as gone: the next tick goes on. Where no reading is due, or an undecided message `waits`, a small batch tells it."""

    def is_gone(began: datetime, is_small: bool) -> bool:
        if waits():
            return is_small
        try:
            reading = backlog.read()
        except ReadingPostponed:
            return is_small
        except PubSubError as error:
            logger.warning("whether there is more to pull is not known: %s", error)
            return True
        return reading.no_later_than >= began - CAUGHT_UP

    return is_gone

"""Takes messages: pulls and judges them, and keeps the results. Messages of base are kept in durable files that no
table lists yet, and counts of tracking in memory. Leases are extended, and nothing is acknowledged.

If a reader dies or its result is lost, its messages are redelivered, and no table lists its files. Several readers may
take messages from one subscription at the same time.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Protocol

import numpy as np
import pyarrow as pa

from tidemark.pipeline.clock import HOUR_US, Clock, duration_us, from_us, to_us
from tidemark.pipeline.contract.heartbeat import PATIENCE, Asking, HeartbeatReader
from tidemark.pipeline.contract.messages import Ints, Messages
from tidemark.pipeline.errors import PubSubError, ReadingPostponed
from tidemark.pipeline.ingest.counting import NO_FIRSTS, Counted, RememberedCopies, counted_parts
from tidemark.pipeline.ingest.outcome import Ingested, Side, Taken, Waiting
from tidemark.pipeline.ingest.rows import JudgedRows, judged_rows
from tidemark.pipeline.lake.tables.new_files import NewFile
from tidemark.pipeline.pubsub.backlog import Backlog
from tidemark.pipeline.pubsub.subscription import PubSubSubscription, PulledBatch
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.usage import Usage

logger = logging.getLogger(__name__)

SMALL_SHARE = 0.05
"""A batch is small if it has less than this fraction of a full batch's messages. The backlog may be nearly gone."""

SMALL_BATCHES = 3
"""Number of consecutive small batches after which a tick ends, even if there is a backlog. Another consumer may have
leased the backlog's messages."""

FIRST_SECONDS = 0.4
"""Maximum duration, in seconds, of a tick's first pull. It is short, so that a tick without a backlog ends soon."""

FURTHER_SECONDS = 1.2
"""Maximum duration, in seconds, of a pull after a batch that was not full. It is short, so that the same tick can
re-pull the messages that were given back because of their event hours."""

CAUGHT_UP = timedelta(seconds=0.2)
"""The backlog counts as gone if its oldest message was published at most this long before the batch began. Reason:
messages become visible a moment after they are published, and clocks differ."""

BATCH_MESSAGES: Mapping[Side, int] = {Side.TRACKING: 25_000, Side.BASE: 20_000}
"""Number of messages per full batch, by subscription. A tick settles each batch as a whole."""

FILE_BYTES = 64 << 20
"""Size in bytes at which a reader writes its rows to files. The reader holds this much in memory, and a few times as
much while it writes."""

HOURS_AT_ONCE = 1000
"""Maximum number of different event hours that a reader keeps in one take. The reader writes a file for each hour. Half
of the hours are those of the messages published first, the others are the newest. Messages of other hours are given
back. A message with several heartbeats may exceed the limit, once per take, by at most MOST_HOURS."""

SOONEST, LATEST = timedelta(seconds=5), timedelta(seconds=60)
"""Minimum and maximum delay before an undecided message is redelivered.

Between these limits, the delay equals the time that the message has waited already, so redeliveries become less and
less frequent. While a message may still wait for its schema, the delay is at most the rest of that wait.
"""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for pulling. Pulling ends when the first limit is reached. `batch_messages` is the number of messages in a
    full batch."""

    max_messages: int
    max_bytes: int
    max_time: timedelta
    batch_messages: int


class Files(Protocol):
    """Writer of files that are durable but not visible."""

    def write(self, rows: pa.Table) -> list[NewFile]:
        """Write rows to files, and make the files durable. Raises LakeError."""


@dataclass
class Landing:
    """Judges messages of base, and keeps them in files.

    A heartbeat is late if its event time is below the `watermark` when its batch is judged. If a message's schema does
    not exist, the message stays undecided for `patience` after its publish time. Heartbeats of at most `most_hours`
    different event hours are kept.
    """

    heartbeats: Files
    quarantine: Files
    reader: HeartbeatReader
    watermark: Callable[[], datetime | None]
    clock: Clock
    patience: timedelta = PATIENCE
    most_hours: int = HOURS_AT_ONCE
    _landed: Ingested = field(default_factory=Ingested)
    _hours: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._good, self._bad = _Held(self.heartbeats), _Held(self.quarantine)

    @property
    def is_full(self) -> bool:
        return len(self._hours) >= self.most_hours

    def keep(self, messages: Messages) -> Iterator[JudgedRows]:
        """Judge and keep messages. Yield their rows, part by part. Raises LakeError."""
        watermark, asking = self.watermark(), Asking(to_us(self.clock.now()), duration_us(self.patience))
        for judged in judged_rows(messages, self.reader, asking, watermark, self._beyond_hours):
            self._good.hold(judged.heartbeats)
            self._bad.hold(judged.rejected)
            self._landed += Ingested.of(judged)
            yield judged

    def _beyond_hours(self, event_us: Ints, owners: Ints, published_us: Ints) -> Ints:
        """Return the positions of the messages to give back: those with a heartbeat outside the event hours that the
        reader keeps. Half of these hours are those of the messages published first, because such messages hold back the
        watermark. The other half are the newest hours. Exception: of the messages with heartbeats both inside and
        outside these hours, the one published first is kept with all its heartbeats."""
        hours, order = event_us // HOUR_US, np.argsort(published_us, kind="stable")
        new = [hour for hour in dict.fromkeys(hours[order].tolist()) if hour not in self._hours]
        room = self.most_hours - len(self._hours)
        half = room - room // 2
        self._hours.update(new[:half], sorted(new[half:], reverse=True)[: room - half])
        is_beyond = ~np.isin(hours, list(self._hours))
        left, inside = np.unique(owners[is_beyond]), owners[order[~is_beyond[order]]]
        return np.setdiff1d(left, inside[np.isin(inside, left)][:1])

    def kept(self) -> Taken:
        """Write the kept messages that are not in files yet, and return all of them. `take` adds their ack ids and the
        usage. Raises LakeError."""
        return Taken(Side.BASE, self.reader.judged_by, self._landed, self._good.written(), self._bad.written())


class _Held:
    def __init__(self, files: Files) -> None:
        self._files, self._rows, self._written = files, list[pa.Table](), list[NewFile]()

    def hold(self, rows: pa.Table) -> None:
        self._rows.append(rows)
        if sum(one.nbytes for one in self._rows) >= FILE_BYTES:
            self.written()

    def written(self) -> Sequence[NewFile]:
        if any(map(len, self._rows)):
            self._written += self._files.write(pa.concat_tables(self._rows))
        self._rows.clear()
        return self._written


@dataclass
class Tracking:
    """Judges messages of tracking, and keeps their times in a histogram. If a message lags more than `laggard` (None:
    never), its payload is judged too."""

    reader: HeartbeatReader
    copies: RememberedCopies
    laggard: timedelta | None
    clock: Clock
    patience: timedelta = 2 * PATIENCE
    is_full: bool = False
    _parts: list[Counted] = field(default_factory=list)

    def keep(self, messages: Messages) -> Iterator[Counted]:
        """Judge and count messages. Yield the counts, part by part."""
        asking = Asking(to_us(self.clock.now()), duration_us(self.patience))
        for counted in counted_parts(messages, self.reader, self.copies, asking, self.laggard):
            self._parts.append(counted)
            yield counted

    def kept(self) -> Taken:
        """Return the counted messages. `take` adds their ack ids and the usage."""
        histogram = sum((one.histogram for one in self._parts), Histogram.empty())
        firsts = np.concatenate([NO_FIRSTS, *(one.firsts for one in self._parts)], axis=1)
        oldest = from_us(int(histogram.first_publish_us.min())) if len(histogram) else None
        tracked = Ingested(oldest_publish_time=oldest)
        attempt = self.copies.note(*firsts)
        return Taken(Side.TRACKING, self.reader.judged_by, tracked, histogram=histogram, attempt=attempt)


Keeper = Landing | Tracking
"""Judges messages, and keeps the results until they are settled."""


def take(batches: Iterable[PulledBatch], subscription: PubSubSubscription, keeper: Keeper, until: float) -> Taken:
    """Judge batches and keep the results, until there are no more batches, the keeper is full, or the keeper's
    monotonic clock reaches `until`. The first part of the first batch is always kept.

    Undecided messages are given back immediately. Other messages that were not kept are given back at the end. Raises
    PubSubError or LakeError, after giving back all messages.
    """
    ack_ids, back, pulled, size, waiting = list[str](), list[str](), 0, 0, Waiting()
    unread: Iterator[str] = iter(())
    is_over = False
    try:
        for batch in batches:
            published_us, unread = batch.messages.published_us, iter(batch.ack_ids)
            pulled, size = pulled + len(batch), size + batch.size_bytes
            for part in keeper.keep(batch.messages):
                ids = list(islice(unread, part.messages))
                now, waits = keeper.clock.now(), defaultdict[int, list[str]](list)
                for position, undecided in part.undecided.items():
                    seconds = seconds_of(now - from_us(int(published_us[position])), keeper.patience)
                    waits[seconds].append(ids[position])
                    waiting += Waiting(1, undecided.why, now + timedelta(seconds=seconds))
                for seconds, these in waits.items():
                    subscription.give_back(these, seconds)
                back += [ids[position] for position in part.left]
                apart = {*part.undecided, *part.left}
                ack_ids += [one for position, one in enumerate(ids) if position not in apart] if apart else ids
                published_us = published_us[part.messages :]
                if is_over := keeper.is_full or keeper.clock.monotonic() >= until:
                    break
            back += unread
            del batch  # before the next one is pulled
            if is_over:
                break
        kept = keeper.kept()
    except BaseException:
        subscription.give_back([*ack_ids, *back, *unread])
        raise
    subscription.give_back(back)
    messages, is_base = len(ack_ids), kept.side is Side.BASE
    size = size * messages // max(pulled, 1)  # size of the kept messages, for the price of a reading
    used = Usage(landed=messages, landed_bytes=size) if is_base else Usage(tracked=messages, tracked_bytes=size)
    ingested = replace(kept.ingested, messages=messages, waiting=waiting)
    return replace(kept, ingested=ingested, ack_ids=ack_ids, used=used)


def seconds_of(waited: timedelta, patience: timedelta) -> int:
    """Return the delay, in whole seconds, before an undecided message is redelivered. `waited` is the time since its
    publish time."""
    wait = max(SOONEST, min(waited, patience - waited)) if waited <= patience + SOONEST else min(LATEST, waited)
    return math.ceil(wait.total_seconds())


@dataclass
class Batches:
    """Pulls batches from a subscription. A batch is small if it has less than SMALL_SHARE of the messages of a full
    one. Pulling ends when the budget is spent. Unless `until_spent` is true, it also ends in these cases:

    - A batch is not full, and then a reading of `backlog` fails or shows that the backlog is gone. An empty pull does
      not prove that the backlog is gone.
    - With `backlog`, SMALL_BATCHES batches in a row were small.
    - A batch is small, and the backlog is not read: there is no `backlog`, its reading is postponed, or `waits` is
      true. `waits` is true while an undecided message stays in the backlog, because a reading would then never find the
      backlog gone.

    While a batch is processed, messages of the next one may be pulled, within the budget. With `backlog`, the first
    pull is short, and so is each pull after a batch that is not full.
    """

    subscription: PubSubSubscription
    budget: Budget
    clock: Clock
    backlog: Backlog | None = None
    until_spent: bool = False
    waits: bool = False
    is_gone: bool = False

    def __iter__(self) -> Iterator[PulledBatch]:
        budget, clock, is_paced = self.budget, self.clock, self.backlog is not None
        until = clock.monotonic() + budget.max_time.total_seconds()
        messages, size, small = budget.max_messages, budget.max_bytes, 0
        at_most = FIRST_SECONDS if is_paced else budget.max_time.total_seconds()
        while messages > 0 and size > 0 and (left := until - clock.monotonic()) > 0:
            began, wanted = clock.now(), min(budget.batch_messages, messages)
            batch = self.subscription.pull(wanted, size, min(left, at_most), messages - wanted)
            found = len(batch)
            messages -= found
            size -= batch.size_bytes
            if found:
                yield batch
                del batch
            is_small = found < budget.batch_messages * SMALL_SHARE
            small = small + 1 if is_small else 0
            at_most = FURTHER_SECONDS if is_paced and found < wanted else left
            if self.until_spent or messages <= 0 or size <= 0 or found >= wanted:
                continue
            if is_paced and small == SMALL_BATCHES:
                return
            self.is_gone = self.looks_gone(began, is_small)
            if self.is_gone:
                return

    def looks_gone(self, began: datetime, is_small: bool) -> bool:
        """Return whether the backlog seems to be gone after a batch that began at `began`. A reading decides this.
        If no reading is made, the backlog counts as gone if the batch is small. If the reading fails, the backlog
        counts as gone, and the next tick continues."""
        if self.backlog is None or self.waits:
            return is_small
        try:
            reading = self.backlog.read()
        except ReadingPostponed:
            return is_small
        except PubSubError as error:
            logger.warning("cannot tell whether there is more to pull; the next tick continues: %s", error)
            return True
        return reading.no_later_than >= began - CAUGHT_UP

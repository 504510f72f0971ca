"""Requeues quarantined messages: judges them again by the current contract, and lands those that pass.

The steps for each message that passes are: search `heartbeats` for it, append it there if it is absent, and record its
id in the lake. The guarantee of `Requeuer` follows from this order. A later requeue skips recorded messages. If a
message is now rejected for a different reason, the new reason is recorded too.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from tidemark.pipeline.clock import Clock, from_us, to_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader
from tidemark.pipeline.contract.messages import MESSAGE, Messages
from tidemark.pipeline.errors import CorruptObject, PubSubUnreachable
from tidemark.pipeline.figures import counted
from tidemark.pipeline.ingest.outcome import Ingested, Waiting
from tidemark.pipeline.ingest.rows import JudgedRows, judged_rows
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.tables.heartbeats import message_columns, messages_of
from tidemark.pipeline.lake.tables.new_files import NewFiles
from tidemark.pipeline.lake.tables.quarantine import EVERY, REJUDGED, Rejected, judged_otherwise, without
from tidemark.pipeline.lake.tables.table import merged
from tidemark.pipeline.quality.landings import unknown_sentence
from tidemark.pipeline.watermark.histogram import bucket_of, bucket_start

BATCH_ROWS, BATCH_BYTES = 20_000, 64 << 20
"""Maximum number of messages per batch, and maximum size of a batch in bytes. They bound the memory, and the work that
is repeated after a kill. Smaller batches would make more commits."""

Progress = Callable[[int], None]
"""Function that is called with the number of messages processed since the last call."""


@dataclass(frozen=True, slots=True)
class Requeue(Ingested):
    """The result of a requeue or a dry run.

    - `heartbeats` is the number of heartbeats that pass and are new. `late` of them are below the newest watermark.
    - `there` is the number of heartbeats that pass and had landed before.
    - `rejected` is the number of messages that are rejected again, by current reason.
    - `waiting` counts the messages that cannot be judged, because their schema cannot be looked up now.

    Messages that an earlier requeue recorded are not counted, and `messages` is not set.
    """

    there: int = 0


class Requeuer:
    """Judges the quarantined messages of a lake again, by the contract of `reader`.

    Guarantee: each message that passes is in `heartbeats`. It may be there twice if two requeues run at the same time
    or if it is delivered during a requeue, but windows count it once. A killed requeue loses nothing, and the next one
    resumes. Nothing is removed from `quarantine`. A message with several heartbeats counts as rejected until all pass.
    """

    def __init__(self, lake: Lake, reader: HeartbeatReader, clock: Clock) -> None:
        self.quarantine, self.heartbeats, self.log = lake.quarantine(), lake.heartbeats(), lake.tracking_log()
        self.landing = NewFiles(self.heartbeats, clock)
        self.requeued, self.rejudged = lake.requeued(), lake.rejudged()
        self.reader, self.clock = reader, clock

    def run(self, selection: Rejected = EVERY, *, dry_run: bool = False, tell: Progress = lambda _: None) -> Requeue:
        """Judge the messages of `selection` again, in batches, oldest day first. With `dry_run`, write nothing. Raises
        LakeError. At the end, raises PubSubUnreachable if some messages cannot be judged now, and CorruptObject if
        files of `quarantine` are damaged. Messages that landed before an error stay landed, and the next requeue
        resumes."""
        done, damaged = Requeue(), dict[str, str]()
        for day in self.quarantine.days(selection.since):
            notes, rejudged = self.requeued.between(day, day), self.rejudged.by_day(day, day)[day]
            columns = [*REJUDGED, *(column.name for column in message_columns())]
            rejudged_us = pc.max(rejudged["judged_at_us"]).as_py() or 0  # in the future if the clock was set back
            rejected = self.quarantine.rejected(columns, selection, day, rejudged, damaged)  # in small parts
            for rows in merged(rejected, BATCH_BYTES, BATCH_ROWS):
                done += self._requeue(rows, day, notes, from_us(rejudged_us + 1), dry_run=dry_run)
                tell(len(rows))
        others = f"{counted(done.heartbeats, 'heartbeat')} of other messages {'would land' if dry_run else 'landed'}"
        if done.waiting.messages:
            raise PubSubUnreachable(
                f"{counted(done.waiting.messages, 'quarantined message')} cannot be judged now: {done.waiting.why}. "
                f"{others}. Requeue again later"
            )
        if damaged:
            raise CorruptObject(f"{unknown_sentence('to be requeued', damaged)}. {others}")
        return done

    def _requeue(self, rows: pa.Table, day: str, notes: list[str], told_at: datetime, *, dry_run: bool) -> Requeue:
        copies, rows = rows, _each_once(rows)
        first, last = (bucket_of(moment.as_py()) for moment in pc.min_max(rows["publish_time"]).values())
        noted = self.requeued.ids(self.requeued.touching(notes, first, last))
        rows = without(rows, noted)
        if not len(rows):
            return Requeue()
        done, to_note, to_tell = Requeue(), [], []
        now, messages = self.clock.now(), Messages(rows.select(MESSAGE.names).cast(MESSAGE))
        for judged in judged_rows(messages, self.reader, Asking(to_us(now)), self.log.newest().watermark):
            passing = without(judged.heartbeats, noted)
            ids = passing["message_id"].combine_chunks()
            # They have landed if another delivery passed, or if an earlier requeue was killed after landing them.
            there = self.heartbeats.landed_of(ids, bucket_start(first), bucket_start(last + 1)) if len(ids) else ids
            fresh = without(passing, there)
            if len(fresh) and not dry_run:
                self.landing.add(self.landing.write(fresh), {})
            to_note.append(_settled(judged, passing))
            to_tell.append(judged_otherwise(copies, judged.rejected))
            waiting = sum((Waiting(1, one.why) for one in judged.undecided.values()), Waiting())
            found = Requeue.of(replace(judged, heartbeats=fresh))
            done += replace(found, there=len(passing) - len(fresh), waiting=waiting)
        if any(map(len, to_note)) and not dry_run:
            notes.append(self.requeued.note(day, (first, last), pa.concat_arrays(to_note)))
        if any(map(len, to_tell)) and not dry_run:
            self.rejudged.note(day, pa.concat_tables(to_tell), max(self.clock.now(), told_at))
        return done


def _settled(judged: JudgedRows, passing: pa.Table) -> pa.Array:
    """Return the ids to record in a note: the id of each message whose heartbeats all pass, and for every other message
    the ids of its heartbeats in `passing`."""
    rejected = judged.rejected["message_id"].combine_chunks()
    messages = pc.unique(messages_of(judged.heartbeats["message_id"]))
    whole = messages.filter(pc.invert(pc.is_in(messages, rejected)))
    of_others = pc.is_in(messages_of(passing["message_id"]), rejected)
    return pa.concat_arrays([whole, passing.filter(of_others)["message_id"].combine_chunks()])


def _each_once(rows: pa.Table) -> pa.Table:
    """Return the first row of each message. A message that was delivered twice has two rows."""
    numbered = pa.table({"message_id": rows["message_id"], "row": pa.array(range(len(rows)), pa.int64())})
    firsts = numbered.group_by("message_id", use_threads=False).aggregate([("row", "min")])["row_min"]
    return rows.take(firsts) if len(firsts) < len(rows) else rows

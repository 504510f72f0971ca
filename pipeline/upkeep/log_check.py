"""Whether the tracking log is whole: every entry there and as it was written, and none lost from its end.

A loss in the middle is a gap, and damage breaks an entry's seal. A lost end shows neither, so what stands elsewhere is
compared with it, which could not be as it is had the log never been longer: notes of its entries, the watermark that
runs relied on, and messages that have landed though tracking, which had passed them, never counted them.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.clock import iso
from pipeline.errors import CorruptObject, ObjectMissing
from pipeline.lake.log.history import decision_in_force
from pipeline.lake.log.tracking_log import TrackingLog, entry_name
from pipeline.lake.log.witness import Note, lost_end
from pipeline.lake.tables.heartbeats import Heartbeats
from pipeline.lake.tables.windowed import WindowedTable
from pipeline.quality.audit import AT_ONCE, with_seconds
from pipeline.replay.log_ticks import READ_AHEAD, READERS, recorded_ticks
from pipeline.watermark.histogram import bucket_of, bucket_start
from pipeline.watermark.state import Compacted, DecisionRecord, Entry, Lost, Snapshot
from pipeline.windows import Windowing

MANIFESTS_TRIED = 50
"""Where those of the newest runs cannot be read, so many are asked for before it is left at that."""


@dataclass(frozen=True, slots=True)
class LogHealth:
    """What was found: how many entries were read; what is wrong with which; which were forgotten, and why; in words,
    what says that entries were lost from the end."""

    read: int = 0
    damaged: Sequence[tuple[int, str]] = ()
    forgotten: Sequence[tuple[int, str]] = ()
    lost: Sequence[str] = ()

    @property
    def is_whole(self) -> bool:
        """Whether nothing has to be done about it."""
        return not self.damaged and not self.lost


@dataclass(frozen=True, slots=True)
class ReliedOn:
    """The highest watermark that runs are known to have relied on, so that the log has had a decision of it; None where
    nothing is computed. And, in words, which manifests could not be read that may have known of a higher one."""

    watermark: datetime | None = None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Untracked:
    """Messages that have landed and that tracking never counted, although it had passed them: how many, and the
    publish seconds that the first and the last of them lie in."""

    messages: int = 0
    first: datetime | None = None
    last: datetime | None = None

    @property
    def sentence(self) -> str:
        """What it means."""
        if self.first is None or self.last is None:
            return "all that has landed was tracked"
        return (
            f"{self.messages} messages that were published from {iso(self.first)} to {iso(self.last)} have landed, and "
            "the tracking log never counted them, though tracking had passed them: entries of the log are lost, or "
            "somebody else acknowledges on the tracking subscription"
        )


def check_log(
    log: TrackingLog, since: datetime, note: Note | None = None, tell: Callable[[int, int], None] | None = None
) -> LogHealth:
    """Read the log backwards, to a compacted entry before the decision that was in force at `since`: what a restart
    needs, and what explains that time. `note` is the newest that was taken of the log's length.

    Raises LakeUnreachable; what is damaged is told, not raised.
    """
    numbers = log.numbers()
    last = numbers[-1] if numbers else -1
    damaged: list[tuple[int, str]] = []
    forgotten: list[tuple[int, str]] = []
    read, is_before, is_compacted = 0, False, False
    for number, entry in _backwards(log, numbers):
        read += 1
        is_compacted = isinstance(entry, Compacted)
        match entry:
            case str():
                damaged.append((number, entry))
            case Lost():
                forgotten.append((number, entry.what))
            case DecisionRecord():
                is_before = is_before or entry.decision.at <= since
            case Compacted() if is_before:
                break
        if tell is not None:
            tell(read, len(numbers))
    else:
        if numbers and numbers[0] and not is_compacted:  # housekeeping leaves a compacted one first
            damaged.append((numbers[0] - 1, f"{entry_name(numbers[0] - 1)}, and what is before it, is missing"))
    lost = [] if note is None or note.number <= last else [lost_end(note, last)]
    return LogHealth(read, sorted(damaged), sorted(forgotten), lost)


def relied_on(diffs: WindowedTable, windowing: Windowing) -> ReliedOn:
    """How far the watermark is known to have come by what is computed.

    It had passed the newest window's end; and the manifests of the newest window's run and of the newest run say the
    rest. Where one of these cannot be read, the next older one that can is taken. Raises LakeError.
    """
    committed = diffs.table.committed_ms()
    if not committed:
        return ReliedOn()
    found = []
    with suppress(ValueError):  # windows had another length then
        found.append(windowing.named(max(committed)).end)
    runs, unread = diffs.runs(committed), dict[str, str]()
    for newest_first in (sorted(committed, reverse=True), sorted(committed, key=committed.__getitem__, reverse=True)):
        for run in islice(dict.fromkeys(runs[key] for key in newest_first), MANIFESTS_TRIED):
            try:
                found.append(datetime.fromisoformat(diffs.manifest(run)["watermark"]))
            except (ObjectMissing, CorruptObject) as error:
                unread[run] = str(error)
            else:
                break
    return ReliedOn(max(found, default=None), tuple(unread.values()))


def untracked(log: TrackingLog, heartbeats: Heartbeats, start: datetime, end: datetime) -> Untracked:
    """Of what was published in `[start, end)` and has landed, what the log should have counted and has not.

    Looked at is what tracking had passed by the newest decision, and knows all of. Assumptions: the readings of
    tracking are true after slack, and messages are judged by the contract that they were judged by then. A message is
    told by its publish and event second, so that one that shares both with a counted one is not seen. Raises LakeError.
    """
    newest = decision_in_force(log)
    decision = None if newest is None else newest[1].decision
    if newest is None or decision is None or decision.tracking is None or decision.complete_from is None:
        return Untracked()
    passed = bucket_of(decision.tracking.oldest_unacked - newest[1].policy.reading_slack)
    state, ticks = recorded_ticks(log, start)
    known_from = max(bucket_of(start), bucket_of(decision.complete_from) + 1, state.pruned_before or 0)
    tracked = state.histogram
    for tick in ticks:
        for entry in tick.entries:
            if isinstance(entry, Snapshot):
                tracked += entry.histogram
    cells = pa.table({"second": tracked.publish_bucket, "event": tracked.event_bucket})
    found = []
    until = min(bucket_of(end), passed)
    for low in range(known_from, until, AT_ONCE):
        between = (bucket_start(low), bucket_start(min(low + AT_ONCE, until)))
        rows = with_seconds(
            heartbeats.published_between(*between, ("message_id", "publish_time", "event_time")),
            "publish_time",
            "event_time",
        )
        of_none = rows.join(cells, ["second", "event"], join_type="left anti", use_threads=False)
        found.append(of_none.group_by(["message_id"], use_threads=False).aggregate([("second", "min")]))
    lacking = pa.concat_tables(found) if found else pa.table({"second_min": pa.array([], pa.int64())})
    if not lacking.num_rows:
        return Untracked()
    seconds = pc.min_max(lacking["second_min"])
    return Untracked(lacking.num_rows, bucket_start(seconds["min"].as_py()), bucket_start(seconds["max"].as_py()))


def _backwards(log: TrackingLog, numbers: Sequence[int]) -> Iterator[tuple[int, Entry | str]]:
    """Each entry from the newest to the oldest that is there, or what is wrong with it; a few are read ahead."""
    present = set(numbers)

    def look(number: int) -> Entry | str:
        if number not in present:
            return f"{entry_name(number)} is missing"
        try:
            return log.entry(number)
        except ObjectMissing:
            return f"{entry_name(number)} is missing"
        except CorruptObject as error:
            return str(error)

    pool = ThreadPoolExecutor(READERS, thread_name_prefix="log-check")
    asked: deque[tuple[int, Future[Entry | str]]] = deque()
    try:
        for number in range(numbers[-1], numbers[0] - 1, -1) if numbers else ():
            asked.append((number, pool.submit(look, number)))
            if len(asked) >= READ_AHEAD:
                first, entry = asked.popleft()
                yield first, entry.result()
        while asked:
            first, entry = asked.popleft()
            yield first, entry.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)

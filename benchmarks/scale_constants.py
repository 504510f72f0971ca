"""`python -m benchmarks.scale_constants`: measures the constants of `benchmarks/scale.py` on this machine.

Made messages and a lake on this disk; no Pub/Sub, no Spark. Each figure is the median of some rounds.
"""

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
from google.pubsub_v1 import AcknowledgeRequest

from benchmarks.memory import peak_bytes
from benchmarks.traffic import REGULAR, MadeSubscription
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import Asking
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.ingest.counting import RememberedCopies
from tidemark.pipeline.ingest.outcome import Taken
from tidemark.pipeline.ingest.rows import judged_rows
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.ingest.take import Keeper, Landing, Tracking, take
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.codec import encode
from tidemark.pipeline.lake.tables.new_files import NewFile, NewFiles
from tidemark.pipeline.pubsub.pulls import ACK_ID, ANSWER, received_of
from tidemark.pipeline.pubsub.schemas import reader_of
from tidemark.pipeline.pubsub.subscription import PulledBatch
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_sections import LakeSettings
from tidemark.pipeline.upkeep.table_chores import compact
from tidemark.pipeline.watermark.histogram import Histogram
from tidemark.pipeline.watermark.state import Snapshot

START = datetime(2026, 11, 1, 12, 20, tzinfo=UTC)
ROUND = timedelta(seconds=5)
ROUNDS = 3
HOUR_OF_PIECES = (72, 360, 1440)
FILES_THERE, FILES_ADDED = 2_000, 100
RATES = (333, 3_300, 33_000)
BATCH, ID_BYTES, IDS, IDS_PER_CALL = 20_000, 200, 100_000, 1_000


def main() -> None:
    """Print the constants."""
    for pieces in HOUR_OF_PIECES:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as apart:
            print(apart.submit(compaction, pieces).result())
    with tempfile.TemporaryDirectory(prefix="tidemark-scale-") as folder:
        settings = Settings(lake=LakeSettings(uri=f"file:{folder}/lake"))
        for rate in RATES:
            readers(settings, rate)
        commits(settings, Path(folder))
    ids()


def compaction(pieces: int) -> str:
    """Compact an hour of so many files of 16,500 rows each: seconds, and the memory of the process before and after."""
    with tempfile.TemporaryDirectory(prefix="tidemark-scale-") as folder:
        settings = Settings(lake=LakeSettings(uri=f"file:{folder}/lake"))
        clock, reader = SystemClock(), reader_of(settings.contract, settings.pubsub)
        table = Lake(settings.lake, settings.message.kinds, clock).heartbeats()
        new, now = NewFiles(table, clock), clock.now()
        batch = Made(replace(REGULAR, streams=3_300 * 30)).pull(16_500, 1 << 30, 1.0)
        rows = next(judged_rows(batch.messages, reader, Asking(to_us(now)), None)).heartbeats
        new.add([file for _ in range(pieces) for file in new.write(rows)], {})
        before, began = peak_bytes(), time.monotonic()
        rewritten = list(compact(table, "2030", "event_time"))
        return (
            f"compacting {pieces * len(rows):,} rows, {len(rewritten)} hour: {time.monotonic() - began:.1f} s, "
            f"{before / 1e6:.0f} MB before and {peak_bytes() / 1e6:.0f} MB at its peak"
        )


def readers(settings: Settings, rate: int) -> None:
    """Print the cost of one reader's part of a round at this rate: its time, and its file's and histogram's sizes."""
    source = replace(REGULAR, streams=rate * 30)
    clock, reader, messages = SystemClock(), reader_of(settings.contract, settings.pubsub), int(rate * 5)
    heartbeats, quarantine = new_files(Lake(settings.lake, settings.message.kinds, clock), clock)
    made, until = Made(source), clock.monotonic() + timedelta(minutes=30).total_seconds()
    answers = [made.answer(min(BATCH, messages - first)) for first in range(0, messages, BATCH)]

    def batches() -> Iterator[PulledBatch]:
        for answer in answers:
            received = received_of(answer)
            yield PulledBatch(Messages(received.drop_columns(ACK_ID)), received[ACK_ID].to_pylist(), len(answer))

    def taken(keeper: Keeper) -> Taken:
        return take(batches(), made, keeper, until)

    def landed() -> Taken:
        return taken(Landing(heartbeats, quarantine, reader, lambda: None, clock))

    def counted() -> Taken:
        return taken(Tracking(reader, RememberedCopies(timedelta(minutes=10)), settings.policy.band, clock))

    landing, counting = seconds_of(landed), seconds_of(counted)
    file = landed().heartbeats[0]
    histogram = counted().histogram
    entry = encode(Snapshot(histogram), "bench")
    print(
        f"{rate}/s: {messages} messages: landing {landing / messages * 1e6:.1f} µs each, counting "
        f"{counting / messages * 1e6:.1f} µs each, {file.size / file.rows:.1f} bytes a row in a file of {file.rows}, "
        f"{len(histogram.count)} cells, entry {len(entry)} bytes"
    )


class Made(MadeSubscription):
    """Messages of a round, without an end before the budget's."""

    def __init__(self, source: object) -> None:
        super().__init__(source, START, START + ROUND * 2)  # type: ignore[arg-type]

    def answer(self, messages: int) -> bytes:
        """Return this many messages, encoded as an answer to a pull."""
        made = [message for rows in self._next(messages) for message in self._messages(rows)]
        received = [{"message": message, "ack_id": f"{message.message_id:0>{ID_BYTES}}"} for message in made]
        return bytes(ANSWER(received_messages=received).SerializeToString())


def commits(settings: Settings, folder: Path) -> None:
    """A transaction of so many files, beside so many that are there: seconds, and bytes of the log for each file."""
    clock = SystemClock()
    table = Lake(settings.lake, settings.message.kinds, clock).heartbeats()
    new = NewFiles(table, clock)
    times, texts = ("event_time", "publish_time", "landed_at"), ("stream_id", "publisher_id", "message_id")
    least = {**dict.fromkeys(times, "2026-11-01T12:20:00.000000Z"), **dict.fromkeys(texts, "0" * 16), "late": False}
    greatest = {**dict.fromkeys(times, "2026-11-01T12:20:05.000000Z"), **dict.fromkeys(texts, "9" * 16), "late": True}
    stats = {"minValues": least, "maxValues": greatest, "nullCount": {}}

    def files(count: int) -> list[NewFile]:
        return [
            NewFile(f"event_hour=2026-11-01T12Z/part-{time.time_ns()}-{n:030}.parquet", "2026-11-01T12Z", 1, 1, stats)
            for n in range(count)
        ]

    for there in (0, FILES_THERE, 10 * FILES_THERE):
        if there:
            new.add(files(there), {})
        few, many = seconds_of(lambda: new.add(files(1), {})), seconds_of(lambda: new.add(files(FILES_ADDED), {}))
        log = sorted((folder / "lake/heartbeats/_delta_log").glob("*.json"), key=lambda one: one.stat().st_mtime)[-1]
        print(f"{there} files there: a commit of 1 takes {few * 1e3:.1f} ms, of {FILES_ADDED} {many * 1e3:.1f} ms; "
              f"{log.stat().st_size / FILES_ADDED:.0f} bytes of the log a file")  # fmt: skip


def ids() -> None:
    """The driver's memory and time for each id."""
    tracemalloc.start()
    arrow = pa.array([f"{n:0{ID_BYTES}}" for n in range(IDS)])
    before = tracemalloc.get_traced_memory()[0]
    held = arrow.to_pylist()
    each = (tracemalloc.get_traced_memory()[0] - before) / IDS + arrow.nbytes / IDS
    tracemalloc.stop()
    encoded = seconds_of(
        lambda: [
            AcknowledgeRequest.pb()(subscription="s", ack_ids=held[n : n + IDS_PER_CALL]).SerializeToString()
            for n in range(0, IDS, IDS_PER_CALL)
        ]
    )
    histogram = Histogram.of(*(pa.array(range(20_000)).to_numpy() * 1_000_000 for _ in range(2)))
    summed = seconds_of(lambda: sum((histogram for _ in range(100)), Histogram.empty()))
    print(
        f"an id takes {each:.0f} bytes of the driver, and {encoded / IDS * 1e6:.2f} µs to be sent; summing a "
        f"histogram of 20,000 cells takes {summed * 10:.1f} ms"
    )


def seconds_of(call: Callable[[], object]) -> float:
    """Median of the processor's seconds."""
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return statistics.median(taken)


if __name__ == "__main__":
    main()

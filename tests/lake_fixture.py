"""A small lake with one of everything that a later program reads back: `python -m tests.lake_fixture`.

It makes `tests/fixtures/lake-<format>/`, which every later version must read. Make one when the format is raised, and
keep those of earlier formats as they are. What is in it is the same each time, but for files' names.
"""

import json
import shutil
import sys
import uuid
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.emulator.builders import a_subscription
from tests.ingest.fakes import ACK_DEADLINE, AMPLE, KEPT, TOPIC, World, WorldSubscription
from tests.lake_reading import RUN, lake_in, said_by, settings_in, tuning_facts
from tests.watermark.builders import at
from tidemark.pipeline import version
from tidemark.pipeline.compute.columns import DiffPlan
from tidemark.pipeline.compute.slices import DIFFS, STATUSES, Work, cut, new_file
from tidemark.pipeline.ingest.settle import new_files
from tidemark.pipeline.ingest.source.named import land_named
from tidemark.pipeline.ingest.take import Batches
from tidemark.pipeline.lake.landings import LandedBatches
from tidemark.pipeline.lake.layout import Lake
from tidemark.pipeline.lake.log.packing import LogPacking
from tidemark.pipeline.lake.tables.table import MOMENT
from tidemark.pipeline.lake.tables.windowed import DiffRun
from tidemark.pipeline.quality.staleness import Staleness
from tidemark.pipeline.replay.replay import decide_again, replayed, write_decisions
from tidemark.pipeline.replay.sources import ParquetTrace
from tidemark.pipeline.replay.trace import ticks_of
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.tuning.page import write_report
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.windows import Window

FIXTURES = Path(__file__).parent / "fixtures"
CONFIG = """\
[pubsub]
project = "fixture"
emulator_host = "127.0.0.1:1"

[message.fields]
load = "number"

[windows]
first = "2026-11-21T00:00:00Z"

[lake]
uri = "file:lake"
"""
MINUTE = 60.0
LATER = 3 * 3600.0
"""When the streams begin again after a silence, in seconds from the start."""


def world_in(folder: Path, seconds: float = 0.0) -> World:
    """Processes on the lake of this folder, beside a Pub/Sub that begins so long after the start."""
    settings = settings_in(folder)
    world = World(folder, lake=settings.lake, policy=settings.policy)
    world.clock.advance(timedelta(seconds=seconds))
    return world


def make(folder: Path) -> None:
    """Build the lake, a trace, and a file of decisions. Assumption: the folder is empty."""
    folder.mkdir(parents=True)
    (folder / "tidemark.toml").write_text(CONFIG, encoding="utf-8")
    world = world_in(folder)
    settings, lake = settings_in(folder), lake_in(folder, world.clock)
    morning(world)
    compute_here(lake, settings, closed(lake, settings))
    world.topic.publish(200.0, stream="straggler", payload={"load": 7}, publisher_id="late")
    world.tick()  # late, and missed by what is computed
    lake.kept_windows(settings.windowing).raise_to(settings.windowing.containing(at(0)))
    world.wait(LATER - (world.clock.now() - at(0)).total_seconds())
    world.model.create_subscription(a_subscription("spark", TOPIC, ACK_DEADLINE, KEPT), world.clock.now())
    beats(world, LATER, ["a", "b"])
    world.tick()
    land_for_spark(world)
    world.wait(MINUTE)
    world.topic.publish(LATER + 50, stream="a", publisher_id="outstanding")  # tracked, and not landed
    world.track()
    LogPacking(lake.objects()).pack(world.clock.now() - timedelta(hours=1))
    staleness = Staleness(lake, settings.windowing)
    staleness.check()
    staleness.keep()
    lake.streams().save()
    write_report(lake.objects(), at(LATER), "<p>a page</p>", tuning_facts(lake, settings), keep=3)
    write_trace(folder / "trace.parquet")
    trace = ParquetTrace(folder / "trace.parquet")
    ticks = ticks_of(trace, timedelta(seconds=10), Policy().idle_timeout)
    write_decisions(
        folder / "decisions.parquet", replayed([one.decision for one in decide_again(ticks, Policy())], trace)
    )


def morning(world: World) -> None:
    """Some minutes of three streams, of which one stops, with a copy and two messages that are rejected."""
    for minute in range(14):
        beats(world, minute * MINUTE, ["a", "b", "c"] if minute < 4 else ["a", "b"])
        if minute == 2:
            world.topic.publish("yesterday", stream="a")
            world.topic.publish(minute * MINUTE, stream="b", payload=b"not JSON")
            world.topic.publish(minute * MINUTE - 5, stream="a", payload={"load": 2}, publisher_id="a-2")
        world.wait(MINUTE)
        if minute % 4 == 1:
            world.tick()


def beats(world: World, seconds: float, streams: Sequence[str]) -> None:
    for number, stream in enumerate(streams):
        minute = int(seconds // MINUTE)
        payload = {"load": minute + number / 4}
        world.topic.publish(seconds - 5 + number, stream=stream, payload=payload, publisher_id=f"{stream}-{minute}")


def land_for_spark(world: World) -> None:
    """What `format("pubsub")` leaves for a batch that is not over, and for one that is."""
    batches = LandedBatches(world.lake().objects(), RUN)
    batches.end(1, keep=1)
    _, quarantine = new_files(world.lake(), world.clock)
    land_named(
        batches.name(2, 0),
        Batches(WorldSubscription(world, "spark"), AMPLE, world.clock),
        objects=world.lake().objects(),
        quarantine=quarantine,
        watermark=at(0),
        reader=world.reader,
        is_over=lambda: batches.is_over(2),
    )


def closed(lake: Lake, settings: Settings) -> list[Window]:
    """The closed windows that are to be computed, in order."""
    watermark = lake.tracking_log().newest().watermark
    numbers = lake.kept_windows(settings.windowing).closed(watermark)
    due = lake.window_index(settings.windowing).update().due(numbers)
    return [settings.windowing.numbered(number) for number in sorted(number for part in due for number in part)]


def compute_here(lake: Lake, settings: Settings, windows: Sequence[Window]) -> None:
    """Compute neighbouring windows as a run does, in this process in place of Spark's."""
    diffs, status, keys = lake.diffs(), lake.stream_status(), [window.key for window in windows]
    plan = DiffPlan(
        fields=settings.message.kinds,
        lookback=settings.windows.lookback,
        period=settings.windows.heartbeat_period,
        window_length=settings.windows.length,
    )
    for table in (diffs, status):
        table.hold_to(settings.windows.length)
    fences = diffs.fence(keys), status.fence(keys)
    watermark = lake.tracking_log().newest().watermark
    assert windows[-1].end <= watermark
    files = lake.heartbeats().files_between(windows[0].start - plan.lookback, windows[-1].end)
    run = DiffRun(f"by-hand-{uuid.uuid4().hex[:8]}", keys, files.version, watermark, lake._clock.now())
    diffs.leave_manifest(run)
    slices = cut(windows, files, plan.lookback, cores=1)
    work = Work(run.name, plan, slices, {}, diffs.files, status.files)
    answers = [answer for one in slices for answer in work.answers(one)]
    for name, table, fence in ((STATUSES, status, fences[1]), (DIFFS, diffs, fences[0])):
        table.replace(run, fence, [new_file(answer) for answer in answers if answer["table"] == name])


def write_trace(path: Path) -> None:
    """Messages every ten seconds, of which some come late, one is rejected, and one has not landed."""
    published = [at(10.0 * number) for number in range(12)]
    happened = [None if number == 5 else at(10.0 * number - number % 4) for number in range(12)]
    landed = [None if number == 11 else at(10.0 * number + 4) for number in range(12)]
    columns = {
        "message_id": [str(number) for number in range(12)],
        "stream_id": ["a", "b"] * 6,
        "publish_time": pa.array(published, MOMENT),
        "event_time": pa.array(happened, MOMENT),
        "tracked_at": pa.array([at(10.0 * number + 2) for number in range(12)], MOMENT),
        "landed_at": pa.array(landed, MOMENT),
    }
    pq.write_table(pa.table(columns, metadata=version.marks()), path)


if __name__ == "__main__":
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else FIXTURES / f"lake-{version.FORMAT}"
    shutil.rmtree(place, ignore_errors=True)
    make(place)
    (place / "expected.json").write_text(json.dumps(said_by(place), indent=1) + "\n", encoding="utf-8")
    print(f"{place}: {sum(file.stat().st_size for file in place.rglob('*') if file.is_file())} bytes")

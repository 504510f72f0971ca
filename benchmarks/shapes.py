"""Judging messages of each shape, for landing and for tracking, beside JSON objects with all ids in attributes."""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from google.pubsub_v1 import PubsubMessage

from benchmarks.measures import Measure
from tidemark.local.demo.shapes.all_shapes import SHAPES
from tidemark.local.demo.shapes.shape import Beat, Shape, ShapeName
from tidemark.pipeline.clock import SystemClock, to_us
from tidemark.pipeline.contract.heartbeat import Asking, HeartbeatReader
from tidemark.pipeline.contract.messages import Messages
from tidemark.pipeline.errors import ServiceFailed
from tidemark.pipeline.ingest.counting import RememberedCopies, counted_parts
from tidemark.pipeline.ingest.rows import judged_rows
from tidemark.pipeline.pubsub.pulls import table_of
from tidemark.pipeline.settings import load_settings

BEATS, STREAMS = 20_000, 1000
NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
ASKING = Asking(to_us(NOW))


@dataclass(frozen=True, slots=True)
class Prepared:
    """Messages of one shape, and what judges them."""

    messages: Messages
    reader: HeartbeatReader

    def land(self) -> None:
        """As landing judges a batch. Raises ServiceFailed if a beat is not taken: then it does other work."""
        parts = list(judged_rows(self.messages, self.reader, ASKING, NOW))
        if sum(len(part.heartbeats) for part in parts) % BEATS or any(len(part.rejected) for part in parts):
            raise ServiceFailed("not every beat became a heartbeat; mend benchmarks/shapes.py")

    def track(self) -> None:
        """As tracking counts one."""
        for _ in counted_parts(self.messages, self.reader, RememberedCopies(timedelta(0)), ASKING, None):
            pass


def measure_shapes(rounds: int, scale: float) -> list[Measure]:
    """Microseconds for each beat, by shape; `scale` changes nothing, since a batch is a batch."""
    del scale
    with TemporaryDirectory() as folder:
        prepared = {name: _prepared(shape, Path(folder) / name) for name, shape in SHAPES.items()}
        measures = []
        for stage, work in (("land", Prepared.land), ("track", Prepared.track)):
            seconds: dict[ShapeName, list[float]] = {name: [] for name in prepared}
            for number in range(rounds * 3 + 1):
                for name in sorted(prepared, reverse=bool(number % 2)):
                    seconds[name].append(_seconds(work, prepared[name]))
            measures += [
                Measure(
                    f"{stage}_{name}",
                    [1e6 * each / BEATS for each in seconds[name][1:]],
                    [1e6 * each / BEATS for each in seconds[ShapeName.JSON][1:]],
                    None,
                    "lower",
                    "us",
                    f"time of {stage}'s judging for each of {BEATS:,} beats in {len(prepared[name].messages):,} "
                    "messages, beside json",
                )
                for name in prepared
                if name is not ShapeName.JSON
            ]
    return measures


def _seconds(work: Callable[[Prepared], None], prepared: Prepared) -> float:
    gc.collect()
    clock = SystemClock()
    began = clock.monotonic()
    work(prepared)
    return clock.monotonic() - began


def _prepared(shape: Shape, folder: Path) -> Prepared:
    (folder / "schemas").mkdir(parents=True)
    for name, content in shape.files.items():
        (folder / name).write_text(content)
    (folder / "tidemark.toml").write_text(shape.settings)
    newest_ms = to_us(NOW) // 1000
    beats = [
        Beat(newest_ms - number % 5000, f"stream-{number % STREAMS:05d}", str(number), 9, 20.5, "ok", "heartbeat")
        for number in range(BEATS)
    ]
    made = shape.messages([shape.expressible(beat) for beat in beats])
    messages = [
        PubsubMessage(data=message.payload, attributes=message.attributes, message_id=str(number), publish_time=NOW)._pb
        for number, message in enumerate(made)
    ]
    return Prepared(Messages(table_of(messages)), HeartbeatReader(load_settings(folder / "tidemark.toml").contract))

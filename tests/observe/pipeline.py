"""A pipeline with a page, and without Dagster and Spark: its ticks are told to a recorder as those of sensors are."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tests.lake.builders import version_of
from tidemark.pipeline.clock import Clock, to_us
from tidemark.pipeline.contract.heartbeat import HeartbeatReader
from tidemark.pipeline.errors import TidemarkError
from tidemark.pipeline.ingest.readers import new_files
from tidemark.pipeline.ingest.take import Budget
from tidemark.pipeline.ingest.ticks import land, track
from tidemark.pipeline.lake.layout import OpenLake
from tidemark.pipeline.lake.tables.windowed import DiffRun
from tidemark.pipeline.observe.outlet import outlet_of
from tidemark.pipeline.observe.recorder import Recorder
from tidemark.pipeline.quality.running import TickNotes
from tidemark.pipeline.quality.status import read_waiting
from tidemark.pipeline.settings import Settings

BUDGET = Budget(max_messages=20_000, max_bytes=1 << 26, max_time=timedelta(seconds=5), batch_messages=2000)


@dataclass
class Pipeline:
    """`subscription` and `backlog` make the parts that reach a subscription by its path."""

    settings: Settings
    clock: Clock
    subscription: Callable[[str], Any]
    backlog: Callable[[str], Any]
    errors: list[TidemarkError] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lake = OpenLake(self.settings.lake, self.settings.message.kinds, self.clock)
        tick, metrics = self.settings.watermark.tick, self.settings.metrics
        self.recorder = Recorder(
            self.settings, {"landing": tick, "tracking": tick}, [], self.clock, lambda: outlet_of(metrics)
        )
        self.notes = TickNotes(self.settings, self.clock)
        self.recorder.begin("landing")
        pubsub = self.settings.pubsub
        self.tracking, self.base = (self.subscription(path) for path in (pubsub.tracking_path, pubsub.base_path))
        self.backlogs = self.backlog(pubsub.tracking_path), self.backlog(pubsub.base_path)
        self.reader, self.log = HeartbeatReader(self.settings.contract), self.lake.tracking_log()

    def tick(self, sensors: Sequence[str] = ("landing", "tracking")) -> None:
        """Ticks of these sensors. One that fails leaves a note."""
        for sensor in sensors:
            try:
                self._land() if sensor == "landing" else self._track()
            except TidemarkError as error:
                self.errors.append(error)
                self.recorder.ticked(sensor, 0.1, self.notes.failed(sensor, error, self.lake.failed_ticks()))
            else:
                self.recorder.ticked(sensor, 0.1)
                self.notes.good(sensor, self.lake.failed_ticks())

    def compute(self) -> None:
        """What runs of Spark would leave of the windows that wait, without the rows."""
        windowing, watermark = self.settings.windowing, self.log.newest_watermark()
        names = [one.key for one in read_waiting(self.lake, windowing, self.settings.windows.lookback, watermark)]
        diffs, version, now = self.lake.diffs(), version_of(self.lake.heartbeats()), self.clock.now()
        if names and version is not None:
            run = DiffRun(f"run{to_us(now)}", names, version, now, now)
            fence = diffs.fence(names)
            diffs.leave_manifest(run)
            diffs.replace(run, fence)

    def close(self) -> None:
        outlet_of(self.settings.metrics).close()

    def _track(self) -> None:
        tracking, base = self.backlogs
        tracked = track(
            self.tracking,
            tracking_backlog=tracking,
            base_backlog=base,
            log=self.log,
            reader=self.reader,
            policy=self.settings.policy,
            budget=BUDGET,
            clock=self.clock,
        )
        self.recorder.tracked(tracked)

    def _land(self) -> None:
        heartbeats, quarantine = new_files(self.lake, self.clock)
        landed = land(
            self.base,
            heartbeats=heartbeats,
            quarantine=quarantine,
            log=self.lake.tracking_log(),
            reader=self.reader,
            budget=BUDGET,
            clock=self.clock,
        )
        self.recorder.landed(landed)


def beats(now: datetime, lags: Sequence[float], streams: int = 5) -> list[tuple[str, datetime]]:
    """Heartbeats that happened so many seconds before now, of streams in turns."""
    return [(f"sensor-{number % streams:03d}", now - timedelta(seconds=lag)) for number, lag in enumerate(lags)]

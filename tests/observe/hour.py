"""A pipeline of the real sensors on the model and on simulated time, scraped once a minute as Prometheus would."""

import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg

from tests.dagster.house import FIELDS, ModelWorld, Ticking, publish, windows_of
from tests.lake.builders import put, version_of
from tests.official_emulator import HOST, free_port
from tidemark.pipeline import settings_sections
from tidemark.pipeline.clock import EPOCH, SystemClock, to_us
from tidemark.pipeline.observe.instruments import Instrument, Kind
from tidemark.pipeline.observe.outlet import outlet_of
from tidemark.pipeline.orchestrator.names import BACKLOG, COMPUTE_WINDOWS
from tidemark.pipeline.settings import Settings
from tidemark.pipeline.settings_message import MessageSettings

MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)
STREAMS = 5
TARGET = {"instance": "here", "job": "tidemark"}
"""The labels that Prometheus gives to what it scrapes."""

Series = dict[tuple[str, tuple[tuple[str, str], ...]], list[float | None]]
"""The values of each series, a scrape after the other; None where it was not there."""


def settings_with(folder: Path, metrics: settings_sections.MetricsSettings, **more: Any) -> Settings:
    """A pipeline that ticks once a minute over windows of five."""
    sections: dict[str, Any] = {
        "pubsub": settings_sections.PubSubSettings(),
        "message": MessageSettings(fields=FIELDS),
        "windows": settings_sections.WindowSettings(length=5 * MINUTE, lookback=timedelta(0)),
        "watermark": settings_sections.WatermarkSettings(tick=MINUTE),
        "lake": settings_sections.LakeSettings(uri=f"file:{folder / 'lake'}"),
        "metrics": metrics,
    }
    return Settings(**(sections | more))


@dataclass
class Hour:
    """Minutes of a pipeline. A fault is planted by changing what is here: the sensors that tick, or `each_minute`."""

    ticking: Ticking
    world: ModelWorld
    series: Series = field(default_factory=dict)
    minutes: int = 0
    sensors: list[str] = field(default_factory=lambda: ["landing", "tracking", "ingest", "staleness"])
    each_minute: Callable[["Hour"], None] = lambda _: None
    result: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS
    computes_again: bool = True
    beats: int = STREAMS
    broken: int = 0
    is_scraped: bool = True

    def play(self, minutes: int) -> None:
        """Publish, tick and scrape, a minute after the other."""
        for _ in range(minutes):
            now = self.now
            beats = [(f"stream-{number}", now - number * SECOND) for number in range(self.beats)]
            publish(self.world, self.ticking.settings, beats, broken=[{"stream_id": "broken"}] * self.broken)
            self.each_minute(self)
            self.world.clock.advance(20 * SECOND)
            for sensor in self.sensors:
                self._tick(sensor)
            self.world.clock.advance(30 * SECOND)
            if self.is_scraped:
                self.scrape()
            else:
                self.minutes += 1
            self.world.clock.advance(10 * SECOND)

    @property
    def now(self) -> datetime:
        return self.world.clock.now()

    def _tick(self, sensor: str) -> None:
        data = self.ticking.tick(sensor)
        for request in data.run_requests or []:
            self._run(request)

    def _run(self, request: dg.RunRequest) -> None:
        if request.job_name == COMPUTE_WINDOWS and (self.computes_again or BACKLOG not in request.tags):
            self.ticking.run(COMPUTE_WINDOWS, self.result)
            if self.result is dg.DagsterRunStatus.SUCCESS:
                self.compute(windows_of(request, self.ticking.settings.windowing))

    def compute(self, names: Sequence[str]) -> None:
        """What the run of Spark would leave of these windows, without the rows."""
        lake = self.ticking.lake()
        put(lake.diffs(), f"run{to_us(self.now)}", names, version_of(lake.heartbeats()), self.now)

    def scrape(self) -> None:
        """Ask the port, and note each value."""
        from prometheus_client.parser import text_string_to_metric_families  # only where it is asked for

        text = get(self.ticking.settings.metrics, "/metrics")
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(("tidemark_", "messaging_")):
                    assert not TARGET.keys() & sample.labels.keys(), "Prometheus would rename it"
                    key = sample.name, tuple(sorted({**sample.labels, **TARGET}.items()))
                    values = self.series.setdefault(key, [])
                    values += [None] * (self.minutes - len(values)) + [sample.value]
        self.minutes += 1

    def value(self, name: str, **labels: str) -> float | None:
        """The newest value of one series."""
        (found,) = [
            values
            for (each, its), values in self.series.items()
            if each == name and labels.items() <= dict(its).items()
        ]
        return found[-1]


def in_prometheus(one: Instrument) -> str:
    """The name under which Prometheus has an instrument; a histogram's is followed by _bucket, _sum or _count."""
    suffix = {"s": "_seconds", "By": "_bytes"}.get(one.unit, "")
    total = "_total" if one.kind is Kind.COUNTER else ""
    return f"{one.name.replace('.', '_')}{suffix}{total}"


def labels_of(one: Instrument) -> set[str]:
    """The names of its attributes in Prometheus."""
    return {name.replace(".", "_") for name in one.attributes}


def get(metrics: settings_sections.MetricsSettings, path: str) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{metrics.address[1]}{path}", timeout=10) as response:
        content: bytes = response.read()
    return content.decode()


@contextmanager
def an_hour(folder: Path, *, export: str = "prometheus", **more: Any) -> Iterator[Hour]:
    """A pipeline before its first minute, which is the first of a window; its port is closed afterwards."""
    metrics = settings_sections.MetricsSettings(export=export, listen=f"{HOST}:{free_port()}")
    settings = settings_with(folder, metrics, **more)
    now = SystemClock().now()
    world = ModelWorld(settings.pubsub, now - (now - EPOCH) % settings.windows.length)
    with dg.DagsterInstance.ephemeral() as instance:
        try:
            yield Hour(Ticking(settings, instance, world.clock, world), world)
        finally:
            outlet_of(metrics).close()


OLD_AFTER = 15
"""Minutes without landing after which the watermark is too old."""

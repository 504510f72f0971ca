"""Settings on the emulator and a lake on disk, and ticks of the real sensors on a real instance."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import dagster as dg
from dagster._core.definitions.sensor_definition import SensorExecutionData
from google.pubsub_v1 import PublisherClient

from assets.definitions import build_definitions
from pipeline.clock import SystemClock, iso
from pipeline.heartbeat import FieldKind
from pipeline.lake.layout import Lake
from pipeline.quality.status import LakeReport, read_report
from pipeline.settings import Settings
from pipeline.settings_sections import (
    LakeSettings,
    MessageSettings,
    PubSubSettings,
    SparkSettings,
    WatermarkSettings,
    WindowSettings,
)

SECOND = timedelta(seconds=1)
FIELDS = {"temperature": FieldKind.NUMBER, "status": FieldKind.TEXT}


def settings_of(
    pubsub: PubSubSettings, folder: Path, *, spark: SparkSettings | None = None, max_windows_per_run: int = 288
) -> Settings:
    """A band of a second, and idle after a second of silence: a watermark moves within seconds."""
    return Settings(
        pubsub=pubsub,
        message=MessageSettings(fields=FIELDS),
        windows=WindowSettings(length=timedelta(minutes=1), max_windows_per_run=max_windows_per_run),
        watermark=WatermarkSettings(band=SECOND, tick=SECOND, idle_timeout=SECOND, max_idle_lag=timedelta(0)),
        lake=LakeSettings(uri=f"file:{folder / 'lake'}"),
        spark=spark or SparkSettings(),
    )


def publish(
    publisher: PublisherClient,
    settings: Settings,
    beats: Sequence[tuple[str, datetime]],
    *,
    broken: Sequence[Mapping[str, str]] = (),
) -> None:
    """Publish heartbeats of streams at event times, and messages with attributes that are no heartbeats."""
    messages = [
        {
            "data": json.dumps({"temperature": 20.0 + number, "status": "ok"}).encode(),
            "attributes": {"stream_id": stream, "event_time": iso(moment), "heartbeat_id": f"{stream}-{iso(moment)}"},
        }
        for number, (stream, moment) in enumerate(beats)
    ]
    messages += [{"data": b"{}", "attributes": dict(attributes)} for attributes in broken]
    publisher.publish(topic=settings.pubsub.topic_path, messages=messages)


def beats_between(start: datetime, end: datetime, *, streams: int = 2) -> list[tuple[str, datetime]]:
    """A heartbeat of each stream every 30 seconds."""
    count = int((end - start) / timedelta(seconds=30))
    return [
        (f"stream-{stream}", start + number * timedelta(seconds=30) + stream * SECOND)
        for number in range(count)
        for stream in range(streams)
    ]


@dataclass
class Ticking:
    """The real sensors, evaluated as the daemon evaluates them, with what they report stored."""

    settings: Settings
    instance: dg.DagsterInstance

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new code server, which has kept nothing."""
        self.definitions = build_definitions(self.settings)

    def tick(self, sensor_name: str) -> SensorExecutionData:
        """One tick; its events are stored on the instance, as the daemon does. Runs are not launched."""
        context = dg.build_sensor_context(
            instance=self.instance,
            definitions=self.definitions,
            sensor_name=sensor_name,
            resources={name: (self.definitions.resources or {})[name] for name in ("pubsub", "lake")},
        )
        with context:
            data = self.definitions.resolve_sensor_def(sensor_name).evaluate_tick(context)
        for event in data.asset_events:
            self.instance.report_runless_asset_event(event)
        return data

    def land(self) -> SensorExecutionData:
        return self.tick("landing")

    def track(self) -> SensorExecutionData:
        return self.tick("tracking")

    def land_and_close(self) -> SensorExecutionData:
        """Land what is there, track it, and tick again after the silence that closes it."""
        self.land()
        self.track()
        SystemClock().sleep(2.2)
        return self.track()

    def lake(self) -> Lake:
        return Lake(self.settings.lake, self.settings.message.fields, SystemClock())

    def report(self) -> LakeReport:
        return read_report(self.lake(), self.settings.windowing)

    def watermark(self) -> datetime | None:
        return self.lake().tracking_log().catch_up().watermark


def keys(data: SensorExecutionData) -> list[str]:
    """The assets that a tick reports on, in order."""
    return [event.asset_key.to_user_string() for event in data.asset_events]


def metadata_of(data: SensorExecutionData, asset: str) -> dict[str, object]:
    """The plain values of an asset's metadata in a tick."""
    (event,) = [event for event in data.asset_events if event.asset_key.to_user_string() == asset]
    return {name: value.value for name, value in event.metadata.items()}

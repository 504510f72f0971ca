"""Judges the pipeline's health: every sensor must tick, and the watermark must not be too old. Pure functions."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.clock import iso, rough
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.quality.failing import TRACKING, is_overdue

GRACE = timedelta(seconds=60)
"""Additional silence allowed to a sensor that is running, or whose process has just started: a tick may take a
minute."""


@dataclass(frozen=True, slots=True)
class SensorBeat:
    """A sensor, the interval of its ticks, and when its last tick without an error ended, or else the process started.
    `waits` is true while it runs or before its first good tick; `failed` is set if its newest tick failed."""

    sensor: str
    every: timedelta
    heard_at: datetime
    waits: bool = False
    failed: FailedTick | None = None

    def silent_for(self, now: datetime) -> timedelta:
        """Return the time since `heard_at`."""
        return max(now - self.heard_at, timedelta(0))

    def is_silent(self, now: datetime) -> bool:
        """True if the sensor has been silent for longer than a healthy one."""
        grace = GRACE if self.waits and self.failed is None else timedelta(0)
        return is_overdue(self.heard_at + grace, self.every, now)

    def sentence(self, now: datetime) -> str:
        """Describe the silence in one sentence that contains no data of messages."""
        decides = "; no decision is made meanwhile" if self.sensor == TRACKING else ""
        why = f", and its ticks fail since {iso(self.failed.since)}: {self.failed.kind}" if self.failed else ""
        return (
            f"sensor {self.sensor}: no good tick for {rough(self.silent_for(now))}; it is to tick every "
            f"{rough(self.every)}{why}{decides}"
        )


def problems(beats: Iterable[SensorBeat], watermark: datetime | None, max_age: timedelta, now: datetime) -> list[str]:
    """List the problems as sentences without data of messages; empty if the pipeline is healthy. Without a watermark, a
    pipeline is healthy as long as its sensors tick."""
    found = [beat.sentence(now) for beat in beats if beat.is_silent(now)]
    if watermark is not None and now - watermark > max_age:
        found.append(f"the watermark is {rough(now - watermark)} old; checks.max_watermark_age is {rough(max_age)}")
    return found

"""The pipeline's health: each sensor ticks, and the watermark is not too old. Pure functions of time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.clock import iso
from tidemark.pipeline.durations import rough
from tidemark.pipeline.lake.failures import FailedTick
from tidemark.pipeline.quality.failing import TRACKING, is_overdue

GRACE = timedelta(seconds=60)
"""A sensor at work, or of a process that has just begun, is silent for this much longer: a tick may take a minute."""


@dataclass(frozen=True, slots=True)
class SensorBeat:
    """A sensor, how often it is to tick, and when its last tick without an error ended, or the process began. It may be
    at work, or have yet to begin, so that one `waits` for it; and its newest tick may have `failed`."""

    sensor: str
    every: timedelta
    heard_at: datetime
    waits: bool = False
    failed: FailedTick | None = None

    def silent_for(self, now: datetime) -> timedelta:
        """The time since then."""
        return max(now - self.heard_at, timedelta(0))

    def is_silent(self, now: datetime) -> bool:
        """Return true if that is longer than for a healthy sensor."""
        grace = GRACE if self.waits and self.failed is None else timedelta(0)
        return is_overdue(self.heard_at + grace, self.every, now)

    def sentence(self, now: datetime) -> str:
        """State that it is silent, without data."""
        decides = "; no decision is made meanwhile" if self.sensor == TRACKING else ""
        why = f", and its ticks fail since {iso(self.failed.since)}: {self.failed.kind}" if self.failed else ""
        return (
            f"sensor {self.sensor}: no good tick for {rough(self.silent_for(now))}; it is to tick every "
            f"{rough(self.every)}{why}{decides}"
        )


def problems(beats: Iterable[SensorBeat], watermark: datetime | None, max_age: timedelta, now: datetime) -> list[str]:
    """List what is wrong, in sentences without data; empty if the pipeline is healthy. A pipeline that has no watermark
    yet is healthy as long as its sensors tick."""
    found = [beat.sentence(now) for beat in beats if beat.is_silent(now)]
    if watermark is not None and now - watermark > max_age:
        found.append(f"the watermark is {rough(now - watermark)} old; checks.max_watermark_age is {rough(max_age)}")
    return found

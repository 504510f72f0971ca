"""Whether the pipeline is healthy: each sensor ticks, and the watermark is not too old. Pure functions of time."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidemark.pipeline.durations import rough

MISSED_TICKS, GRACE = 3, timedelta(seconds=60)
"""A sensor is silent after so many intervals without a good tick, and this: a tick may take a minute."""


@dataclass(frozen=True, slots=True)
class SensorBeat:
    """A sensor, how often it is to tick, and when its last tick without an error ended, or the process began."""

    sensor: str
    every: timedelta
    heard_at: datetime

    def silent_for(self, now: datetime) -> timedelta:
        """How long ago that is."""
        return max(now - self.heard_at, timedelta(0))

    @property
    def bound(self) -> timedelta:
        """The longest silence of a healthy sensor."""
        return MISSED_TICKS * self.every + GRACE


def problems(beats: Iterable[SensorBeat], watermark: datetime | None, max_age: timedelta, now: datetime) -> list[str]:
    """What is wrong, in sentences without data; empty if the pipeline is healthy. A pipeline that has no watermark yet
    is healthy as long as its sensors tick."""
    found = [
        f"sensor {beat.sensor}: no good tick for {rough(beat.silent_for(now))}; it is to tick every {rough(beat.every)}"
        for beat in beats
        if beat.silent_for(now) > beat.bound
    ]
    if watermark is not None and now - watermark > max_age:
        found.append(f"the watermark is {rough(now - watermark)} old; checks.max_watermark_age is {rough(max_age)}")
    return found

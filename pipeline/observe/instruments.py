"""All instruments: their names, units and descriptions, as listed in docs/reference/metrics.md.

An attribute has few possible values, such as the names of sensors, jobs or reasons. Streams, windows and ids are never
attributes.
"""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial

PIPELINE = "pipeline"
"""The name of an attribute that every measurement has, except those of bucket calls. Its value is the setting
`dagster.name`, or `tidemark` if the setting is empty."""

OF_MESSAGING = (
    "messaging.system",
    "messaging.operation.name",
    "messaging.destination.name",
    "messaging.destination.subscription.name",
)
"""The attributes that OpenTelemetry defines for messaging. The last two are the names of the topic and the
subscription."""

SECONDS = (0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 300.0, 1800.0, 7200.0)
"""Bucket bounds of the duration histograms, in seconds: from an idle tick to the longest run."""


class Kind(StrEnum):
    """The kind of an instrument: a sum that only grows, a distribution of seconds, or a current value."""

    COUNTER = "counter"
    HISTOGRAM = "histogram"
    GAUGE = "gauge"


@dataclass(frozen=True, slots=True)
class Instrument:
    """An instrument. `name` and `unit` follow OpenTelemetry. `attributes` contains the names of its attributes, except
    PIPELINE."""

    kind: Kind
    name: str
    unit: str
    description: str
    attributes: tuple[str, ...] = ()


counter, histogram, gauge = (partial(Instrument, kind) for kind in (Kind.COUNTER, Kind.HISTOGRAM, Kind.GAUGE))

WATERMARK_AGE = gauge(
    "tidemark.watermark.age",
    "s",
    "Time by which the watermark is behind the clock. Without a watermark, the time since tracking began. Absent "
    "before the first message.",
)
WATERMARK_MAX_AGE = gauge("tidemark.watermark.max_age", "s", "The setting `checks.max_watermark_age`, for comparison.")
DECISIONS = counter("tidemark.decisions", "{decision}", "Decisions about the watermark, by reason.", ("reason",))
READING_VIOLATIONS = gauge(
    "tidemark.reading.violations",
    "{violation}",
    "Messages that tracking saw with a publish time below an earlier reading, since the lake began.",
)
BACKLOG_AGE = gauge(
    "tidemark.backlog.age",
    "s",
    "Age of the oldest unacknowledged message: its age at the newest reading, plus the time since.",
    ("subscription",),
)
BACKLOG_MESSAGES = gauge(
    "tidemark.backlog.messages",
    "{message}",
    "Messages published since the oldest unacknowledged message: an upper bound on base, an estimate on tracking.",
    ("subscription",),
)
BACKLOG_SIZE = gauge("tidemark.backlog.size", "By", "Estimated size of the messages in the backlog.", ("subscription",))
PULLED = counter(
    "messaging.client.consumed.messages",
    "{message}",
    "Messages that ticks and runs pulled and made durable.",
    ("subscription", *OF_MESSAGING),
)
LANDED = counter("tidemark.heartbeats.landed", "{heartbeat}", "Heartbeats that ticks and runs landed, copies included.")
LATE = counter("tidemark.heartbeats.late", "{heartbeat}", "Heartbeats that landed below the watermark.")
QUARANTINED = counter(
    "tidemark.messages.quarantined", "{message}", "Messages that ticks and runs rejected, by reason.", ("reason",)
)
MISSED = gauge(
    "tidemark.heartbeats.missed",
    "{heartbeat}",
    "Heartbeats that landed after their window was computed, until the window is computed again.",
)
LOST = gauge(
    "tidemark.heartbeats.lost",
    "{heartbeat}",
    "Messages that tracking counted, and that left base in the last hour without landing: a lower bound.",
)
TICK_DURATION = histogram(
    "tidemark.tick.duration",
    "s",
    "Duration of a sensor's evaluation, including the wait until its tick was due. result: ok or error.",
    ("sensor", "result"),
)
SENSOR_SILENCE = gauge("tidemark.sensor.silence", "s", "Time since a sensor's last successful tick ended.", ("sensor",))
SENSOR_INTERVAL = gauge("tidemark.sensor.interval", "s", "Configured interval of a sensor's ticks.", ("sensor",))
SENSOR_FAILING = gauge(
    "tidemark.sensor.failing",
    "s",
    "Time since a sensor's ticks began to fail, by the kind of the newest error. Absent if its ticks succeed.",
    ("sensor", "error"),
)
RUNS = counter(
    "tidemark.runs",
    "{run}",
    "Runs that have ended, by job and result: success, failure or canceled.",
    ("job_name", "result"),
)
RUN_DURATION = histogram("tidemark.run.duration", "s", "Duration of runs.", ("job_name", "result"))
RUN_AGE = gauge("tidemark.run.age", "s", "Age of a job's oldest unfinished run.", ("job_name",))
SNAPSHOT_SIZE = gauge("tidemark.snapshot.size", "By", "Estimated bytes that the snapshots of the last day kept.")
SNAPSHOT_BUDGET = gauge("tidemark.snapshot.budget", "By", "Snapshot bytes allowed per day. Absent without a budget.")
BUCKET_CALLS = counter(
    "tidemark.bucket.calls",
    "{call}",
    "Calls of the code server to the lake's bucket for single files, by class of charge (A, B, free) and call. Not "
    "counted: calls of the Delta library and of runs.",
    ("class", "call"),
)

INSTRUMENTS = tuple(one for one in list(globals().values()) if isinstance(one, Instrument))

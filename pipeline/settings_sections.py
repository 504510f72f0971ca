"""The sections of the settings: their keys, bounds and defaults. `tidemark.toml` says what each key means."""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self
from urllib.parse import urlparse

from pydantic import BeforeValidator, Field, field_validator, model_validator

from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.durations import Duration, format_duration, parse_duration
from tidemark.pipeline.hosts import is_loopback
from tidemark.pipeline.settings_types import (
    DAY,
    ZERO,
    CallLong,
    Effect,
    EmptyIsNone,
    FilterText,
    KeptDays,
    KeptHours,
    NotNegative,
    OptionalAccount,
    OptionalAddress,
    OptionalBound,
    OptionalDuration,
    OptionalText,
    OptionalUrl,
    Positive,
    Section,
    TickLong,
)

LONGEST_RUN = timedelta(hours=3)
"""Longer than any run: `max_runtime_seconds` in dagster.yaml ends it earlier. A younger file may belong to a run."""
LONGEST_PULL = timedelta(seconds=40)
"""The most that a tick pulls. Dagster gives it 60 s, and it must persist and acknowledge within the rest."""
PULLS_AT_ONCE = 8
"""The service answers a pull in 20 to 60 ms, often with few messages although many wait."""
SNAPSHOT_BUDGET = 10 << 30
"""Bytes a day, on the service. Ten thousand sources that publish every 30 s need about half of it, read at each tick of
10 s (docs/concepts/costs-and-scale.md). By the list price of September 2026 it is at most 2.70 dollars a day."""
NEVER, AUTOMATIC = "never", "automatic"
BY_HAND: Literal["by hand"] = "by hand"
ON_CHANGE: Literal["when the contract changes"] = "when the contract changes"
LENGTHS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, *(60 * h for h in (1, 2, 3, 4, 6, 8, 12, 24)))
)
"""The window lengths that a cron schedule can express: Dagster's time partitions follow one."""


HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.\-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\]")
"""A host's name or address as a browser writes it: an IPv6 address in brackets."""


def _folder_named(uri: str) -> Path | None:
    """The folder of `file:path` or `file:///path`, taken literally: a `#` or a `?` is part of the name."""
    if not uri.startswith("file:"):
        return None
    path = uri.removeprefix("file:")
    if path.startswith("//"):
        path = path.removeprefix("//")
        if not path.startswith("/"):  # file://host/path: the folder of another machine
            return None
    return Path(path) if path else None


def _recompute_within(written: str) -> timedelta:
    """Read `never`, `automatic` or `within 1h` as a duration. Raises ValueError, which says what to write."""
    fixed = {NEVER: ZERO, AUTOMATIC: timedelta.max}
    if written in fixed:
        return fixed[written]
    before, _, duration = written.partition("within ")
    with suppress(ValueError):
        if not before and (within := parse_duration(duration)):
            return within
    raise ValueError('write "never", "automatic", or "within" and a duration, such as "within 1h"')


TableName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,59}$")]
ResourceId = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}$")]
Port = Annotated[int, Field(ge=1, le=65535)]
EmulatorKind = Literal["auto", "official", "local"]
ReadingKind = Literal["auto", "snapshot", "monitoring"]


class Server(NamedTuple):
    """Where Pub/Sub is, and as whom it is asked: what a client is made of."""

    emulator_host: str | None
    endpoint: str | None = None
    impersonate: str | None = None


class PullSettings(Section):
    """How a subscription is pulled from."""

    ack_deadline: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(minutes=10)), Effect.CREATION] = (
        timedelta(seconds=60)
    )
    pull_wait: CallLong = timedelta(seconds=2)
    call_timeout: CallLong = timedelta(seconds=10)
    pulls_at_once: Annotated[Annotated[int, Field(ge=1, le=100)] | None, EmptyIsNone] = None
    emulator_host: OptionalText = None
    endpoint: OptionalAddress = None
    impersonate: OptionalAccount = None

    @property
    def server(self) -> Server:
        """Where Pub/Sub is, and as whom it is asked."""
        return Server(self.emulator_host, self.endpoint, self.impersonate)

    @property
    def most_pulls_at_once(self) -> int:
        """As set; otherwise several on the service, whose answers are slow and small, and one on an emulator."""
        return self.pulls_at_once or (PULLS_AT_ONCE if self.emulator_host is None else 1)

    @property
    def read_by_others(self) -> str | None:
        """The path of a subscription that tidemark never pulls from."""
        return None


class PubSubSettings(PullSettings):
    """Which topic and subscriptions, and how to talk to them. The paths are full resource names."""

    project: Annotated[str, Effect.ANEW] = Field("tidemark-local", min_length=3)
    topic: Annotated[ResourceId, Effect.REFUSED] = "heartbeats"
    base_subscription: Annotated[ResourceId, Effect.ANEW] = "heartbeats-base"
    tracking_subscription: Annotated[ResourceId, Effect.ANEW] = "heartbeats-tracking"
    filter: Annotated[FilterText, Effect.REFUSED] = ""
    attach: bool = False
    emulator_host: Annotated[OptionalAddress, Effect.ANEW] = None
    emulator: EmulatorKind = "auto"
    retention: Annotated[Duration, Field(ge=timedelta(minutes=10), le=timedelta(days=31)), Effect.CREATION] = timedelta(
        days=7
    )
    metadata_only: Annotated[bool, Effect.CREATION] = False
    reading: ReadingKind = "auto"
    snapshot_max_backlog: int = Field(10_000_000, ge=1)
    snapshot_budget: Annotated[Annotated[int, Field(ge=0)] | None, EmptyIsNone] = None
    monitoring_endpoint: OptionalAddress = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.base_subscription == self.tracking_subscription:
            raise ValueError("base_subscription and tracking_subscription must be two different subscriptions")
        if self.reading == "monitoring" and not self.has_metrics:
            raise ValueError(
                'reading = "monitoring" cannot work: the emulator has no metrics. Write "snapshot" or "auto", or name '
                "a server that has them in monitoring_endpoint"
            )
        return self

    @property
    def read_by_others(self) -> str | None:
        """The path of base with `attach`: somebody else reads it."""
        return self.base_path if self.attach else None

    @property
    def has_metrics(self) -> bool:
        """True if there is a Cloud Monitoring to ask: an emulator has none."""
        return self.emulator_host is None or self.monitoring_endpoint is not None

    @property
    def snapshot_bytes_a_day(self) -> int | None:
        """As set; otherwise `SNAPSHOT_BUDGET` on the service, and no bound on an emulator, where nothing costs."""
        if self.snapshot_budget is not None:
            return self.snapshot_budget
        return SNAPSHOT_BUDGET if self.emulator_host is None else None

    @property
    def topic_path(self) -> str:
        return f"projects/{self.project}/topics/{self.topic}"

    @property
    def base_path(self) -> str:
        return f"projects/{self.project}/subscriptions/{self.base_subscription}"

    @property
    def tracking_path(self) -> str:
        return f"projects/{self.project}/subscriptions/{self.tracking_subscription}"


class WindowSettings(Section):
    """How event time is cut, and how far back a window looks."""

    length: Annotated[Duration, Effect.REFUSED] = timedelta(minutes=5)
    first: Annotated[datetime, Effect.REQUEUE] = datetime(2026, 1, 1, tzinfo=UTC)
    lookback: Annotated[NotNegative, Effect.RECOMPUTE] = timedelta(minutes=10)
    heartbeat_period: Annotated[Positive, Effect.RECOMPUTE] = timedelta(seconds=30)
    max_windows_per_run: int = Field(288, ge=1, le=10_000)
    runs_at_once: int = Field(1, ge=1, le=100)
    recompute_missed: str = "automatic"
    corrections: bool = False

    @field_validator("recompute_missed")
    @classmethod
    def _never_automatic_or_within(cls, value: str) -> str:
        _recompute_within(value)
        return value

    @property
    def recompute_within(self) -> timedelta:
        """A stale window is computed again until the watermark is this far past its end."""
        return _recompute_within(self.recompute_missed)

    @field_validator("length")
    @classmethod
    def _divides_a_day(cls, value: timedelta) -> timedelta:
        if value not in LENGTHS:
            raise ValueError(f"a window's length is one of {', '.join(map(format_duration, LENGTHS))}")
        return value

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if self.first.tzinfo is None or self.first.utcoffset() != ZERO:
            raise ValueError("first must be a time in UTC, such as 2026-01-01T00:00:00Z")
        if self.first < EPOCH or (self.first - EPOCH) % self.length:
            raise ValueError("first must be the start of a window: a multiple of length since midnight UTC")
        return self


class TableSettings(Section):
    """A table of your own over closed windows: SQL in a file, or a function in a Python file."""

    effect = Effect.RECOMPUTE

    sql: OptionalText = None
    python: OptionalText = None
    key: Annotated[list[str], BeforeValidator(lambda key: [key] if isinstance(key, str) and key else key or [])] = (
        Field(default_factory=list)
    )
    lookback: Annotated[NotNegative, Effect.DUE] = ZERO
    window: Annotated[OptionalBound, Effect.REFUSED] = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.sql is None) == (self.python is None):
            raise ValueError('name the file, as sql = "models/per_region.sql" or python = "models/per_region.py"')
        if self.python is not None and self.model_fields_set != {"python"}:
            raise ValueError("the function's decorator, @tidemark.windowed, has key, lookback and window")
        return self


class CheckSettings(Section):
    """The most that the asset checks tolerate; a check fails above it."""

    max_missed: int = Field(0, ge=0)
    max_late_share: float = Field(0.01, ge=0, le=1)
    max_lost: int = Field(0, ge=0)
    max_stopped_share: float = Field(0.05, ge=0, le=1)
    max_quarantine_share: float = Field(0.05, ge=0, le=1)
    max_watermark_age: Annotated[Duration, Field(ge=timedelta(minutes=1), le=DAY)] = timedelta(minutes=10)


class WatermarkSettings(Section):
    """How the watermark is decided; `docs/concepts/watermark.md` explains each setting."""

    rule: Literal["band", "frontier"] = "band"
    band: NotNegative = timedelta(seconds=10)
    tick: TickLong = timedelta(seconds=10)
    near_real_time: NotNegative = timedelta(seconds=10)
    idle_timeout: Positive = timedelta(minutes=2)
    idle: Annotated[Literal["advance", "hold"] | None, EmptyIsNone] = None
    max_idle_lag: NotNegative = timedelta(minutes=5)
    max_reading_age: Positive = timedelta(minutes=5)
    seek_tolerance: NotNegative = timedelta(seconds=30)
    quantile: float = Field(0.0, ge=0, lt=1)
    frontier_quantile: float = Field(0.0, ge=0, lt=1)
    reading_slack: OptionalDuration = None
    base_slack: OptionalDuration = None
    max_lag: OptionalBound = None

    @field_validator("tick")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value % timedelta(seconds=1):
            raise ValueError("Dagster's sensors tick in whole seconds: write 1s, 2s or 10s, for example")
        return value


class IngestSettings(Section):
    """Who pulls, how long, and when readers on Spark help."""

    mode: Literal["ticks", "continuous"] = "ticks"
    pull_for: Annotated[Duration, Field(gt=ZERO, le=LONGEST_PULL)] = timedelta(seconds=7)
    copies_remembered: Annotated[Duration, Field(ge=ZERO, le=DAY)] = timedelta(minutes=10)
    readers: int = Field(3, ge=1, le=1000)
    round: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=1))] = timedelta(seconds=5)
    run_for: Annotated[Duration, Field(ge=timedelta(minutes=1), le=timedelta(minutes=90))] = timedelta(hours=1)
    start_after: Positive = timedelta(hours=1)
    start_size: int = Field(1_000_000, ge=1)
    stop_below: NotNegative = timedelta(minutes=1)

    @model_validator(mode="after")
    def _starts_above_where_it_stops(self) -> Self:
        if self.stop_below >= self.start_after:
            raise ValueError("stop_below must be less than start_after, or a run would start as soon as one ended")
        return self

    @property
    def is_continuous(self) -> bool:
        """Whether readers on Spark pull all the time, and ticks only while none is at work."""
        return self.mode == "continuous"


class SignalSettings(Section):
    """Where the watermark is sent besides the lake."""

    publish_to: Annotated[ResourceId | None, EmptyIsNone] = None


class TuneSettings(Section):
    """What the tuning report looks at and aims at."""

    since: Positive = timedelta(hours=24)
    target_late_share: float = Field(0.0001, ge=0, lt=1)
    keep_reports: Annotated[int, Effect.DELETES] = Field(30, ge=1)


class QuarantineSettings(Section):
    """When rejected messages are judged again."""

    requeue: Literal["by hand", "when the contract changes"] = BY_HAND


class HousekeepingSettings(Section):
    """How long each kind of object is kept. None keeps it for ever."""

    effect = Effect.DELETES

    heartbeats: KeptDays = None
    windows: KeptDays = None
    quarantine: KeptDays = None
    corrections: KeptDays = None
    log: KeptDays = timedelta(days=30)
    versions: Annotated[Duration, Field(ge=DAY)] = timedelta(days=7)
    orphans: Annotated[Duration, Field(ge=LONGEST_RUN)] = DAY
    dagster_events: KeptHours = timedelta(days=2)
    dagster_runs: KeptDays = None

    @model_validator(mode="after")
    def _versions_for_the_grace_time(self) -> Self:
        if self.orphans > self.versions:
            raise ValueError("orphans must not be longer than versions: a file that a version lists is not an orphan")
        return self


class LakeSettings(Section):
    """Where everything durable lives."""

    uri: Annotated[str, Effect.ANEW] = "file:.tidemark/lake"
    endpoint: Annotated[OptionalText, Effect.ANEW] = None
    checkpoint_every: int = Field(200, ge=2)

    @field_validator("uri")
    @classmethod
    def _known_scheme(cls, value: str) -> str:
        parsed = urlparse(value)
        if parsed.scheme == "gs" and parsed.netloc:
            return value.rstrip("/")
        if _folder_named(value) is not None:
            return value
        raise ValueError(
            "write a folder as file:path or file:///path, or a bucket as gs://bucket or gs://bucket/prefix"
        )

    @property
    def folder(self) -> Path | None:
        """The local folder, or None for a bucket."""
        return _folder_named(self.uri)


class SparkSettings(Section):
    """Which Spark computes the micro-batches."""

    remote: OptionalText = "sc://localhost:15002"
    master: OptionalText = None
    server_master: OptionalText = None
    driver_memory: str = Field("2g", pattern=r"^\d+[mg]$")
    executor_environment: OptionalText = None
    config: dict[str, str] = Field(default_factory=dict)

    @field_validator("executor_environment")
    @classmethod
    def _unpackable(cls, value: str | None) -> str | None:
        if value is not None and (not value.endswith((".tar.gz", ".tgz")) or "#" in value or "," in value):
            raise ValueError("name the archive that `tidemark pack` made, such as executors.tar.gz, without # and ,")
        return value

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.master is None and self.remote is None:
            raise ValueError(
                "set remote (a Spark Connect address such as sc://localhost:15002) or master (such as local[2])"
            )
        return self


class DagsterSettings(Section):
    """Dagster's own processes, the name of the pipeline in it, and which Dagster is asked for runs."""

    name: Annotated[str | None, Field(pattern=r"^[a-z][a-z0-9_]{0,59}$"), EmptyIsNone, Effect.ANEW] = None
    url: OptionalUrl = None
    location: str = Field("tidemark", min_length=1)
    web_port: Port = 3000
    allowed_hosts: list[str] = Field(default_factory=list)
    code_port: Port = 4266
    storage: Annotated[str, Effect.ANEW] = ".tidemark/dagster"
    owners: list[str] = Field(default_factory=lambda: ["team:data-engineering"])

    @field_validator("allowed_hosts")
    @classmethod
    def _names_alone(cls, value: list[str]) -> list[str]:
        for name in value:
            if not HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a host name; write it without a scheme and a port, such as ui.lan")
        return value

    @property
    def ui(self) -> str:
        """Where the UI and its GraphQL are: as set, otherwise those of `tidemark up` on this machine."""
        return self.url or f"http://127.0.0.1:{self.web_port}"

    @property
    def state_folder(self) -> Path:
        """Where the processes of this machine note what they are and what fails, and where their logs are."""
        return Path(self.storage).parent


class MetricsSettings(Section):
    """What the code server tells a monitoring system, and where it listens for being asked."""

    export: Literal["", "prometheus", "otlp"] = ""
    endpoint: OptionalUrl = "http://127.0.0.1:4318"
    every: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10))] = timedelta(seconds=15)
    health: bool = False
    page: Annotated[bool | None, EmptyIsNone] = None
    host: str = Field("127.0.0.1", min_length=1)
    port: Port = 9464

    @property
    def shows_page(self) -> bool:
        """True if `tidemark up` and `tidemark attach` serve the page."""
        return is_loopback(self.host) if self.page is None else self.page

    @property
    def listens(self) -> bool:
        """Whether something is served at `port`."""
        return self.health or self.page is True or self.export == "prometheus"

    @property
    def is_on(self) -> bool:
        """Whether anything is to be recorded."""
        return self.listens or self.export != ""

    @model_validator(mode="after")
    def _somewhere_to_export(self) -> Self:
        if self.export == "otlp" and self.endpoint is None:
            raise ValueError("endpoint must name the receiver of OTLP over HTTP, such as http://127.0.0.1:4318")
        return self


class LogSettings(Section):
    """How Dagster's processes and the runs write their logs."""

    format: Literal["text", "json"] = "text"

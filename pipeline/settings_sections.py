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
    ZERO,
    Effect,
    EmptyIsNone,
    FilterText,
    KeptDays,
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

DRIVER_MEMORY = "2g"
"""Memory of Spark's driver: the ids of a round take some 80 MB, and windows a task's share of their input."""
LISTEN = "127.0.0.1:9464"
"""Where `tidemark up` and Prometheus find the code server: 9464 is the port of OpenTelemetry's exporter."""
SNAPSHOT_BUDGET = 10 << 30
"""Bytes a day, on the service. Ten thousand sources that publish every 30 s need about half of it, read at each tick of
10 s (docs/concepts/costs.md). By the list price of September 2026 it is at most 2.70 dollars a day."""
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


class ServerSettings(Section):
    """Where Pub/Sub is, and as whom it is asked."""

    emulator_host: OptionalText = None
    endpoint: OptionalAddress = None
    impersonate: OptionalAccount = None

    @property
    def server(self) -> Server:
        """Where Pub/Sub is, and as whom it is asked."""
        return Server(self.emulator_host, self.endpoint, self.impersonate)

    @property
    def read_by_others(self) -> str | None:
        """The path of a subscription that tidemark never pulls from."""
        return None


class PubSubSettings(ServerSettings):
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
    snapshot_budget: Annotated[Annotated[int, Field(ge=0)] | None, EmptyIsNone] = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.base_subscription == self.tracking_subscription:
            raise ValueError("base_subscription and tracking_subscription must be two different subscriptions")
        if self.reading == "monitoring" and self.monitoring is None:
            raise ValueError(
                'reading = "monitoring" cannot work: the emulator has no metrics. Write "snapshot" or "auto"'
            )
        return self

    @property
    def read_by_others(self) -> str | None:
        """The path of base with `attach`: somebody else reads it."""
        return self.base_path if self.attach else None

    @property
    def monitoring(self) -> Server | None:
        """Where Cloud Monitoring is, and as whom it is asked; None with an emulator, which has no metrics."""
        return Server(None, impersonate=self.impersonate) if self.emulator_host is None else None

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

    file: str = ""
    key: Annotated[list[str], BeforeValidator(lambda key: [key] if isinstance(key, str) and key else key or [])] = (
        Field(default_factory=list)
    )
    lookback: Annotated[NotNegative, Effect.DUE] = ZERO
    window: Annotated[OptionalBound, Effect.REFUSED] = None

    @property
    def is_python(self) -> bool:
        """True if the file holds a decorated function, and no query."""
        return self.file.endswith(".py")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if not self.file.endswith((".sql", ".py")):
            raise ValueError('name the file, such as file = "models/per_region.sql" or file = "models/per_region.py"')
        if self.is_python and self.model_fields_set != {"file"}:
            raise ValueError("the function's decorator, @tidemark.windowed, has key, lookback and window")
        return self


class CheckSettings(Section):
    """The most that the asset checks tolerate; a check fails above it."""

    max_late_share: float = Field(0.01, ge=0, le=1)
    max_stopped_share: float = Field(0.05, ge=0, le=1)
    max_quarantine_share: float = Field(0.05, ge=0, le=1)
    max_watermark_age: Annotated[Duration, Field(ge=timedelta(minutes=1), le=timedelta(days=1))] = timedelta(minutes=10)


class WatermarkSettings(Section):
    """How the watermark is decided; `docs/concepts/watermark.md` explains each setting."""

    rule: Literal["band", "frontier"] = "band"
    band: NotNegative = timedelta(seconds=10)
    tick: TickLong = timedelta(seconds=10)
    idle_timeout: Positive = timedelta(minutes=2)
    idle: Annotated[Literal["advance", "hold"] | None, EmptyIsNone] = None
    quantile: float = Field(0.0, ge=0, lt=1)
    slack: OptionalDuration = None
    max_lag: OptionalBound = None

    @field_validator("tick")
    @classmethod
    def _whole_seconds(cls, value: timedelta) -> timedelta:
        if value % timedelta(seconds=1):
            raise ValueError("Dagster's sensors tick in whole seconds: write 1s, 2s or 10s, for example")
        return value


class IngestSettings(Section):
    """Who pulls, and how many readers on Spark."""

    mode: Literal["ticks", "continuous"] = "ticks"
    readers: int = Field(3, ge=1, le=1000)

    @property
    def is_continuous(self) -> bool:
        """Whether readers on Spark pull all the time, and ticks only while none is at work."""
        return self.mode == "continuous"


class SignalSettings(Section):
    """Where the watermark is sent besides the lake."""

    publish_to: Annotated[ResourceId | None, EmptyIsNone] = None


class QuarantineSettings(Section):
    """When rejected messages are judged again."""

    requeue: Literal["by hand", "when the contract changes"] = BY_HAND


class HousekeepingSettings(Section):
    """How long each kind of object is kept. None keeps it for ever."""

    effect = Effect.DELETES

    heartbeats: KeptDays = None
    windows: KeptDays = None
    quarantine: KeptDays = None
    log: KeptDays = timedelta(days=30)
    dagster_runs: KeptDays = None


class LakeSettings(Section):
    """Where everything durable lives."""

    uri: Annotated[str, Effect.ANEW] = "file:.tidemark/lake"
    endpoint: Annotated[OptionalText, Effect.ANEW] = None

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
    executor_environment: OptionalText = None
    config: dict[str, str] = Field(default_factory=dict)

    @field_validator("executor_environment")
    @classmethod
    def _unpackable(cls, value: str | None) -> str | None:
        if value is not None and (not value.endswith((".tar.gz", ".tgz")) or "#" in value or "," in value):
            raise ValueError("name the archive that `tidemark pack` made, such as executors.tar.gz, without # and ,")
        return value

    @property
    def is_classic(self) -> bool:
        """True if each run starts a session in its own process, and connects to no server."""
        return self.remote is None

    @property
    def driver_memory(self) -> str:
        """Memory of the server that `tidemark up` starts, or of a classic session."""
        return self.config.get("spark.driver.memory", DRIVER_MEMORY)


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
    listen: OptionalAddress = None

    @property
    def address(self) -> tuple[str, int]:
        """The host and port at which health, the page and Prometheus' metrics are served."""
        host, _, port = (self.listen or LISTEN).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def has_page(self) -> bool:
        """True if the page is served as well: on loopback alone, since it asks for no login."""
        return is_loopback(self.address[0])

    @property
    def listens(self) -> bool:
        """Whether something is served."""
        return self.listen is not None or self.export == "prometheus"

    @property
    def is_on(self) -> bool:
        """Whether anything is to be recorded."""
        return self.listens or self.export != ""


class LogSettings(Section):
    """How Dagster's processes and the runs write their logs."""

    format: Literal["text", "json"] = "text"

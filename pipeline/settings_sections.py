"""The sections of the settings: their types, keys, bounds and defaults. `tidemark.toml` says what each key means."""

import re
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self
from urllib.parse import urlparse

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from tidemark.pipeline.clock import EPOCH, format_duration, parse_duration
from tidemark.pipeline.machine import is_loopback

ZERO = timedelta(0)
DAY = timedelta(days=1)
CENTURY = timedelta(days=36_500)
FILTER_BYTES = 256
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _http_address(text: str) -> str:
    """Validate a URL to which paths are appended. A login in the URL is refused, because the settings file would then
    hold a secret."""
    named = urlparse(text)
    if named.scheme not in ("http", "https") or not named.hostname or named.query or named.fragment:
        raise ValueError("write an address such as https://dagster.example.com or http://127.0.0.1:3000/prefix")
    if named.username is not None or named.password is not None:
        raise ValueError("write the address without a login; put the login into $TIDEMARK_DAGSTER_HEADERS")
    return text.rstrip("/")


def _host_and_port(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not (host and "/" not in host and port.isdecimal() and 0 < int(port) < 1 << 16):
        raise ValueError("write the address as host:port, such as 127.0.0.1:8085, or leave it empty")
    return text


def is_address(text: str) -> bool:
    """Return True for an address with a scheme, such as gs://bucket/x, and False for a path on this machine."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:", text) is not None


def _duration(value: object) -> timedelta:
    return value if isinstance(value, timedelta) else parse_duration(str(value))


Duration = Annotated[timedelta, BeforeValidator(_duration), PlainSerializer(format_duration)]
"""A `timedelta` that is written as text in a settings file."""
EmptyIsNone = BeforeValidator(lambda value: None if value == "" else value)
Positive = Annotated[Duration, Field(gt=ZERO)]
NotNegative = Annotated[Duration, Field(ge=ZERO)]
OptionalBound = Annotated[Annotated[Duration, Field(gt=ZERO, le=CENTURY)] | None, EmptyIsNone]
KeptDays = Annotated[Annotated[Duration, Field(ge=DAY)] | None, EmptyIsNone]
OptionalText = Annotated[str | None, EmptyIsNone]


def _whole_seconds(value: timedelta) -> timedelta:
    if value % timedelta(seconds=1):
        raise ValueError("Dagster's sensors tick in whole seconds: write 1s, 2s or 10s, for example")
    return value


TickLong = Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10)), AfterValidator(_whole_seconds)]


def _short_filter(value: str) -> str:
    if (size := len(value.strip().encode())) > FILTER_BYTES:
        raise ValueError(f"the filter is {size} bytes long; Pub/Sub allows at most {FILTER_BYTES} bytes")
    return value.strip()


OptionalAddress = Annotated[Annotated[str, AfterValidator(_host_and_port)] | None, EmptyIsNone]
OptionalAccount = Annotated[Annotated[str, Field(pattern=r"^[^@\s]+@[^@\s]+\.[^@\s]+$")] | None, EmptyIsNone]


class Effect(StrEnum):
    """The effect of changing a setting of a pipeline that already has a lake, once its processes have restarted."""

    NEXT = "next"
    """The new value applies from now on. Landed messages, decisions and computed windows stay as they are."""
    REQUEUE = "requeue"
    """The new value applies to messages judged from now on. Landed heartbeats stay; `tidemark quarantine --requeue`
    judges rejected messages again."""
    RECOMPUTE = "recompute"
    """The new value applies to windows computed from now on. `tidemark repair --recompute` recomputes earlier ones."""
    DUE = "due"
    """All windows of the table are recomputed automatically."""
    DELETES = "deletes"
    """The next run of housekeeping deletes what is older than the new value; `tidemark housekeep --dry-run` lists it. A
    larger value restores nothing that is already deleted."""
    CREATION = "at creation"
    """Existing subscriptions keep the value that they were created with; `tidemark provision` and `tidemark doctor` say
    what differs, and what to do."""
    ANEW = "anew"
    """tidemark starts empty in the new place. The data in the earlier place stays there."""
    REFUSED = "refused"
    """The change is an error. Put the value back, or follow the section "Another window length" or "Another topic,
    subscription or filter"."""


class Section(BaseModel):
    """A section of the settings. It refuses unknown keys and is immutable."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    effect: ClassVar[Effect] = Effect.NEXT
    """The effect of a change, for settings that are not annotated with another effect."""

    @field_validator("*")
    @classmethod
    def _without_control_characters(cls, value: object) -> object:
        """Refuse control characters. No name, path or address contains one, and NUL would cut a path."""
        texts = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if any(isinstance(text, str) and CONTROL.search(text) for text in texts):
            raise ValueError("the value has a control character, such as NUL or a line break: remove it")
        return value


DRIVER_MEMORY = "2g"
"""Default memory of Spark's driver. A local Spark's tasks share it. It is enough for the message ids of one round of
pulling (about 80 MB), and for the windows' input that the tasks hold."""
LISTEN = "127.0.0.1:9464"
"""Default address at which the code server serves health, the page and Prometheus' metrics. OpenTelemetry also uses
port 9464 for Prometheus."""
SNAPSHOT_BUDGET = 10 << 30
"""Default limit on snapshot bytes per day, on the service. Ten thousand sources that publish every 30 s need about half
of it, if readings are taken every 10 s (docs/concepts/costs-and-scale.md)."""
NEVER, AUTOMATIC = "never", "automatic"
BY_HAND: Literal["by hand"] = "by hand"
ON_CHANGE: Literal["when the contract changes"] = "when the contract changes"
LENGTHS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, *(60 * h for h in (1, 2, 3, 4, 6, 8, 12, 24)))
)
"""The possible window lengths. Dagster's time partitions follow a cron schedule, and a cron schedule can express no
other lengths."""


def _divides_a_day(value: timedelta) -> timedelta:
    if value not in LENGTHS:
        raise ValueError(f"the window length must be one of {', '.join(map(format_duration, LENGTHS))}")
    return value


def _folder_named(uri: str) -> Path | None:
    """Return the folder of `file:path` or `file:///path`. Return None for any other URI, and if the path is empty or
    begins with `~`. A `#` or `?` is part of the name."""
    if not uri.startswith("file:"):
        return None
    path = uri.removeprefix("file:")
    if path.startswith("//"):
        path = path.removeprefix("//")
        if not path.startswith("/"):  # file://host/path: the folder of another machine
            return None
    return Path(path) if path and not path.startswith("~") else None


ODD_PREFIX = re.compile(r"[#?%]|//|/\.{1,2}(/|$)")
"""Matches parts of a prefix that the Delta library and the bucket's client interpret differently, so that they would
use different objects."""


def _known_scheme(value: str) -> str:
    parsed = urlparse(value)
    if parsed.scheme == "gs" and parsed.netloc:
        if ODD_PREFIX.search(value.rstrip("/").removeprefix("gs://")):
            raise ValueError("a prefix must not contain #, ?, %, //, /./ or /../: the Delta library would misread it")
        return value.rstrip("/")
    if _folder_named(value) is not None:
        return value
    raise ValueError(
        "write a folder as file:path or file:///path, without ~, or a bucket as gs://bucket or gs://bucket/prefix"
    )


def _recompute_within(written: str) -> timedelta:
    """Parse `never`, `automatic` or `within 1h` as a duration. Raises ValueError, which says what to write."""
    fixed = {NEVER: ZERO, AUTOMATIC: timedelta.max}
    if written in fixed:
        return fixed[written]
    before, _, duration = written.partition("within ")
    with suppress(ValueError):
        if not before and (within := parse_duration(duration)):
            return within
    raise ValueError('write "never", "automatic", or "within" and a duration, such as "within 1h"')


def _never_automatic_or_within(value: str) -> str:
    _recompute_within(value)
    return value


TABLE_NAME, RESOURCE_ID = r"^[a-z][a-z0-9_]{0,59}$", r"^[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}$"
HOST_NAME = r"^([A-Za-z0-9]([A-Za-z0-9.\-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])$"
"""Matches a host name or address as a browser writes it; IPv6 addresses are in brackets."""

ARCHIVE = r"^[^#,]*\.(tar\.gz|tgz)$"
OWNER = r"^(team:.+|[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,7})$"  # Dagster's rule
IN_WORDS = {
    TABLE_NAME: "write at most 60 lower-case letters, digits and underscores, beginning with a letter",
    RESOURCE_ID: "write 3 to 255 letters, digits and the characters -_.~+%, beginning with a letter",
    HOST_NAME: "this is not a host name; write it without a scheme or a port, such as ui.lan",
    ARCHIVE: "name the archive that `tidemark provision --executors` made, such as executors.tar.gz; the characters "
    "'#' and ',' are not allowed",
    OWNER: 'write "team:" and a name, or an email address',
}
"""Maps regular expressions to their rules in words, for error messages."""

WRITTEN_BOUND = re.compile(r"datetime\.timedelta\((?:0|(?:days=(?P<days>\d+))?(?:, )?(?:seconds=(?P<seconds>\d+))?)\)")
"""Matches the bound of a duration in pydantic's error messages."""


def rule_of(problem: ErrorDetails) -> str:
    """Return the rule that a value breaks, in words."""
    if problem["type"] == "string_pattern_mismatch" and problem["ctx"]["pattern"] in IN_WORDS:
        return IN_WORDS[problem["ctx"]["pattern"]]
    return WRITTEN_BOUND.sub(_as_duration, problem["msg"].removeprefix("Value error, "))


def _as_duration(bound: re.Match[str]) -> str:
    return format_duration(timedelta(days=int(bound["days"] or 0), seconds=int(bound["seconds"] or 0)))


TableName = Annotated[str, Field(pattern=TABLE_NAME)]
ResourceId = Annotated[str, Field(pattern=RESOURCE_ID)]
Owner = Annotated[str, Field(pattern=OWNER)]
Port = Annotated[int, Field(ge=1, le=65535)]
EmulatorKind = Literal["auto", "official", "local"]


class Server(NamedTuple):
    """The address and the account with which a client of Pub/Sub or Cloud Monitoring is created. For the three fields,
    None means Google's service, its global endpoint, and the machine's own credentials."""

    emulator_host: str | None
    endpoint: str | None = None
    impersonate: str | None = None


class ServerSettings(Section):
    """Settings for the address of Pub/Sub, and for the account that calls it."""

    emulator_host: OptionalAddress = None
    endpoint: OptionalAddress = None
    """Address of the service, with TLS, as `host:port`: a regional endpoint (docs/how-to/identity.md). Empty: Google's
    global endpoint."""
    impersonate: OptionalAccount = None
    """Email of the service account to impersonate for Pub/Sub and Cloud Monitoring (docs/how-to/identity.md). Empty:
    the machine's own credentials. The lake's bucket is always accessed with the machine's own credentials."""

    @property
    def server(self) -> Server:
        return Server(self.emulator_host, self.endpoint, self.impersonate)

    @property
    def read_by_others(self) -> str | None:
        """The path of a subscription from which tidemark never pulls, because another consumer reads it; None if there
        is none."""
        return None


class PubSubSettings(ServerSettings):
    """The topic, its two subscriptions, and how they are read."""

    project: Annotated[str, Effect.REFUSED] = Field("tidemark-local", min_length=3)
    """Your Google Cloud project."""
    topic: Annotated[ResourceId, Effect.REFUSED] = "heartbeats"
    """Topic of the messages."""
    base_subscription: Annotated[ResourceId, Effect.ANEW] = "heartbeats-base"
    """Subscription that carries the data."""
    tracking_subscription: Annotated[ResourceId, Effect.ANEW] = "heartbeats-tracking"
    """Second subscription of the topic. Only the metadata of its messages is kept."""
    filter: Annotated[str, AfterValidator(_short_filter), Effect.REFUSED] = ""
    """Filter of both subscriptions, in Pub/Sub's filter language (docs/how-to/cohorts.md). Empty: every message."""
    attach: bool = False
    """Set to true if another consumer reads base. tidemark then lands nothing and computes no window
    (docs/how-to/attach.md)."""
    emulator_host: Annotated[OptionalAddress, Effect.ANEW] = None
    """Address of an emulator, as `host:port`. Empty: Google's service. `$PUBSUB_EMULATOR_HOST` overrides it."""
    emulator: EmulatorKind = "auto"
    """Emulator that `tidemark up` starts: Google's official one or tidemark's own. `auto`: the official emulator if it
    is installed and Java is found, else tidemark's own."""
    retention: Annotated[Duration, Field(ge=timedelta(minutes=10), le=timedelta(days=31)), Effect.CREATION] = timedelta(
        days=7
    )
    """Time for which both subscriptions keep unacknowledged messages. Longer: the pipeline survives longer outages, and
    storage costs more."""
    metadata_only: Annotated[bool, Effect.CREATION] = False
    """Have a message transform of Pub/Sub drop the payload on tracking. Works only on the service, and only if nothing
    but compared fields is read from the payload."""
    reading: Literal["auto", "snapshot", "monitoring"] = "auto"
    """Source of the oldest unacknowledged publish time. `snapshot` is exact and current; `monitoring` is minutes old;
    `auto` takes snapshots, and uses monitoring while a snapshot is refused or exceeds the budget."""
    snapshot_budget: Annotated[Annotated[int, Field(ge=0)] | None, EmptyIsNone] = None
    """Limit on the estimated number of bytes that snapshots retain per day. Readings are spaced to stay within the
    limit (docs/concepts/costs-and-scale.md). Smaller: snapshots cost less, and the watermark waits longer while base is
    far behind. Empty: 10 GiB on the service, no limit on an emulator."""

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
        return self.base_path if self.attach else None

    @property
    def monitoring(self) -> Server | None:
        """The address of Cloud Monitoring, and the account that calls it. None with an emulator, which has no
        metrics."""
        return Server(None, impersonate=self.impersonate) if self.emulator_host is None else None

    @property
    def snapshot_bytes_a_day(self) -> int | None:
        """Maximum number of snapshot bytes per day: `snapshot_budget` if set, else SNAPSHOT_BUDGET on the service, and
        None (no limit) on an emulator, where snapshots cost nothing."""
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
    """Windows of event time."""

    length: Annotated[Duration, AfterValidator(_divides_a_day), Effect.REFUSED] = timedelta(minutes=5)
    """Length of a window: 1, 2, 3, 4, 5, 6, 10, 12, 15, 20 or 30 minutes; 1, 2, 3, 4, 6, 8, 12 or 24 hours. Shorter:
    results come sooner, but more lookback is read in total."""
    first: Annotated[datetime, Effect.REQUEUE] = datetime(2026, 1, 1, tzinfo=UTC)
    """Start of the first window: midnight UTC, in 1970 or later, plus a multiple of `length`. Earlier event times are
    rejected, and earlier windows are not requested."""
    lookback: Annotated[NotNegative, Effect.RECOMPUTE] = timedelta(minutes=10)
    """Longest gap that is measured. A window reads input from this long before its start, so use at least a few
    heartbeat periods."""
    heartbeat_period: Annotated[Positive, Effect.RECOMPUTE] = timedelta(seconds=30)
    """Interval at which a source promises to publish. A gap of `n` periods, rounded, counts as `n - 1` missed
    heartbeats."""
    runs_at_once: int = Field(1, ge=1, le=100)
    """Number of runs that compute windows at the same time. If it is above 1, one run is reserved for live windows.
    Dagster's `max_concurrent_runs` must be at least this number."""
    recompute_missed: Annotated[str, AfterValidator(_never_automatic_or_within)] = "automatic"
    """Which stale windows are recomputed automatically (docs/concepts/late-and-missed.md): `never`, `automatic` (all),
    or `within 1h`: windows that end less than 1h before the watermark."""
    corrections: bool = False
    """Record in the table `corrections` what changed in recomputed windows (docs/concepts/late-and-missed.md)."""

    @property
    def recompute_within(self) -> timedelta:
        """Stale windows whose end lags the watermark by less than this are recomputed automatically. Zero: none;
        `timedelta.max`: all."""
        return _recompute_within(self.recompute_missed)

    @model_validator(mode="after")
    def _aligned(self) -> Self:
        if self.first.tzinfo is None or self.first.utcoffset() != ZERO:
            raise ValueError("first must be a time in UTC, such as 2026-01-01T00:00:00Z")
        if self.first < EPOCH or (self.first - EPOCH) % self.length:
            raise ValueError(
                "windows.first must be in 1970 or later, at midnight UTC plus a multiple of windows.length"
            )
        return self


class TableSettings(Section):
    """A custom table over closed windows (docs/how-to/tables.md). Its name has lowercase letters, digits and `_`."""

    effect = Effect.RECOMPUTE

    file: str = ""
    """File with a query over `{heartbeats}` (`.sql`), or with a function that has the table's name and the decorator
    `@tidemark.windowed` (`.py`). For a `.py` file, the decorator sets `key`, `lookback` and `window`."""
    key: Annotated[list[str], BeforeValidator(lambda key: [key] if isinstance(key, str) and key else key or [])] = (
        Field(default_factory=list)
    )
    """Columns that identify a row of a window."""
    lookback: Annotated[NotNegative, Effect.DUE] = ZERO
    """A window also reads heartbeats from this long before its start. Must be less than 100 windows."""
    window: Annotated[OptionalBound, Effect.REFUSED] = None
    """Length of the table's windows: a multiple of `windows.length` that divides a day. Empty: `windows.length`."""

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if not self.file.endswith((".sql", ".py")):
            raise ValueError('name the file, such as file = "models/per_region.sql" or file = "models/per_region.py"')
        if self.is_python and self.model_fields_set != {"file"}:
            raise ValueError(
                "key, lookback and window cannot be set here for a .py file: pass them to the function's decorator, "
                "@tidemark.windowed"
            )
        return self


class CheckSettings(Section):
    """Limits above which the asset checks fail."""

    max_late_share: float = Field(0.01, ge=0, le=1)
    """Late heartbeats, as a share of all heartbeats of the last day (check `late`). Also messages that lag more than
    `watermark.max_lag`, as a share of all landed messages of the last hour (check `passed_over`)."""
    max_stopped_share: float = Field(0.05, ge=0, le=1)
    """Streams that stopped in a window, as a share of the streams in the window's lookback (check
    `few_streams_stopped`, docs/concepts/silence.md)."""
    max_quarantine_share: float = Field(0.05, ge=0, le=1)
    """Rejected messages, as a share of all that landed or were rejected in the last hour (check `quarantine_share`)."""
    max_watermark_age: Annotated[Duration, Field(ge=timedelta(minutes=1), le=timedelta(days=1))] = timedelta(minutes=10)
    """Age of the watermark, for the check `watermark_age`, `/healthz` and an alert. Set it above the windows' usual lag
    and, with readings from Cloud Monitoring, above six minutes."""


class WatermarkSettings(Section):
    """Settings for deciding the watermark (docs/concepts/watermark.md). `tidemark tune` shows what some of them cost on
    your traffic."""

    rule: Literal["band", "frontier"] = "band"
    """Rule that bounds the event times that may still land (docs/concepts/watermark.md). `frontier` is fresher if
    `slack` is small. `band` waits for a late stream, and is therefore slower."""
    band: NotNegative = timedelta(seconds=10)
    """Disorder that the watermark tolerates. Larger: fewer messages are late, and every window is ready that much
    later. Smaller: more messages are late."""
    tick: TickLong = timedelta(seconds=10)
    """Interval of the sensors, in whole seconds. Values below 5s act as 5s, because Dagster polls its sensors every 5
    s. Longer: fewer readings and log entries."""
    idle_timeout: Positive = timedelta(minutes=2)
    """A silence begins after this long without a valid message, if there is no backlog. Larger: the last windows before
    a silence close later. Smaller: a short pause counts as a silence."""
    idle: Annotated[Literal["advance", "hold"] | None, EmptyIsNone] = None
    """In a silence the watermark follows the clock (`advance`) or waits (`hold`, for sources that buffer while they are
    silent). Empty: `advance`, or `hold` with `pubsub.attach`."""
    quantile: float = Field(0.0, ge=0, lt=1)
    """Share of messages that do not hold the watermark: in each second of publish time, the messages with the lowest
    event times. Their number is rounded down. Above 0, a few bad clocks delay the watermark less, at the price of more
    late messages."""
    slack: Annotated[NotNegative | None, EmptyIsNone] = None
    """Time that is subtracted from both readings, for messages that become visible a moment after their publish time.
    Empty: on the service, 1s is subtracted from tracking's reading, and the band from base's; on an emulator, 0."""
    max_lag: OptionalBound = None
    """A message that is published more than this after its event time does not hold the watermark. It still lands,
    but may be late (docs/concepts/watermark.md). Set it above the lag of your sources in an ordinary outage. Empty:
    every message holds the watermark."""


class IngestSettings(Section):
    """Settings for pulling messages, by the sensors or by readers on Spark."""

    mode: Literal["ticks", "continuous"] = "ticks"
    """`ticks`: the sensors pull, and readers on Spark help with a backlog. `continuous`: readers on Spark pull all the
    time."""
    readers: int = Field(3, ge=1, le=1000)
    """Number of Spark tasks that pull. Each takes a task slot and 256 MiB of memory. Spark needs at least one more
    slot."""

    @property
    def is_continuous(self) -> bool:
        """True if readers on Spark pull all the time. Ticks then pull only while no reader is at work."""
        return self.mode == "continuous"


class SignalSettings(Section):
    """A topic to which the watermark is published."""

    publish_to: Annotated[ResourceId | None, EmptyIsNone] = None
    """Topic of `pubsub.project` to which each change of the watermark is published (docs/how-to/attach.md). It must not
    be the pipeline's own topic."""


class QuarantineSettings(Section):
    """Settings for rejected messages (docs/how-to/quarantine.md)."""

    requeue: Literal["by hand", "when the contract changes"] = BY_HAND
    """When quarantined messages are judged again: by hand, or automatically after a change of `[message]` (except its
    fields), the schema file, `windows.first` or tidemark's own rules (docs/how-to/quarantine.md)."""


class HousekeepingSettings(Section):
    """Retention times (docs/how-to/housekeeping.md). Empty: data is kept forever."""

    effect = Effect.DELETES

    heartbeats: KeptDays = None
    """Retention of landed messages. Their age is measured from their event time to the watermark. Windows computed from
    deleted messages stay, and are not recomputed."""
    windows: KeptDays = None
    """Retention of computed windows, including `stream_status` and custom tables. Their age is measured from their
    event time to the watermark. Also the retention of `corrections`."""
    quarantine: KeptDays = None
    """Retention of rejected messages, from the day on which they were rejected."""
    log: KeptDays = timedelta(days=30)
    """Retention of the tracking log's entries. `replay --from-lake`, `explain --at` and `tune --since` reach back this
    far."""
    dagster_runs: KeptDays = None
    """Retention of finished runs in Dagster. If a run is deleted, Dagster shows its windows as never materialized, but
    they are not recomputed."""


class LakeSettings(Section):
    """The location of all durable data."""

    uri: Annotated[str, AfterValidator(_known_scheme), Effect.ANEW] = "file:.tidemark/lake"
    """A folder (`file:path`, `file:///path`; on one file system with hard links and `fsync`), or a bucket
    (`gs://bucket`, `gs://bucket/prefix`)."""
    endpoint: Annotated[OptionalText, Effect.ANEW] = None
    """Address, as `http://host:port`, of a server that replaces Google's Cloud Storage, such as one on loopback. It is
    used without credentials."""

    @property
    def folder(self) -> Path | None:
        return _folder_named(self.uri)


def _connectable(value: str) -> str:
    address = re.fullmatch(r"sc://(?:\[[^]/]+]|[^][:/\s]+)(?::(\d+))?(?:/.*)?", value)
    if address is None or int(address[1] or 0) >= 1 << 16:
        raise ValueError("write the address as sc://host:port, such as sc://localhost:15002, or leave it empty")
    return value


class SparkSettings(Section):
    """The connection to Spark, which computes windows, and its configuration."""

    remote: Annotated[Annotated[str, AfterValidator(_connectable)] | None, EmptyIsNone] = "sc://localhost:15002"
    """Address of the Spark Connect server. `tidemark up` starts one if it is on `localhost` and nothing listens
    there."""
    executor_environment: Annotated[Annotated[str, Field(pattern=ARCHIVE)] | None, EmptyIsNone] = None
    """Path or address of the archive that `tidemark provision --executors` made, for executors whose Python lacks
    tidemark (docs/how-to/spark.md)."""
    config: dict[str, str] = Field(default_factory=dict)
    """Further Spark settings, keyed by name, in `[spark.config]`. A classic session gets all of them, and so does a
    server that `tidemark up` starts. A session on any other Spark Connect server gets only `spark.sql.*`. `spark.jars`
    replaces the connector that a bucket needs."""

    @property
    def is_classic(self) -> bool:
        """True if each run starts a session in its own process, without a server."""
        return self.remote is None

    @property
    def driver_memory(self) -> str:
        return self.config.get("spark.driver.memory", DRIVER_MEMORY)


class DagsterSettings(Section):
    """Settings for Dagster's processes, and for the pipeline's names in Dagster."""

    name: Annotated[TableName | None, EmptyIsNone, Effect.ANEW] = None
    """Prefix of the names of assets, jobs, sensors, schedules and resources (docs/how-to/embedding.md). Empty: no
    prefix; in your Dagster project, `tidemark`."""
    url: Annotated[Annotated[str, AfterValidator(_http_address)] | None, EmptyIsNone] = None
    """Address, without a login, of the Dagster UI at which `tidemark repair` requests runs. Empty: the UI of
    `tidemark up`."""
    location: str = Field("tidemark", min_length=1)
    """Code location with tidemark's jobs, in the Dagster at `url`."""
    web_port: Port = 3000
    """Port of the UI, on loopback."""
    allowed_hosts: list[Annotated[str, Field(pattern=HOST_NAME)]] = Field(default_factory=list)
    """Further host names, without ports, under which people reach the UI, such as a proxy's (SECURITY.md)."""
    code_port: Port = 4266
    """Port of the code server, on loopback."""
    storage: Annotated[str, Effect.ANEW] = ".tidemark/dagster"
    """Folder of Dagster's own storage, with the processes' logs beside it. If it is lost, all data and the watermark
    are still in the lake."""
    owners: list[Owner] = Field(default_factory=lambda: ["team:data-engineering"])
    """Owners that the assets show: `team:name` or an e-mail address."""

    @model_validator(mode="after")
    def _two_ports(self) -> Self:
        if self.web_port == self.code_port:
            raise ValueError("web_port and code_port must be two different ports")
        return self

    @property
    def ui(self) -> str:
        """The address of the UI, which also serves Dagster's GraphQL API: `url` if set, else `own_ui`."""
        return self.url or self.own_ui

    @property
    def own_ui(self) -> str:
        """The address of the UI of `tidemark up`, on this machine."""
        return f"http://127.0.0.1:{self.web_port}"

    @property
    def state_folder(self) -> Path:
        """The folder for `services.json` and the logs of the processes on this machine."""
        return Path(self.storage).parent


class MetricsSettings(Section):
    """Settings for metrics, health checks and the page (docs/how-to/observability.md). Exporting metrics needs
    `tidemark-pubsub[metrics]`."""

    export: Literal["", "prometheus", "otlp"] = ""
    """`prometheus`: metrics are served at `listen`. `otlp`: metrics are sent to `$OTEL_EXPORTER_OTLP_ENDPOINT`. Empty:
    nothing is recorded."""
    listen: OptionalAddress = None
    """Address for health, the page and Prometheus' metrics, as `host:port`. Empty: `127.0.0.1:9464` with `tidemark up`,
    `tidemark attach` or `export = "prometheus"`, else nothing is served. If it is not on loopback, restrict who can
    reach it (SECURITY.md)."""

    @property
    def address(self) -> tuple[str, int]:
        host, _, port = (self.listen or LISTEN).rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def has_page(self) -> bool:
        """True if the page is served. It is served only on loopback, since it has no login."""
        return is_loopback(self.address[0])

    @property
    def listens(self) -> bool:
        return self.listen is not None or self.export == "prometheus"

    @property
    def is_on(self) -> bool:
        return self.listens or self.export != ""


class LogSettings(Section):
    """Logs of Dagster's processes and of runs."""

    format: Literal["text", "json"] = "text"
    """`json`: one object per line from the code server, its runs and the daemon, with the ids of a tick and its run."""

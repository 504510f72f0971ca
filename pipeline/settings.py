"""One validated tree of settings: `tidemark.toml`, overridden by `TIDEMARK_<SECTION>__<KEY>` variables.

Every setting, with its meaning, is in the `tidemark.toml` at the project's root. A relative path in the file
is relative to the file.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlparse

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from pipeline.clock import EPOCH
from pipeline.durations import Duration, format_duration
from pipeline.errors import InvalidSettings
from pipeline.heartbeat import FIELD_NAME, RESERVED_FIELD_NAMES, FieldKind, MessageContract, compared_columns
from pipeline.watermark.policy import Policy
from pipeline.windows import Windowing

PREFIX = "TIDEMARK_"
NOT_SETTINGS = frozenset({"TIDEMARK_CONFIG", "TIDEMARK_DAGSTER_STORAGE"})
"""Variables with the prefix that are about where things are, not settings of the tree."""

ZERO = timedelta(0)
LONGEST_PULL = timedelta(seconds=40)
"""A sensor tick has 60 s: what it pulls must be persisted and acknowledged within the rest."""
LENGTHS = tuple(
    timedelta(minutes=minutes)
    for minutes in (1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30, *(60 * h for h in (1, 2, 3, 4, 6, 8, 12, 24)))
)
"""Window lengths that a cron schedule can express, which is how Dagster names time partitions."""

WRITTEN_BOUND = re.compile(r"datetime\.timedelta\((?:0|(?:days=(?P<days>\d+))?(?:, )?(?:seconds=(?P<seconds>\d+))?)\)")
"""How pydantic writes the bound of a duration in an error."""


def _folder_named(uri: str) -> Path | None:
    """The folder of `file:path` or `file:///path`, to the letter: a `#` or a `?` is part of a name."""
    if not uri.startswith("file:"):
        return None
    path = uri.removeprefix("file:")
    if path.startswith("//"):
        path = path.removeprefix("//")
        if not path.startswith("/"):  # file://host/path: the folder of another machine
            return None
    return Path(path) if path else None


def _empty_is_none(value: Any) -> Any:
    return None if value == "" else value


Positive = Annotated[Duration, Field(gt=ZERO)]
NotNegative = Annotated[Duration, Field(ge=ZERO)]
OptionalText = Annotated[str | None, BeforeValidator(_empty_is_none)]
OptionalDuration = Annotated[NotNegative | None, BeforeValidator(_empty_is_none)]
ResourceId = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9\-_.~+%]{2,254}$")]
Port = Annotated[int, Field(ge=1, le=65535)]


class Section(BaseModel):
    """A part of the tree: unknown keys are refused, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class PubSubSettings(Section):
    """Which topic and subscriptions, and how to talk to them."""

    project: str = Field("tidemark-local", min_length=3)
    topic: ResourceId = "heartbeats"
    base_subscription: ResourceId = "heartbeats-base"
    tracking_subscription: ResourceId = "heartbeats-tracking"
    emulator_host: OptionalText = None
    ack_deadline: Annotated[Duration, Field(ge=timedelta(seconds=10), le=timedelta(minutes=10))] = timedelta(seconds=60)
    retention: Annotated[Duration, Field(ge=timedelta(minutes=10), le=timedelta(days=31))] = timedelta(days=7)
    pull_wait: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(seconds=30))] = timedelta(seconds=2)
    call_timeout: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(seconds=30))] = timedelta(seconds=10)
    metadata_only: bool = False

    @field_validator("emulator_host")
    @classmethod
    def _host_and_port(cls, value: str | None) -> str | None:
        if value is not None:
            host, _, port = value.rpartition(":")
            if not host or not port.isdigit():
                raise ValueError("write the emulator's address as host:port, such as 127.0.0.1:8085, or leave it empty")
        return value

    @model_validator(mode="after")
    def _two_subscriptions(self) -> Self:
        if self.base_subscription == self.tracking_subscription:
            raise ValueError("base_subscription and tracking_subscription must be two different subscriptions")
        return self

    @property
    def topic_path(self) -> str:
        """The topic's full resource name."""
        return f"projects/{self.project}/topics/{self.topic}"

    @property
    def base_path(self) -> str:
        """The base subscription's full resource name."""
        return f"projects/{self.project}/subscriptions/{self.base_subscription}"

    @property
    def tracking_path(self) -> str:
        """The tracking subscription's full resource name."""
        return f"projects/{self.project}/subscriptions/{self.tracking_subscription}"


class MessageSettings(Section):
    """Where a message carries what, and what is compared."""

    event_time_attribute: str = Field("event_time", min_length=1)
    stream_id_attribute: str = Field("stream_id", min_length=1)
    publisher_id_attribute: str = Field("heartbeat_id", min_length=1)
    event_time_field: OptionalText = None
    stream_id_field: OptionalText = None
    max_future_skew: NotNegative = timedelta(minutes=5)
    fields: dict[str, FieldKind] = Field(default_factory=dict)

    @field_validator("fields")
    @classmethod
    def _usable_as_columns(cls, value: dict[str, FieldKind]) -> dict[str, FieldKind]:
        for name in value:
            if not FIELD_NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot be a column: use letters, digits and _, starting with a letter")
            if name in RESERVED_FIELD_NAMES:
                raise ValueError(f"{name!r} is the name of a column that is there already")
        columns = [column for name, kind in value.items() for column in compared_columns(name, kind)]
        twice = sorted({column for column in columns if columns.count(column) > 1 or column in RESERVED_FIELD_NAMES})
        if twice:
            raise ValueError(f"these fields would make the column {twice[0]!r} twice; give one of them another name")
        return value


class WindowSettings(Section):
    """How event time is cut, and how far back a window looks."""

    length: Duration = timedelta(minutes=5)
    first: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    lookback: NotNegative = timedelta(minutes=10)
    heartbeat_period: Positive = timedelta(seconds=30)
    max_windows_per_run: int = Field(288, ge=1, le=10_000)

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


class WatermarkSettings(Section):
    """How trust is earned; `docs/watermark.md` has the meaning of each."""

    band: NotNegative = timedelta(seconds=10)
    tick: Annotated[Duration, Field(ge=timedelta(seconds=1), le=timedelta(minutes=10))] = timedelta(seconds=10)
    near_real_time: NotNegative = timedelta(seconds=10)
    idle_timeout: Positive = timedelta(minutes=2)
    idle: Literal["advance", "hold"] = "advance"
    max_idle_lag: NotNegative = timedelta(minutes=5)
    max_reading_age: Positive = timedelta(minutes=5)
    seek_tolerance: NotNegative = timedelta(seconds=30)
    quantile: float = Field(0.0, ge=0, lt=1)
    reading_slack: OptionalDuration = None
    base_slack: OptionalDuration = None


class BudgetSettings(Section):
    """The most that one tick pulls; whichever is reached first ends the pulling."""

    max_messages: int = Field(ge=1)
    max_bytes: int = Field(ge=1)
    max_seconds: Annotated[Duration, Field(gt=ZERO, le=timedelta(seconds=40))]
    batch_messages: int = Field(ge=1)


class LakeSettings(Section):
    """Where everything that is durable lives."""

    uri: str = "file:.tidemark/lake"
    endpoint: OptionalText = None
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
    server_master: str = "local[2,4]"
    driver_memory: str = Field("2g", pattern=r"^\d+[mg]$")
    config: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if self.master is None and self.remote is None:
            raise ValueError(
                "set remote (a Spark Connect address such as sc://localhost:15002) or master (such as local[2])"
            )
        return self


class DagsterSettings(Section):
    """Dagster's own processes."""

    web_port: Port = 3000
    code_port: Port = 4266
    storage: str = ".tidemark/dagster"
    owners: list[str] = Field(default_factory=lambda: ["team:data-engineering"])


class TrackBudget(BudgetSettings):
    """One tracking tick."""

    max_messages: int = Field(250_000, ge=1)
    max_bytes: int = Field(256 << 20, ge=1)
    max_seconds: Annotated[Duration, Field(gt=ZERO, le=LONGEST_PULL)] = timedelta(seconds=8)
    batch_messages: int = Field(25_000, ge=1)


class LandBudget(BudgetSettings):
    """One landing tick."""

    max_messages: int = Field(250_000, ge=1)
    max_bytes: int = Field(256 << 20, ge=1)
    max_seconds: Annotated[Duration, Field(gt=ZERO, le=LONGEST_PULL)] = timedelta(seconds=20)
    batch_messages: int = Field(20_000, ge=1)


class Settings(BaseSettings):
    """The whole tree, validated. Build it with `load_settings`, which reports errors for people."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    pubsub: PubSubSettings = PubSubSettings()
    message: MessageSettings = MessageSettings()
    windows: WindowSettings = WindowSettings()
    watermark: WatermarkSettings = WatermarkSettings()
    track: TrackBudget = TrackBudget()
    land: LandBudget = LandBudget()
    lake: LakeSettings = LakeSettings()
    spark: SparkSettings = SparkSettings()
    dagster: DagsterSettings = DagsterSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003 (pydantic's signature)
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic's signature)
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 (pydantic's signature)
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings  # a variable wins over the file

    @property
    def emulated(self) -> bool:
        """Whether Pub/Sub is the emulator."""
        return self.pubsub.emulator_host is not None

    @property
    def windowing(self) -> Windowing:
        """How event time is cut."""
        return Windowing(length=self.windows.length, first=self.windows.first)

    @property
    def contract(self) -> MessageContract:
        """What a message must carry."""
        message = self.message
        return MessageContract(
            event_time_attribute=message.event_time_attribute,
            stream_id_attribute=message.stream_id_attribute,
            publisher_id_attribute=message.publisher_id_attribute,
            event_time_field=message.event_time_field,
            stream_id_field=message.stream_id_field,
            first_event_time=self.windows.first,
            max_future_skew=message.max_future_skew,
            fields=dict(message.fields),
        )

    @property
    def policy(self) -> Policy:
        """How trust is earned. Slacks left empty are nothing on the emulator, 1 s and the band on the service."""
        chosen = self.watermark
        reading_slack, base_slack = chosen.reading_slack, chosen.base_slack
        if reading_slack is None:
            reading_slack = ZERO if self.emulated else timedelta(seconds=1)
        if base_slack is None:
            base_slack = ZERO if self.emulated else chosen.band
        return Policy(
            band=chosen.band,
            near_real_time=chosen.near_real_time,
            idle_timeout=chosen.idle_timeout,
            idle=chosen.idle,
            max_idle_lag=chosen.max_idle_lag,
            max_reading_age=chosen.max_reading_age,
            seek_tolerance=chosen.seek_tolerance,
            quantile=chosen.quantile,
            reading_slack=reading_slack,
            base_slack=base_slack,
        )


def load_settings(path: Path | None = None) -> Settings:
    """Read the tree from `path` (else `$TIDEMARK_CONFIG`, else `tidemark.toml` here) and the environment.

    `PUBSUB_EMULATOR_HOST`, where it is set, is the emulator's address. Relative paths are resolved against the
    file's folder. Raises InvalidSettings, which names every wrong setting, its value, its source and the rule.
    """
    file = (path or Path(os.environ.get("TIDEMARK_CONFIG", "tidemark.toml"))).resolve()
    written = _read_toml(file)
    _refuse_unknown_variables(os.environ)
    if host := os.environ.get("PUBSUB_EMULATOR_HOST"):
        section = written.setdefault("pubsub", {})
        if isinstance(section, dict):
            section["emulator_host"] = host
    try:
        settings = Settings(**written)
    except ValidationError as error:
        raise InvalidSettings(_explain(error, file)) from error
    except SettingsError as error:
        raise InvalidSettings(
            f"a TIDEMARK_ variable holds something unreadable: {error}; write a table as JSON"
        ) from error
    return _with_absolute_paths(settings, file.parent)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InvalidSettings(
            f"there is no settings file {file}; run from the project's root, or name one with --config or "
            "$TIDEMARK_CONFIG"
        ) from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"the settings file {file} cannot be read: {error}") from error


def _refuse_unknown_variables(environ: Mapping[str, str]) -> None:
    for name in environ:
        if not name.startswith(PREFIX) or name in NOT_SETTINGS:
            continue
        section, _, key = name.removeprefix(PREFIX).lower().partition("__")
        if section not in Settings.model_fields or not key:
            known = ", ".join(f"{PREFIX}{known.upper()}__<KEY>" for known in Settings.model_fields)
            raise InvalidSettings(f"the variable {name} is no setting; the settings' variables are {known}")


def _explain(error: ValidationError, file: Path) -> str:
    lines = []
    for problem in error.errors():
        place = [str(part) for part in problem["loc"]]
        name = ".".join(place)
        source = _source(place, file)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{name} = {problem['input']!r} (from {source}): there is no such setting{_nearest(place)}")
        else:
            rule = WRITTEN_BOUND.sub(_as_duration, problem["msg"].removeprefix("Value error, "))
            lines.append(f"{name} = {problem['input']!r} (from {source}): {rule}")
    return "; ".join(lines)


def _as_duration(bound: re.Match[str]) -> str:
    return format_duration(timedelta(days=int(bound["days"] or 0), seconds=int(bound["seconds"] or 0)))


def _source(place: list[str], file: Path) -> str:
    """Where a value was written: the variable that sets it, else the file and the variables that add to it."""
    path = [part.lower() for part in place]
    adding = []
    for name in sorted(os.environ):
        if not name.upper().startswith(PREFIX):
            continue
        set_here = name[len(PREFIX) :].lower().split("__")
        if set_here == path:
            return f"${name}"
        shared = min(len(set_here), len(path))
        if set_here[:shared] == path[:shared]:
            adding.append(f"${name}")
    if path == ["pubsub", "emulator_host"] and os.environ.get("PUBSUB_EMULATOR_HOST"):
        return "$PUBSUB_EMULATOR_HOST"
    return " and ".join([str(file), *adding])


def _nearest(place: list[str]) -> str:
    section = Settings.model_fields.get(place[0])
    known = list(Settings.model_fields)
    if len(place) > 1 and section is not None and isinstance(section.annotation, type):
        known = list(getattr(section.annotation, "model_fields", {}))
    close = get_close_matches(place[-1], known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; known here: {', '.join(known)}"


def _with_absolute_paths(settings: Settings, base: Path) -> Settings:
    lake, dagster = settings.lake, settings.dagster
    if lake.folder is not None:
        lake = lake.model_copy(update={"uri": f"file:{(base / lake.folder).resolve()}"})
    dagster = dagster.model_copy(update={"storage": str((base / dagster.storage).resolve())})
    return settings.model_copy(update={"lake": lake, "dagster": dagster})

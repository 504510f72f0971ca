"""The settings: the file `tidemark.toml`, overridden by `TIDEMARK_<SECTION>__<KEY>` variables.

The `tidemark.toml` at the project's root explains every setting. A relative path in a settings file is relative to the
file's folder.
"""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self

from pydantic import PrivateAttr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from tidemark.pipeline import settings_sections as sections
from tidemark.pipeline.contract.heartbeat import PATIENCE, MessageContract
from tidemark.pipeline.contract.judging import RULES
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings_message import MessageSettings
from tidemark.pipeline.settings_sections import is_address, rule_of
from tidemark.pipeline.watermark.policy import Policy
from tidemark.pipeline.windows import Windowing

PREFIX = "TIDEMARK_"
DEFAULT_NAME = "tidemark"
NOT_SETTINGS = frozenset({"TIDEMARK_CONFIG", "TIDEMARK_DAGSTER_STORAGE", "TIDEMARK_DAGSTER_HEADERS"})
"""Environment variables that begin with PREFIX but are not settings. They name files, or contain a secret."""

OF_KUBERNETES = re.compile(
    r"TIDEMARK_(\w+_)?(SERVICE_HOST=.*|SERVICE_PORT(_\w+)?=\d+|PORT=\w+://.*|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?=.*)"
)
"""Matches, as `name=value`, each variable that Kubernetes sets in every pod if a service is called `tidemark` or
`tidemark-...`."""

UNDECIDED = 2 * PATIENCE + timedelta(seconds=10)
"""Maximum age of a message that tracking has not acknowledged because it waits for the message's schema. Tracking
rejects the message at the first pull after twice PATIENCE. This assumes that pulls are at most 10 s apart."""

COPIES_REMEMBERED = timedelta(minutes=10)
"""Time for which tracking remembers a message, so that a later copy of the message does not hold the watermark.
Publishers retry for minutes. At most a million messages are remembered (`ingest.counting`)."""

WINDOW_SLOTS = 2
"""Number of task slots for computing windows, if Spark runs on this machine."""

READING_SLACK = timedelta(seconds=1)
"""Upper bound on the delay from a message's publish time until Pub/Sub shows the message as unacknowledged. Every
measured delay was shorter. On Google's service, this is the default `slack` of tracking's reading. Base's default is
the whole band, because only the slack protects a message that base does not show yet."""

NO_FILE = "name one with --config or $TIDEMARK_CONFIG, or have `tidemark init` write one"
"""Advice in an error message if no settings file is named, and the current folder has none."""

SECRET = re.compile(r"(?<=://)\S*(?=@)|(?<=token=)[^;'\"]+")
"""Matches the login and the token in an address. No error message repeats them."""


@dataclass(frozen=True, slots=True)
class ReadFrom:
    """The file that settings were read from, and a digest of the text that was read."""

    path: str
    digest: str

    @classmethod
    def of(cls, file: Path, text: bytes) -> "ReadFrom":
        return cls(str(file), hashlib.sha256(text).hexdigest())


class Settings(BaseSettings):
    """All settings, validated. Use `load_settings` to build them: it explains what is wrong."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    pubsub: sections.PubSubSettings = sections.PubSubSettings()
    message: MessageSettings = MessageSettings()
    windows: sections.WindowSettings = sections.WindowSettings()
    tables: dict[sections.TableName, sections.TableSettings] = {}
    checks: sections.CheckSettings = sections.CheckSettings()
    watermark: sections.WatermarkSettings = sections.WatermarkSettings()
    signal: sections.SignalSettings = sections.SignalSettings()
    ingest: sections.IngestSettings = sections.IngestSettings()
    quarantine: sections.QuarantineSettings = sections.QuarantineSettings()
    housekeeping: sections.HousekeepingSettings = sections.HousekeepingSettings()
    lake: sections.LakeSettings = sections.LakeSettings()
    spark: sections.SparkSettings = sections.SparkSettings()
    dagster: sections.DagsterSettings = sections.DagsterSettings()
    metrics: sections.MetricsSettings = sections.MetricsSettings()
    logs: sections.LogSettings = sections.LogSettings()

    _read_from: ReadFrom | None = PrivateAttr(None)

    @property
    def read_from(self) -> ReadFrom | None:
        """The file that the settings were read from; None if they come only from the environment and the defaults."""
        return self._read_from

    @classmethod
    def settings_customise_sources(cls, *_: Any, **sources: Any) -> tuple[PydanticBaseSettingsSource, ...]:
        return sources["env_settings"], sources["init_settings"]  # a variable wins over the file

    @model_validator(mode="after")
    def _nothing_lands_with_attach(self) -> Self:
        if not self.pubsub.attach:
            return self
        needs_landing = {
            "watermark.max_lag": self.watermark.max_lag is not None,
            'ingest.mode = "continuous"': self.ingest.is_continuous,
            "[tables]": bool(self.tables),
            "windows.corrections = true": self.windows.corrections,
            "quarantine.requeue": self.quarantine.requeue != sections.BY_HAND,
        }
        if refused := [name for name, is_set in needs_landing.items() if is_set]:
            raise ValueError(
                f"pubsub.attach = true cannot be combined with {', '.join(refused)}: another consumer reads base, so "
                "nothing lands, and no window is computed or recomputed. Remove these settings, or set attach = false "
                "(docs/how-to/attach.md)"
            )
        return self

    @model_validator(mode="after")
    def _tells_another_topic(self) -> Self:
        if self.signal.publish_to == self.pubsub.topic:
            raise ValueError(
                f"signal.publish_to is {self.signal.publish_to}, the topic that this pipeline reads: "
                "the pipeline would read its own signal. Name another topic; `tidemark provision` creates it"
            )
        return self

    @property
    def copies_remembered(self) -> timedelta:
        """Time for which tracking remembers messages to recognize their copies. With `attach`, it is 0: every copy
        counts, because the consumer of base may have read only one of them."""
        return timedelta() if self.pubsub.attach else COPIES_REMEMBERED

    @property
    def signal_topic(self) -> str | None:
        """The full name of the topic to which the watermark is published, or None."""
        name = self.signal.publish_to
        return None if name is None else f"projects/{self.pubsub.project}/topics/{name}"

    @property
    def pipeline_name(self) -> str:
        """The pipeline's name in measurements, logs and signals."""
        return self.dagster.name or DEFAULT_NAME

    @property
    def spark_master(self) -> str:
        """The Spark master of a classic session, or of the server that `tidemark up` starts: `spark.master` in
        `[spark.config]` if set, otherwise this machine.

        On this machine there are WINDOW_SLOTS task slots for windows, and more slots for readers: in `continuous` mode,
        one per reader; in `ticks` mode, only one, because readers may also use the slots for windows.
        """
        readers = self.ingest.readers if self.ingest.is_continuous else 1
        return self.spark.config.get("spark.master") or f"local[{readers + WINDOW_SLOTS},4]"

    @property
    def emulated(self) -> bool:
        return self.pubsub.emulator_host is not None

    @property
    def windowing(self) -> Windowing:
        return Windowing(self.windows.length, self.windows.first, self.windows.lookback)

    @property
    def contract(self) -> MessageContract:
        return self.message.contract_from(self.windows.first)

    @property
    def judged_by(self) -> str:
        """A digest of everything that determines a message's verdict, stream, id and event time: the settings, the
        rules of this version, and the schema file. Compared fields are left out, because they never cause a rejection.
        `[message]` settings at their default are left out, so that the digest stays the same if a later version adds a
        setting."""
        judged_by = {
            "rules": RULES,
            "first": self.windows.first.isoformat(),
            "schemas": sorted(self.message.schema_names),
            **self.message.model_dump(mode="json", exclude={"fields", "schema_"}, exclude_defaults=True),
        }
        digest = hashlib.sha256(json.dumps(judged_by, sort_keys=True).encode())
        digest.update(self.message.schema_content)
        return digest.hexdigest()

    @property
    def policy(self) -> Policy:
        """The policy for deciding the watermark.

        On Google's service, an empty `slack` means READING_SLACK for readings of the tracking subscription, and `band`
        for readings of the base subscription. On an emulator, it means 0. An empty `idle` means `hold` if
        `pubsub.attach` is set, else `advance`."""
        chosen, contract = self.watermark, self.contract
        by_default = (timedelta(), timedelta()) if self.emulated else (READING_SLACK, chosen.band)
        reading_slack, base_slack = by_default if chosen.slack is None else (chosen.slack, chosen.slack)
        waits = contract.needs_payload and contract.payload.has_schema
        return Policy(
            rule=chosen.rule,
            band=chosen.band,
            idle_timeout=chosen.idle_timeout,
            idle=chosen.idle or ("hold" if self.pubsub.attach else "advance"),
            quantile=chosen.quantile,
            max_lag=chosen.max_lag,
            reading_slack=reading_slack,
            base_slack=base_slack,
            undecided=UNDECIDED if waits else timedelta(),
        )


def config_file() -> Path:
    """Return the path of the settings file: `$TIDEMARK_CONFIG`, else `tidemark.toml` in the current folder."""
    return Path(os.environ.get("TIDEMARK_CONFIG") or "tidemark.toml").resolve()


def load_settings(path: Path | None = None, *, needs_file: bool = True, name: str | None = None) -> Settings:
    """Read the settings from a file and the environment. The file is `path`, else `$TIDEMARK_CONFIG`, else
    `tidemark.toml` in the current folder.

    - A `name` sets `dagster.name`, and prefixes the variables: `ORDERS_TIDEMARK_...` for the pipeline `orders`.
    - Without `needs_file`, `tidemark.toml` may be missing. All settings then come from the environment or are defaults.
    - `PUBSUB_EMULATOR_HOST`, if set, is the emulator's address.
    - Relative paths in the file are relative to the file's folder.

    Raises InvalidSettings, which lists every wrong setting with its value, its source and the rule that it breaks.
    """
    named = path or os.environ.get("TIDEMARK_CONFIG") or None
    file = Path("tidemark.toml" if named is None else named).resolve()
    how = "name an existing one" if path else NO_FILE if named is None else "fix --config or $TIDEMARK_CONFIG"
    has_file = needs_file or named is not None or file.exists()
    written, read_from = _read_toml(file, how) if has_file else ({}, None)
    prefix = f"{name.upper()}_{PREFIX}" if name else PREFIX
    _refuse_unknown_variables(os.environ, prefix)
    host = os.environ.get("PUBSUB_EMULATOR_HOST")
    for section, key, value in (("dagster", "name", name), ("pubsub", "emulator_host", host)):
        if value and isinstance(table := written.setdefault(section, {}), dict):
            table[key] = value
    try:
        settings = Settings(_env_prefix=prefix, **written)
    except ValidationError as error:
        raise InvalidSettings(_explain(error, file, prefix)) from error
    except SettingsError as error:
        text = getattr(error.__cause__, "doc", None)  # the text that is not JSON
        found = [one for one, value in os.environ.items() if one.upper().startswith(prefix) and value == text]
        raise InvalidSettings(
            f"the variable {' or '.join(found) or prefix} cannot be read: {error}; write a list or a table as JSON"
        ) from error
    if name and settings.dagster.name != name:
        raise InvalidSettings(f"the variable {prefix}DAGSTER__NAME differs from the name {name}; unset it")
    settings._read_from = read_from
    return _with_absolute_paths(settings, file.parent)


def _read_toml(file: Path, how_to_name_it: str) -> tuple[dict[str, Any], ReadFrom]:
    try:
        text = file.read_bytes()
        return tomllib.loads(text.decode("utf-8-sig")), ReadFrom.of(file, text)
    except FileNotFoundError as error:
        raise InvalidSettings(f"there is no settings file {file}; {how_to_name_it}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidSettings(f"the settings file {file} cannot be read: {error}") from error


def _refuse_unknown_variables(environ: Mapping[str, str], prefix: str) -> None:
    for name, value in environ.items():
        upper = name.upper()  # a variable in lower case counts, too
        of_kubernetes = OF_KUBERNETES.fullmatch(f"{PREFIX}{upper.removeprefix(prefix)}={value}")
        if not upper.startswith(prefix) or upper in NOT_SETTINGS or of_kubernetes:
            continue
        section, _, key = upper.removeprefix(prefix).lower().partition("__")
        if section not in Settings.model_fields or not key:
            known = ", ".join(f"{prefix}{known.upper()}__<KEY>" for known in Settings.model_fields)
            raise InvalidSettings(f"the variable {name} is not a setting; unset it, or write one of {known}")


def _explain(error: ValidationError, file: Path, prefix: str) -> str:
    lines = []
    for problem in error.errors():
        place = [str(part) for part in problem["loc"]]
        rule = rule_of(problem)
        if problem["type"] in ("model_type", "dict_type"):
            rule = f"write a table, such as [{'.'.join(place)}]"
        if problem["type"] == "extra_forbidden":
            rule = f"there is no such setting{_nearest(place)}"
        # The value of a whole section may contain secrets, and an address a login or a token.
        value = "" if isinstance(problem["input"], dict) else f" = {SECRET.sub('***', repr(problem['input']))}"
        where = f"{'.'.join(place)}{value} (from {_source(place, file, prefix)})" if place else file
        lines.append(f"{where}: {rule}")
    return "; ".join(lines)


def _source(place: list[str], file: Path, prefix: str) -> str:
    """Return the origin of a value: the variable that sets exactly this value. Without such a variable, return the
    file, and each variable that sets a part of the value or the whole table around it."""
    path = [part.lower() for part in place]
    adding = []
    for name in sorted(os.environ):
        if not name.upper().startswith(prefix):
            continue
        set_here = name[len(prefix) :].lower().split("__")
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
        fields = getattr(section.annotation, "model_fields", {})
        known = [field.alias or name for name, field in fields.items()]
    close = get_close_matches(place[-1], known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; the known names are {', '.join(known)}"


def _with_absolute_paths(settings: Settings, base: Path) -> Settings:
    def absolute(path: str | Path) -> str:
        return str((base / path).resolve())

    lake, message, spark, dagster = settings.lake, settings.message, settings.spark, settings.dagster
    if lake.folder is not None:
        lake = lake.model_copy(update={"uri": f"file:{absolute(lake.folder)}"})
    if message.schema_path:
        message = message.model_copy(update={"schema_": absolute(message.schema_path)})
    if (archive := spark.executor_environment) and not is_address(archive):
        spark = spark.model_copy(update={"executor_environment": absolute(archive)})
    dagster = dagster.model_copy(update={"storage": absolute(dagster.storage)})
    tables = {name: one.model_copy(update={"file": absolute(one.file)}) for name, one in settings.tables.items()}
    changed = {"lake": lake, "message": message, "dagster": dagster, "tables": tables, "spark": spark}
    return settings.model_copy(update=changed)

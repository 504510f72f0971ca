"""The options of `format("pubsub")`, checked when a query is planned. Readers on executors get only these options, the
schema and a partition from the driver."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BeforeValidator,
    ByteSize,
    Field,
    Json,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from tidemark.pipeline.clock import EPOCH
from tidemark.pipeline.contract.heartbeat import MessageContract
from tidemark.pipeline.contract.payloads.schemas import NAME
from tidemark.pipeline.errors import InvalidSettings
from tidemark.pipeline.settings_message import ComparedFields, MessageSettings
from tidemark.pipeline.settings_sections import (
    LakeSettings,
    OptionalText,
    Positive,
    ResourceId,
    ServerSettings,
    rule_of,
)

LANDING_NAME = r"^[A-Za-z0-9][A-Za-z0-9._=-]{0,99}$"
WATERMARK = "watermark"
Size = Annotated[ByteSize, BeforeValidator(lambda size: re.sub(r"(?i)([kmgt])b?$", r"\1ib", str(size)))]
"""A number of bytes. Spark's notation is allowed: `512m`."""

SAME_AS = {
    "projectid": "project",
    "subscriptionid": "subscription",
    "numfetchpartitions": "readers",
    "maxrecordsperfetch": "batch_messages",
    "maxfetchperiod": "max_time",
}
"""Maps Databricks' option names to this source's. The keys are as `_plain` returns them: lower case, without `_`."""

NEITHER_MADE = "leave it out: the source reads an existing subscription, and neither creates nor deletes it"
NO_KEYS = (
    "leave it out: driver and executors use the application default credentials of their machines; to act as a service "
    "account, name it in the option impersonate"
)
REFUSED = {
    **dict.fromkeys(("topicid", "deletesubscriptiononstreamstop"), NEITHER_MADE),
    **dict.fromkeys(("clientemail", "clientid", "privatekey", "privatekeyid", "servicecredential"), NO_KEYS),
}
"""Maps each Databricks option that does not apply here to a phrase that says what to do instead."""


def _not_the_watermark(value: ComparedFields) -> ComparedFields:
    if WATERMARK in map(str.lower, value):
        raise ValueError(f"{WATERMARK!r} is already a column of the source; choose another name")
    return value


def _the_same_for_all(value: LakeSettings) -> LakeSettings:
    if value.folder is not None and not value.folder.is_absolute():
        raise ValueError("write an absolute path as file:///…, because driver and executors may run elsewhere")
    return value


class SourceOptions(MessageSettings, ServerSettings):
    """All options, with their defaults. The options of the message contract have the same names as the settings in
    `[message]`.

    An option is written as `eventTime` or `event_time`; case does not matter.
    """

    project: str = Field(min_length=3)
    subscription: ResourceId
    lake: Annotated[LakeSettings, BeforeValidator(lambda uri: {"uri": uri}), AfterValidator(_the_same_for_all)]
    lake_endpoint: OptionalText = None
    readers: int = Field(2, ge=1, le=1000)
    landing: str | None = Field(None, pattern=LANDING_NAME)
    keep_batches: int = Field(10, ge=0)
    max_messages: int = Field(100_000, ge=1)
    max_bytes: Size = Field(ByteSize(128 << 20), ge=1)
    max_time: Positive = timedelta(seconds=10)
    max_rows_per_trigger: int | None = Field(None, ge=1)
    max_bytes_per_trigger: Size | None = Field(None, ge=1)
    batch_messages: int = Field(20_000, ge=1)
    first_event_time: AwareDatetime = EPOCH
    fields: Annotated[Json[ComparedFields], AfterValidator(_not_the_watermark)] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_limit(self) -> Self:
        if self.max_rows_per_trigger and self.max_bytes_per_trigger:
            raise ValueError("maxRowsPerTrigger and maxBytesPerTrigger exclude each other: remove one")
        return self

    @field_validator("schema_")
    @classmethod
    def _where_all_find_it(cls, value: str | list[str]) -> str | list[str]:
        if isinstance(value, str) and value and not NAME.fullmatch(value) and not Path(value).is_absolute():
            raise ValueError(
                "write the absolute path of the schema's file or folder, because executors read it themselves"
            )
        return value

    @property
    def path(self) -> str:
        return f"projects/{self.project}/subscriptions/{self.subscription}"

    @property
    def contract(self) -> MessageContract:
        return self.contract_from(self.first_event_time)


def read_options(written: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> SourceOptions:
    """Check and return the options given to Spark. Databricks' option names are allowed too. The default of
    `emulatorHost` is `$PUBSUB_EMULATOR_HOST`, as in Google's clients.

    Raises InvalidSettings, which names each wrong option, its value and the rule. An unknown or refused option is named
    without its value, which may be a secret.
    """
    known = {_plain(name): name for name in SourceOptions.model_fields} | SAME_AS
    given: dict[str, Any] = {}
    for name, value in written.items():
        plain = _plain(name)
        if plain in REFUSED:
            raise InvalidSettings(f"{name}: {REFUSED[plain]}")
        if plain not in known:
            close = get_close_matches(plain, known, n=1)
            hint = f"; did you mean {to_camel(known[close[0]])}?" if close else ""
            raise InvalidSettings(f"{name}: the source pubsub does not have this option{hint}")
        if known[plain] in given:
            raise InvalidSettings(f"{name} is another name for {to_camel(known[plain])}, which is also set; remove one")
        given[known[plain]] = value
    given.setdefault("emulator_host", environ.get("PUBSUB_EMULATOR_HOST", ""))
    try:
        return SourceOptions(**given)
    except ValidationError as error:
        raise InvalidSettings("; ".join(_sentence(problem) for problem in error.errors())) from error


def _sentence(problem: ErrorDetails) -> str:
    if not problem["loc"]:
        return rule_of(problem)
    name = to_camel(str(problem["loc"][0])).rstrip("_")  # schema_
    if problem["type"] == "missing":
        return f"{name}: the source pubsub needs this option"
    return f"{name} = {problem['input']!r}: {rule_of(problem)}"


def _plain(name: str) -> str:
    return name.replace("_", "").lower()
